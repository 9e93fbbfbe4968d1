"""--help on a terminal of 80 columns: what is wanted most is on two screens, all else behind --on TARGET."""

from __future__ import annotations

import contextlib
import io

import click
import pytest

from seatrial.cli import argparse_app
from seatrial.cli.click_app import cli
from seatrial.targets.registry import TARGETS

_TWO_SCREENS = 2 * 24
_PARSERS = ("click", "argparse")


def _help(parser: str, *arguments: str, columns: int = 80) -> str:
    """Return the help that a terminal shows."""
    if parser == "click":
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            cli.main([*arguments, "--help"], prog_name="seatrial", standalone_mode=False, terminal_width=columns)
        return printed.getvalue()
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as ended:
        argparse_app.parse("seatrial.pyz", arguments[0], [*arguments[1:], "--help"])
    assert ended.value.code == 0
    return printed.getvalue()


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("parser", _PARSERS)
@pytest.mark.parametrize("command", ["run", "train", "launch"])
def test_help_fits_on_two_screens_of_80_columns(parser: str, command: str) -> None:
    rows = _help(parser, command).splitlines()
    assert len(rows) <= _TWO_SCREENS
    assert max(map(len, rows)) <= 80


@pytest.mark.parametrize("parser", _PARSERS)
@pytest.mark.parametrize("command", ["run", "train", "launch"])
def test_help_is_as_narrow_as_the_terminal(parser: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, _help(parser, command, columns=60).splitlines())) <= 60


@pytest.mark.parametrize("parser", _PARSERS)
@pytest.mark.parametrize("command", ["run", "train", "launch"])
def test_help_lists_every_target_and_how_to_see_its_options(parser: str, command: str) -> None:
    rows = _help(parser, command).rstrip("\n").splitlines()
    targets = {name: words for row in rows if row[:2] == "  " for name, _, words in [row.strip().partition(" ")]}
    assert {name: targets.get(name, "").strip() for name in TARGETS} == {
        name: target.help for name, target in TARGETS.items()
    }
    program = f"seatrial{'.pyz' * (parser == 'argparse')} {command}"
    assert rows[-1] == f"All options: {program} --on TARGET --help"


@pytest.mark.parametrize("parser", _PARSERS)
@pytest.mark.parametrize("target", TARGETS)
def test_with_a_target_the_help_has_all_of_its_options_and_no_other(parser: str, target: str) -> None:
    for words in (["--on", target], [f"--on={target}"], ["--on", "local", "--on", target]):
        shown = {word.strip(",") for word in _help(parser, "launch", *words).split() if word.startswith("--")}
        own = {option.flags[0] for option in TARGETS[target].options}
        others = {option.flags[0] for each in TARGETS.values() for option in each.options} - own
        assert (own - shown, others & shown) == (set(), {"--nodes"} & others & shown)
        assert {"--comm-profile", "--unprotected", "--max-restarts"} <= shown


@pytest.mark.parametrize("parser", _PARSERS)
def test_a_hidden_option_is_taken_as_before(parser: str) -> None:
    assert "--pvc" not in _help(parser, "launch")
    if parser == "argparse":
        values = argparse_app.parse("seatrial.pyz", "launch", ["--pvc", "data:/data", "train.py", "--help"])
        assert (values["pvc"], values["script"]) == (("data:/data",), ("train.py", "--help"))
    else:
        command = cli.get_command(click.Context(cli), "launch")
        assert command is not None
        context = command.make_context("launch", ["--pvc", "data:/data", "train.py", "--help"])
        assert (context.params["pvc"], context.params["script"]) == (("data:/data",), ("train.py", "--help"))
