"""click's commands out of the tables that the file that travels reads, too."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from seatrial.launch.options import Option, Subcommand

__all__ = ["command"]


def command(name: str, told: Subcommand) -> click.Command:
    """The command; what carries it out is imported when it is called."""

    def call(**options: Any) -> int:
        code: int = importlib.import_module(told.module).run(options, debug=_is_debug())
        return code

    return click.Command(
        name,
        callback=call,
        help=told.text,
        params=[_parameter(option) for option in told.options],
        context_settings={"allow_interspersed_args": not any(option.rest for option in told.options)},
    )


def _is_debug() -> bool:
    return bool(click.get_current_context().find_root().params.get("debug"))


def _parameter(option: Option) -> click.Parameter:
    kind: Any = option.type
    if isinstance(option.type, tuple):
        kind = click.Choice(option.type)
    elif option.type is Path:
        kind = click.Path(path_type=Path)
    if option.rest:
        return click.Argument([option.name], type=click.UNPROCESSED, nargs=-1, metavar=option.metavar)
    if not option.flags:
        return click.Argument([option.name], type=kind, required=False, default=option.default, metavar=option.metavar)
    names = [*option.flags, option.name]
    if option.flag:
        return click.Option(names, is_flag=True, help=option.help)
    return click.Option(
        names, type=kind, default=option.default, multiple=option.multiple, metavar=option.metavar, help=option.help
    )
