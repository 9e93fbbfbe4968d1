"""One table, two readers: what click and what the file that travels make of the same words is the same."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import click
import pytest

from seatrial.cli._options import command
from seatrial.cli.run import run
from seatrial.errors import RequestError
from seatrial.launch.options import SUBCOMMANDS
from seatrial.launch.pyz import parse
from seatrial.launch.request import Request


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
    ],
    ids=" ".join,
)
def test_both_read_the_same(words: list[str]) -> None:
    told = parse("x.pyz", "run", words)
    assert repr(told) == repr(
        {option.name: by_click("run", words)[option.name] for option in SUBCOMMANDS["run"].options}
    )
    assert Request(**told).out == Path(told["out"])


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


def test_a_trial_takes_what_its_table_names_and_nothing_else() -> None:
    names = [option.name for option in SUBCOMMANDS["run"].options]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(Request))
    assert [parameter.name for parameter in run.params] == names
