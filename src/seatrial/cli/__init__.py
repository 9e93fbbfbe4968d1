"""The command line: parse, call, print. Commands are imported when they are used."""

from __future__ import annotations

import io
import sys
import traceback
from typing import Any

import click

from seatrial import __version__
from seatrial.errors import RequestError, SeatrialError
from seatrial.report import streams
from seatrial.report.text import printable

__all__ = ["cli", "main"]

_COMMANDS = {
    "run": "the acceptance trial: a verdict and a report",
    "report": "rebuild a report from events or raw logs",
    "plan": "show what a level or a plan file asks, and where each limit comes from",
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
            import difflib

            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Commands: {', '.join(_COMMANDS)}."
            raise click.UsageError(f"no such command {args[0]!r}.{hint}", ctx)
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
    """The entry point: every failure is one sentence and an exit code; tracebacks need --debug.

    Exit code 1 says FAIL of a cluster, so nothing else may end with it.
    """
    streams.fill()
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if debug and arguments[0] != "--debug":
        # It may stand anywhere, as a person adds it at the end of the line that failed.
        arguments = ["--debug", *(argument for argument in arguments if argument != "--debug")]
    code: Any
    try:
        code = cli.main(args=arguments, prog_name="seatrial", standalone_mode=False)
    except click.ClickException as error:
        words = io.StringIO()
        error.show(words)
        usage = words.getvalue().partition("Error: ")[0]
        streams.tell(f"{usage}Error: {printable(error.format_message())}")
        code = RequestError.exit_code
    except (click.Abort, KeyboardInterrupt):
        streams.tell("seatrial: stopped.")
        code = 130
    except SeatrialError as error:
        # What was typed, or stands in a file, may be anything: one line, and nothing that a terminal obeys.
        streams.tell(traceback.format_exc() if debug else f"Error: {printable(str(error))}")
        code = error.exit_code
    except SystemExit as error:
        # click's answer, 1, to a reader that has seen enough.
        code = SeatrialError.exit_code if error.code else 0
    except Exception as error:
        streams.tell(
            traceback.format_exc()
            if debug
            else f"Error: a mistake inside seatrial ({type(error).__name__}: {printable(str(error))});"
            " run it again with --debug to see where, and report that."
        )
        code = SeatrialError.exit_code
    streams.settle()
    sys.exit(code if isinstance(code, int) else 0)
