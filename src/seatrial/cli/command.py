"""A command of seatrial as data. Each file in ``cli/commands`` defines one; click and argparse are built from it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from seatrial.targets.option import Option

HELP_COLUMNS = 110
"""The widest help, on terminals with more columns."""
OPTIONS = "Options"
"""The heading of the options of a command itself, --help among them."""


class Run(Protocol):
    """The function that runs a command."""

    def __call__(self, options: Mapping[str, Any], *, debug: bool) -> int:
        """Return the exit code.

        Args:
            options: value of each option by its name.
            debug: print tracebacks.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: the words after ``seatrial``, or after the name of the bundle.

    COMMAND = Command(name="hello", summary="greet", text="Greet NAME.", options=options, run=run)
    """

    name: str
    """One word, or two for a command of a group: ``run``, ``plan show``."""
    order: int = 100
    """Position in the list of commands; commands of equal order follow one another by name."""
    summary: str
    """One line for the list of commands."""
    text: str
    """Paragraphs at the top of the help of the command."""
    options: Callable[[], Mapping[str, tuple[Option, ...]]]
    """Returns the options by the heading under which help shows them. Called only for the command that runs: the
    list of commands loads no target."""
    run: Run
    sources_of: str = ""
    """The command whose options may come from variables and files (``cli/option_sources.py``); empty: all are typed."""
    passes_rest: bool = False
    """Whether all words after its first argument belong to a script."""


def options_of(command: Command) -> tuple[Option, ...]:
    """Return all options of a command, each once."""
    return tuple(option for group in command.options().values() for option in group)


@cache
def commands() -> Mapping[str, Command]:
    """Return every command by its name, in the order of help: one for each module of ``cli/commands``, in a zip too."""
    package = importlib.import_module("seatrial.cli.commands")
    modules = [f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    unsorted: list[Command] = [importlib.import_module(name).COMMAND for name in modules]
    return {command.name: command for command in sorted(unsorted, key=lambda command: (command.order, command.name))}


def find_command(words: Sequence[str]) -> Command | None:
    """Return the command that the first words name, or None."""
    known = commands()
    return known.get(" ".join(words[:2])) or known.get(" ".join(words[:1]))


def with_dashes(word: str) -> str:
    """Return an option that is typed with underscores, as for torchrun, with dashes; other words as they are."""
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else word


def num_own_words(arguments: Sequence[str]) -> int:
    """Return the number of arguments before the script of ``launch``: the rest belong to the script."""
    takes_value: set[str] | None = None
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if takes_value is not None and (word == "--" or not word.startswith("-")):
            return index
        if takes_value is None and not word.startswith("-"):
            command = commands().get(word)
            options = () if command is None or not command.passes_rest else options_of(command)
            if not options:
                break
            takes_value = {flag for option in options if not option.flag for flag in option.flags}
        index += 2 if takes_value and with_dashes(word) in takes_value else 1
    return len(arguments)
