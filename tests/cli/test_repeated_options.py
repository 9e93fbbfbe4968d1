"""An option that is typed twice: lists add up, of single values the last one counts. The same with both parsers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
import pytest

from seatrial.cli.argparse_app import parse
from seatrial.cli.click_app import _call, click_command
from seatrial.cli.command import commands
from seatrial.cli.exit import split_debug
from seatrial.errors import RequestError

Parse = Callable[..., Mapping[str, Any]]


def by_click(*words: str) -> Mapping[str, Any]:
    command = click_command(commands()["run"])
    with click.Context(command) as context:
        command.parse_args(context, list(words))
        return dict(context.params)


def by_argparse(*words: str) -> Mapping[str, Any]:
    return parse("seatrial.pyz", "run", list(words))


@pytest.fixture(params=[by_click, by_argparse], ids=["click", "argparse"])
def parsed(request: pytest.FixtureRequest) -> Parse:
    parser: Parse = request.param
    return parser


def test_lists_add_up(parsed: Parse) -> None:
    values = parsed("--hosts", "a:2", "--hosts=b,c", "--only", "compute", "--only", "memory", "--all-nodes", "x=1")
    assert values["hosts"] == "a:2,b,c"
    assert values["only"] == ("compute", "memory")
    assert values["all_nodes"] == "x=1"
    assert parsed()["hosts"] is None


def test_of_single_values_the_last_one_counts(parsed: Parse) -> None:
    assert parsed("--deadline", "5", "--deadline", "7")["deadline"] == 7


def test_two_dashes_are_no_host() -> None:
    with pytest.raises(RequestError):
        by_argparse("--hosts=--")


@pytest.mark.parametrize("words", [[], ["plan"], ["data"]])
def test_without_a_command_the_help_is_printed_once(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _call(words) == 0
    shown, complaints = capsys.readouterr()
    assert shown.count("Usage: ") == 1
    assert complaints == ""


@pytest.mark.parametrize(
    ("typed", "own"),
    [
        (["run", "--nproc_per_node=2", "--dry_run"], ["run", "--nproc-per-node=2", "--dry-run"]),
        (
            ["launch", "--nproc_per_node", "2", "a_b.py", "--batch_size", "3"],
            ["launch", "--nproc-per-node", "2", "a_b.py", "--batch_size", "3"],
        ),
        (["run", "my_plan.toml", "--env", "A_B=c_d"], ["run", "my_plan.toml", "--env", "A_B=c_d"]),
        (["run", "--env=A_B=c_d"], ["run", "--env=A_B=c_d"]),
    ],
)
def test_options_with_underscores_as_torchrun_has_them(typed: list[str], own: list[str]) -> None:
    assert split_debug(typed) == (own, False)
