"""One table, two readers: click and argparse make the same of the same words."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import seatrial
from seatrial.cli.argparse_app import parse
from seatrial.cli.click_app import cli, click_command
from seatrial.cli.command import commands, options_of
from seatrial.errors import RequestError
from seatrial.request.trial_options import RUN
from seatrial.request.trial_request import request_of
from seatrial.targets.option import to_argv
from seatrial.targets.registry import TARGETS


def by_click(name: str, words: list[str]) -> dict[str, Any]:
    with click_command(commands()[name]).make_context(name, list(words)) as context:
        values: dict[str, Any] = context.params
        return values


def by_argparse(name: str, words: list[str]) -> dict[str, Any]:
    return parse("x.pyz", name, words)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["smoke"],
        ["--only", "compute", "smoke", "--only", "bootstrap,collectives", "--dry-run"],
        ["--skip", "x", "--epochs", "3", "--batch-size", "7", "--deadline", "1.5", "--json", "--validation-only"],
        ["--on", "local", "--nproc-per-node", "4", "--device", "cpu", "--backend", "gloo", "--python", "p"],
        ["--out", "a b/c", "--workload", "digits", "--model", "convnet"],
        ["--deadline", "1.5h", "--epochs=-3", "--", "-plan"],
        ["--nodes", "3", "--env", "A=b", "--env", "C=d e"],
    ],
    ids=" ".join,
)
def test_both_read_the_same(words: list[str]) -> None:
    told = parse("x.pyz", "run", words)
    assert repr(told) == repr(
        {option.name: by_click("run", words)[option.name] for option in options_of(commands()["run"])}
    )
    assert request_of(told).out == Path(told["out"])


@pytest.mark.parametrize(
    ("typed", "seconds"), [("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("2h", 7200.0), ("1.5m", 90.0), ("0", 0.0)]
)
def test_a_time_is_read_in_seconds(typed: str, seconds: float) -> None:
    assert by_click("run", ["--deadline", typed])["deadline"] == seconds
    assert parse("x.pyz", "run", ["--deadline", typed])["deadline"] == seconds
    assert parse("x.pyz", "train", ["--grace", typed, "--timeout", typed])["grace"] == seconds
    assert parse("x.pyz", "run", ["--queue-timeout", typed, "--ttl", typed])["ttl"] == seconds


@pytest.mark.parametrize("typed", ["", "m", "5d", "5 minutes", "1h30m", "nan", "inf", "infs", "-1", "-1m", "1e999h"])
def test_no_time(typed: str) -> None:
    for read in (by_click, by_argparse):
        with pytest.raises(RequestError, match=r"^--deadline .*: expected a time such as 90 .seconds., 90s, 5m or 2h"):
            read("run", [f"--deadline={typed}"])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["train.py"],
        ["--per-node", "--nproc-per-node=3", "train.py", "--per-node", "-h", "--nonsense", "-m5", "-"],
        ["-m", "train", "-m", "--", "x"],
        ["--output", "all", "--", "--train", "--", "-x"],
        ["--grace", "1m", "--", "train.py"],
    ],
    ids=" ".join,
)
def test_both_leave_to_a_script_what_follows_it(words: list[str]) -> None:
    told, clicked = parse("x.pyz", "launch", words), by_click("launch", words)
    assert repr(told) == repr({name: clicked[name] for name in told})


@pytest.mark.parametrize(
    "words",
    [
        ["--nonsense"],
        ["--epochs"],
        ["--dead", "1"],
        ["smoke", "quick"],
        ["--dry-run=1"],
    ],
    ids=" ".join,
)
def test_both_refuse_the_same(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        by_click("run", words)
    with pytest.raises(RequestError, match=r"; see x\.pyz run --help\.$"):
        parse("x.pyz", "run", words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--epochs", "two"], "--epochs two: expected a whole number."),
        (["--device", "gpu"], "--device gpu: expected one of auto, cuda (NVIDIA), rocm (AMD), cpu."),
        (["--epochs", ""], "--epochs '': expected a whole number."),
    ],
)
def test_both_refuse_a_value_in_the_same_words(words: list[str], sentence: str) -> None:
    for read in (by_click, by_argparse):
        with pytest.raises(RequestError) as refused:
            read("run", words)
        assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("report", ["a", "b", "--json"]),
        ("plan show", []),
        ("plan show", ["smoke", "--json"]),
        ("data fetch", ["mnist", "--mirror", "x", "--mirror=y"]),
        ("bundle", ["x.pyz"]),
    ],
)
def test_both_read_the_other_commands(name: str, words: list[str]) -> None:
    assert sorted(parse("x.pyz", name, words).items()) == sorted(by_click(name, words).items())


def test_both_show_every_option_under_its_heading() -> None:
    click_help = pyz_help = ""
    for target in TARGETS:
        click_help += CliRunner().invoke(cli, ["run", "--on", target, "--help"]).output
        with pytest.raises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as printed:
            parse("x.pyz", "run", ["--on", target, "--help"])
        pyz_help += printed.getvalue()
    for heading, options in commands()["run"].options().items():
        for text in (click_help, pyz_help):
            assert f"\n{heading}:\n" in text
            assert all(flag in text for option in options for flag in option.flags)
    names = [option.name for option in options_of(commands()["run"])]
    assert len(set(names)) == len(names)


def test_what_was_typed_can_be_typed_again() -> None:
    words = ["smoke", "--only", "a,b", "--only=c", "--json", "--epochs", "-3", "--env", "X=1", "--nodes", "2"]
    again = to_argv(RUN, parse("x.pyz", "run", words))
    assert again == ("--only=a,b", "--only=c", "--epochs=-3", "--json", "--", "smoke")
    assert repr(parse("x.pyz", "run", list(again))) == repr({**parse("x.pyz", "run", words), "env": (), "nodes": None})


@pytest.mark.parametrize("app", ["click_app", "argparse_app"])
@pytest.mark.parametrize("name", ["run", "train", "launch"])
def test_help_has_at_most_110_columns(name: str, app: str) -> None:
    code = f"from seatrial.cli.{app} import main; main()"
    environ = {**os.environ, "COLUMNS": "200"}
    text = subprocess.check_output([sys.executable, "-c", code, name, "--help"], env=environ, text=True)
    assert 100 < max(map(len, text.splitlines())) <= 110


def _sentences() -> Iterator[tuple[str, str]]:
    """Yield each text in the source, docstrings aside, with its file."""
    root = Path(seatrial.__file__).parent
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text())
        bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
                yield str(path.relative_to(root)), node.value


def test_a_sentence_names_an_option_as_it_is_typed() -> None:
    """--nproc-per-node, and not nproc_per_node; deadline_s is a key of plan files, and --deadline the option."""
    names = {option.name for name in ("run", "train", "launch") for option in options_of(commands()[name])}
    internal = re.compile(
        rf"(?<![-\w.])({'|'.join(sorted({name for name in names if '_' in name} | {'deadline_s'}))})\b"
    )
    # Keys of plan files are meant in these, or written; channels_last is a word of torch.
    keys_and_fields = ("plan/", "checks/", "training/recipe.py", "report/plan_of_runs.py")
    found = [
        (file, match[0])
        for file, text in _sentences()
        for match in internal.finditer(text)
        if " " in text.strip()
        and not file.startswith(keys_and_fields)
        and match[0] != "channels_last"
        and f"{{{match[0]}}}" not in text
    ]
    assert not found
