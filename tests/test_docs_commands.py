"""Commands that the pages show are commands that exist: those for newcomers, and those of the page on training."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path

import click
import pytest

from seatrial.cli import cli
from seatrial.errors import SeatrialError
from seatrial.launch import place
from seatrial.launch.options import SUBCOMMANDS
from seatrial.launch.train_request import resolve
from seatrial.probe.identity import identify
from seatrial.probe.torch_install import find_torch

DOCS = Path(__file__).parents[1] / "docs"
_find_torch = functools.cache(find_torch)
_ASSIGNMENT = re.compile(r"[A-Z_]+=")


def runnable(page: str) -> list[str]:
    """Blocks that begin with ``# runs``, and indented lines that begin with the command."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n# runs\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [*"".join(blocks).splitlines(), *re.findall(r"^    (seatrial .*)$", text, re.MULTILINE)]


def parse(line: str) -> tuple[dict[str, str], click.Context]:
    """What stands before ``seatrial``, and the subcommand with its options as click reads them."""
    words = shlex.split(line)
    environ = {}
    while _ASSIGNMENT.match(words[0]):
        name, _, environ[name] = words.pop(0).partition("=")
    assert words.pop(0) == "seatrial"
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        command = found
    return environ, command.make_context(name, words)


def refusal(line: str) -> str | None:
    """Why it cannot be typed; a training is resolved as well, as ``--dry-run`` does."""
    try:
        environ, context = parse(line)
        if context.command.name == "train":
            values = {option.name: False if option.flag else option.default for option in SUBCOMMANDS["train"].options}
            resolve({**values, **context.params, "device": "cpu"}, identify(environ), environ, debug=False)
    except (AssertionError, SeatrialError, click.ClickException) as error:
        return f"{line}: {error}"
    return None


@pytest.fixture(autouse=True)
def _ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each training looks for torch by starting its Python: the same one for all lines, so one answer will do."""
    monkeypatch.setattr(place, "find_torch", _find_torch)


@pytest.mark.parametrize("page", ["coming-from.md", "training.md"])
def test_every_command_of_a_page_can_be_typed(page: str) -> None:
    lines = runnable(page)
    assert len(lines) >= {"coming-from.md": 20, "training.md": 2}[page]
    assert [told for told in map(refusal, lines) if told] == []


@pytest.mark.parametrize(
    "line",
    [
        "seatrial train digits --no-such-option",
        "seatrial train nothing",
        "seatrial train digits --nnodes 2",
        "seatrial train digits 3 --epochs 3",
        "seatrial no-such-command",
        "torchrun seatrial train digits",
    ],
)
def test_a_command_that_does_not_exist_would_be_seen(line: str) -> None:
    assert refusal(line) is not None
