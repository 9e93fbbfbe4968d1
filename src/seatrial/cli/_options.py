"""click's commands out of the tables that the file that travels reads, too."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from seatrial.launch.option import Option
from seatrial.launch.options import Subcommand

__all__ = ["command"]


def command(name: str, told: Subcommand) -> click.Command:
    """The command; what carries it out is imported when it is called."""

    def call(**options: Any) -> int:
        code: int = importlib.import_module(told.module).run(options, debug=_is_debug())
        return code

    return _Grouped(
        told,
        name,
        callback=call,
        help=told.text,
        params=[_parameter(option) for option in told.options],
        context_settings={"allow_interspersed_args": not any(option.rest for option in told.options)},
    )


class _Grouped(click.Command):
    """Its help shows the options under their headings."""

    def __init__(self, told: Subcommand, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._told = told

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        by_name = {parameter.name: parameter for parameter in self.get_params(ctx)}
        for heading, options in self._told.groups.items():
            # What is no option stands in the usage line, and newer versions of click have a row for it as well.
            shown = [by_name[option.name].get_help_record(ctx) for option in options if option.flags]
            rows = [row for row in shown if row is not None]
            if options is self._told.own and (own_help := self.get_help_option(ctx)):
                rows += filter(None, [own_help.get_help_record(ctx)])
            with formatter.section(heading):
                formatter.write_dl(rows)


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
