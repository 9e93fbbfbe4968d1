"""One table, two readers: what click and what the file that travels make of the same words is the same."""

from __future__ import annotations

import contextlib
import importlib
import io
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from seatrial.cli._options import command
from seatrial.cli.run import run
from seatrial.errors import RequestError
from seatrial.launch.option import retyped
from seatrial.launch.options import RUN, SUBCOMMANDS
from seatrial.launch.pyz import parse
from seatrial.launch.request import request_of


def by_click(name: str, words: list[str]) -> dict[str, Any]:
    with command(name, SUBCOMMANDS[name]).make_context(name, list(words)) as context:
        return context.params


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["smoke"],
        ["--only", "compute", "smoke", "--only", "bootstrap,collectives", "--dry-run"],
        ["--skip", "x", "--epochs", "3", "--batch-size", "7", "--deadline", "1.5", "--json", "--validation-only"],
        ["--on", "local", "--nproc-per-node", "4", "--device", "cpu", "--backend", "gloo", "--python", "p"],
        ["--out", "a b/c", "--workload", "digits", "--model", "convnet"],
        ["--deadline", "-1", "--epochs=-3", "--", "-plan"],
        ["--deadline", "nan"],
        ["--nodes", "3", "--env", "A=b", "--env", "C=d e"],
    ],
    ids=" ".join,
)
def test_both_read_the_same(words: list[str]) -> None:
    told = parse("x.pyz", "run", words)
    assert repr(told) == repr(
        {option.name: by_click("run", words)[option.name] for option in SUBCOMMANDS["run"].options}
    )
    assert request_of(told).out == Path(told["out"])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["train.py"],
        ["--per-node", "--nproc-per-node=3", "train.py", "--per-node", "-h", "--nonsense", "-m5", "-"],
        ["-m", "train", "-m", "--", "x"],
        ["--output", "all", "--", "--train", "--", "-x"],
        ["--grace", "-1", "--", "train.py"],
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
        ["--epochs", "two"],
        ["--epochs"],
        ["--device", "gpu"],
        ["--dead", "1"],
        ["smoke", "quick"],
        ["--dry-run=1"],
        ["--deadline", ""],
    ],
    ids=" ".join,
)
def test_both_refuse_the_same(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        by_click("run", words)
    with pytest.raises(RequestError, match=r"; see x\.pyz run --help\.$"):
        parse("x.pyz", "run", words)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_is_carried_out_by_a_module_that_travels(name: str) -> None:
    assert callable(importlib.import_module(SUBCOMMANDS[name].module).run)
    assert getattr(importlib.import_module(f"seatrial.cli.{name}"), name).name == name


def test_both_show_every_option_under_its_heading() -> None:
    click_help = CliRunner().invoke(run, ["--help"]).output
    with pytest.raises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as pyz_help:
        parse("x.pyz", "run", ["--help"])
    for heading, options in SUBCOMMANDS["run"].groups.items():
        for text in (click_help, pyz_help.getvalue()):
            assert f"\n{heading}:\n" in text
            assert all(flag in text for option in options for flag in option.flags)
    assert len({option.name for option in SUBCOMMANDS["run"].options}) == len(SUBCOMMANDS["run"].options)


def test_what_was_typed_can_be_typed_again() -> None:
    words = ["smoke", "--only", "a,b", "--only=c", "--json", "--epochs", "-3", "--env", "X=1", "--nodes", "2"]
    again = retyped(RUN, parse("x.pyz", "run", words))
    assert again == ("--only=a,b", "--only=c", "--epochs=-3", "--json", "--", "smoke")
    assert repr(parse("x.pyz", "run", list(again))) == repr({**parse("x.pyz", "run", words), "env": (), "nodes": None})
