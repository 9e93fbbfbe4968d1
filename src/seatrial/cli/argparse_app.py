"""The command line of the bundle: argparse, built from the commands in ``cli/commands``. Standard library only."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from seatrial import __version__
from seatrial.cli.command import HELP_COLUMNS, OPTIONS, Command, commands, find_command, options_of
from seatrial.cli.exit import no_such_command, no_such_option, run_and_exit, split_debug, without_secret, without_value
from seatrial.cli.help_sections import closing, help_sections
from seatrial.cli.option_values import read_value
from seatrial.cli.run_command import defaults, run_command
from seatrial.environment import self_location
from seatrial.errors import RequestError
from seatrial.targets.option import Option
from seatrial.util.terminal import wrapped

_HELP = ("-h", "--help")
_LACKS_VALUE = re.compile(r"argument (?:-\w/)?(--[\w-]+)(?:/--[\w-]+)*: expected one argument")


class _HelpFormatter(argparse.HelpFormatter):
    """Help as wide as the terminal, up to a width that is easy to read."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, HELP_COLUMNS) - 2
        super().__init__(prog, max_help_position=width // 3, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(paragraph, width, indent) for paragraph in text.split("\n\n"))


class _Parser(argparse.ArgumentParser):
    """A parser that raises RequestError where argparse would print and exit, and whose help ends in ``closing``."""

    closing = ""
    command: Command

    def error(self, message: str) -> NoReturn:
        lacks = _LACKS_VALUE.fullmatch(message)
        words = without_value(lacks[1], self.command) if lacks else message
        raise RequestError(f"{words}; see {self.prog} --help.")

    def format_help(self) -> str:
        return super().format_help() + self.closing


def main() -> None:
    """Run the arguments after ``python3 seatrial.pyz``, with the messages and exit codes of ``seatrial``, and exit."""
    arguments, debug = split_debug(sys.argv[1:])
    run_and_exit(lambda: _call(arguments, debug=debug), debug=debug)


def _call(arguments: list[str], *, debug: bool) -> int:
    program = Path(sys.argv[0]).name
    if self_location.BUNDLE_PATH is not None and os.pathsep in self_location.BUNDLE_PATH:
        raise RequestError(
            f"{self_location.BUNDLE_PATH}: this path contains {os.pathsep!r}, so the ranks cannot have it in"
            " PYTHONPATH; move the file."
        )
    if not arguments or arguments[0] in _HELP:
        print(_help(program), flush=True)
        return 0
    if arguments[0] == "--version":
        print(f"seatrial, version {__version__}", flush=True)
        return 0
    command = find_command(arguments)
    if command is None:
        raise RequestError(no_such_command(" ".join(arguments[: _num_words(arguments[0])]), commands()))
    typed = _typed(program, command, arguments[command.name.count(" ") + 1 :])
    return run_command(command, typed, os.environ, debug=debug)


def _num_words(first: str) -> int:
    """Return the number of words in the names of the commands that begin with this word."""
    return 2 if any(name.startswith(f"{first} ") for name in commands()) else 1


def parse(program: str, name: str, arguments: list[str]) -> dict[str, Any]:
    """Return the value of each option of the command ``name``, by the option's name. Raises RequestError."""
    command = commands()[name]
    return {**defaults(command), **_typed(program, command, arguments)}


def _typed(program: str, command: Command, arguments: list[str]) -> dict[str, Any]:
    parser = _parser(f"{program} {command.name}", command, arguments)
    namespace, unknown = parser.parse_known_args(arguments)
    if unknown:
        is_option = unknown[0].startswith("-")
        parser.error(
            no_such_option(unknown[0], command) if is_option else f"unexpected argument {without_secret(unknown[0])}"
        )
    values = vars(namespace)
    return {
        option.name: _value(option, values[option.name])
        for option in options_of(command)
        if values.get(option.name) is not None and not (values[option.name] == [] and _collects(option))
    }


def _collects(option: Option) -> bool:
    """Return whether an empty list means that nothing was typed; for a single value it is what argparse makes of --."""
    return option.multiple or option.is_list or option.rest


def _help(program: str) -> str:
    name_width = max(map(len, commands()))
    rows = [f"  {name:{name_width}}  {command.summary}" for name, command in commands().items()]
    return "\n".join(
        [
            f"usage: {program} [--version] [--help] [--debug] COMMAND ...",
            "",
            f"seatrial proves that a cluster can train. To start, type: {program} run",
            "",
            "Commands:",
            *rows,
            "",
            f"{program} COMMAND --help lists the options of a command. --debug shows the traceback of an error.",
        ]
    )


def _parser(program: str, command: Command, arguments: list[str]) -> argparse.ArgumentParser:
    columns = shutil.get_terminal_size().columns
    usage = " ".join([program, "[OPTIONS]", *filter(None, map(_usage_word, options_of(command)))])
    parser = _Parser(
        prog=program,
        usage="\n".join(wrapped(usage, columns - len("usage: "))).replace("%", "%%"),
        description=command.text,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.command = command
    shown = help_sections(command, arguments)
    for heading, options in shown.options.items():
        group = parser.add_argument_group(heading)
        for option in options:
            # Arguments are in the usage line, as with click.
            _add(group, option, option.help if option.flags else argparse.SUPPRESS)
        if heading == OPTIONS:
            group.add_argument(*_HELP, action="help", help="Show this message and exit.")
    listed = {option for options in shown.options.values() for option in options}
    for option in options_of(command):
        if option not in listed:
            _add(parser, option, argparse.SUPPRESS)
    if shown.targets:
        width = max(map(len, shown.targets))
        rows = [f"  {name:{width}}  {words}" for name, words in shown.targets.items()]
        parts = [part for row in rows for part in wrapped(row, columns)]
        parser.closing = "\n".join(["", "Targets:", *parts, "", closing(program), ""])
    return parser


def _usage_word(option: Option) -> str:
    """Return a positional argument as the usage line has it; empty for an option."""
    if option.flags:
        return ""
    word = option.metavar or option.name.upper()
    return word if option.required or option.rest or word.startswith("[") else f"[{word}]"


def _add(parser: argparse._ActionsContainer, option: Option, words: str) -> None:
    settings: dict[str, Any] = {"help": words.replace("%", "%%"), "default": None}
    if option.flag:
        parser.add_argument(*option.flags, dest=option.name, action="store_const", const=True, **settings)
        return
    settings["type"] = partial(read_value, option)
    if option.metavar is not None:
        settings["metavar"] = option.metavar
    elif isinstance(option.type, tuple):
        settings["metavar"] = f"{{{','.join(option.type)}}}"
    if option.rest:
        parser.add_argument(option.name, nargs=argparse.REMAINDER, **settings)
    elif not option.flags:
        one, several = ("?", "*") if not option.required else (None, "+")
        parser.add_argument(option.name, nargs=several if option.multiple else one, **settings)
    else:
        action = "append" if option.multiple or option.is_list else "store"
        parser.add_argument(*option.flags, dest=option.name, action=action, **settings)


def _value(option: Option, value: Any) -> Any:
    if option.rest and value[:1] == ["--"]:
        value = value[1:]
    parts = (value or ()) if option.multiple or option.is_list else [value]
    if not option.rest and any(isinstance(part, list) for part in parts):
        # argparse removes the two dashes from --on=-- and leaves an empty list.
        raise RequestError(f"{option.flags[0]}=--: two dashes are not a value; give one, or leave the option out.")
    if option.is_list:
        return ",".join(value) if value else None
    return tuple(value or ()) if option.multiple or option.rest else value
