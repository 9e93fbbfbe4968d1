"""The command line of the file that travels: the standard library only, from the tables that click's is made from."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from seatrial import __version__
from seatrial.errors import RequestError
from seatrial.launch.ending import end_with, no_such_command, without_debug
from seatrial.launch.option import Option
from seatrial.launch.options import SUBCOMMANDS
from seatrial.probe import own_code

__all__ = ["main", "parse"]

_HELP = ("-h", "--help")
_INSTALLED = ("report", "plan", "data", "bundle")


class _Parser(argparse.ArgumentParser):
    """Raises what it would print and exit with."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{message}; see {self.prog} --help.")


def main() -> None:
    """``python3 seatrial.pyz run ...``: exit codes and sentences as of ``seatrial run``."""
    arguments, debug = without_debug(sys.argv[1:])
    end_with(lambda: _call(arguments, debug=debug), debug=debug)


def _call(arguments: list[str], *, debug: bool) -> int:
    program = Path(sys.argv[0]).name
    if own_code.BUNDLE is not None and os.pathsep in own_code.BUNDLE:
        raise RequestError(
            f"{own_code.BUNDLE}: a path with {os.pathsep!r} in it cannot be handed to the processes that are started"
            " (PYTHONPATH); move the file."
        )
    if not arguments or arguments[0] in _HELP:
        print(_help(program), flush=True)
        return 0
    if arguments[0] == "--version":
        print(f"seatrial, version {__version__}", flush=True)
        return 0
    name, *rest = arguments
    if name in _INSTALLED:
        raise RequestError(f"{name}: this file has {', '.join(SUBCOMMANDS)}; an installed seatrial has that command.")
    if name not in SUBCOMMANDS:
        raise RequestError(no_such_command(name, SUBCOMMANDS))
    code: int = importlib.import_module(SUBCOMMANDS[name].module).run(parse(program, name, rest), debug=debug)
    return code


def parse(program: str, name: str, arguments: list[str]) -> dict[str, Any]:
    """The values of the options of that subcommand by their names. Raises RequestError."""
    told = vars(_parser(f"{program} {name}", name).parse_args(arguments))
    return {option.name: _value(option, told[option.name]) for option in SUBCOMMANDS[name].options}


def _help(program: str) -> str:
    width = max(map(len, SUBCOMMANDS))
    commands = [f"  {name:{width}}  {told.help}" for name, told in SUBCOMMANDS.items()]
    return "\n".join(
        [
            f"usage: {program} [--version] [--help] [--debug] COMMAND ...",
            "",
            "seatrial proves that a cluster can train.",
            "",
            "Commands:",
            *commands,
            "",
            f"{program} COMMAND --help lists its options. --debug shows the traceback of an error.",
        ]
    )


def _parser(program: str, name: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program,
        description=SUBCOMMANDS[name].text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    for heading, options in SUBCOMMANDS[name].groups.items():
        group = parser.add_argument_group(heading)
        for option in options:
            _add(group, option)
        if options is SUBCOMMANDS[name].own:
            group.add_argument(*_HELP, action="help", help="Show this message and exit.")
    return parser


def _add(parser: argparse._ArgumentGroup, option: Option) -> None:
    told: dict[str, Any] = {"help": option.help.replace("%", "%%"), "default": option.default}
    if option.flag:
        parser.add_argument(*option.flags, dest=option.name, action="store_true", help=told["help"])
        return
    if isinstance(option.type, tuple):
        told["choices"] = option.type
    else:
        told["type"] = option.type
    if option.metavar is not None:
        told["metavar"] = option.metavar
    if option.rest:
        parser.add_argument(option.name, nargs=argparse.REMAINDER, **told)
    elif not option.flags:
        parser.add_argument(option.name, nargs="?", **told)
    else:
        parser.add_argument(*option.flags, dest=option.name, action="append" if option.multiple else "store", **told)


def _value(option: Option, value: Any) -> Any:
    if option.rest and value[:1] == ["--"]:
        value = value[1:]
    if not option.rest and any(isinstance(each, list) for each in (value or () if option.multiple else [value])):
        # argparse takes the two dashes out of --on=-- and leaves an empty list.
        raise RequestError(f"{option.flags[0]}=--: two dashes are no value.")
    return tuple(value or ()) if option.multiple or option.rest else value
