"""The command line: parse, call, print. Commands are imported when they are used."""

from __future__ import annotations

import io
import sys
from typing import Any

import click

from seatrial import __version__
from seatrial.errors import RequestError
from seatrial.launch.ending import end_with, no_such_command, without_debug
from seatrial.launch.options import SUBCOMMANDS
from seatrial.report import streams
from seatrial.report.text import printable

__all__ = ["cli", "main"]

_COMMANDS = {
    **{name: told.help for name, told in SUBCOMMANDS.items()},
    "report": "rebuild a report from events or raw logs",
    "plan": "show what a level or a plan file asks, and where each limit comes from",
    "data": "fetch the data sets that trainings need",
    "bundle": "write the one file that travels: the trial without an installation",
}


class _Lazy(click.Group):
    """Imports a command when it is called; ``--help`` of the group imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        import importlib

        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"seatrial.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS:
            raise click.UsageError(no_such_command(args[0], _COMMANDS), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """seatrial proves that a cluster can train."""


def main() -> None:
    """The entry point: every failure is one sentence and an exit code; tracebacks need --debug."""
    arguments, debug = without_debug(sys.argv[1:])
    end_with(lambda: _call(["--debug", *arguments] if debug else arguments), debug=debug)


def _call(arguments: list[str]) -> Any:
    try:
        return cli.main(args=arguments, prog_name="seatrial", standalone_mode=False)
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        words = io.StringIO()
        error.show(words)
        usage = words.getvalue().partition("Error: ")[0]
        streams.tell(f"{usage}Error: {printable(error.format_message())}")
        return RequestError.exit_code
