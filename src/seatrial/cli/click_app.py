"""The command line of an installed seatrial: click, built from the commands in ``cli/commands``."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import click
from click.core import ParameterSource

from seatrial import __version__
from seatrial.cli.command import HELP_COLUMNS, OPTIONS, Command, commands, options_of
from seatrial.cli.exit import no_such_command, no_such_option, run_and_exit, split_debug, without_secret, without_value
from seatrial.cli.help_sections import HelpSections, closing, help_sections
from seatrial.cli.option_values import read_value
from seatrial.cli.run_command import run_command
from seatrial.errors import RequestError
from seatrial.targets.option import Option
from seatrial.util import streams
from seatrial.util.text import printable

_HELP = "seatrial.help"
"""Key of the parts of the help in a context of click."""
_EXTRA = re.compile(r"Got unexpected extra arguments? \(([^ )]+)")
_MAX_FLAG_COLUMNS = 22
"""A longer flag has a separate row, so that 80 columns leave room for the words."""


def main() -> None:
    """Run the arguments of this process and exit. Failures are one sentence and an exit code, or a traceback."""
    arguments, debug = split_debug(sys.argv[1:])
    run_and_exit(lambda: _call(["--debug", *arguments] if debug else arguments), debug=debug)


def _call(arguments: list[str]) -> Any:
    try:
        return cli.main(args=arguments, prog_name="seatrial", standalone_mode=False)
    except click.Abort:
        raise KeyboardInterrupt from None
    except OSError as error:
        # click ends the line with the ^C of a terminal, which may be gone.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError" and isinstance(error, click.UsageError) and error.ctx:
            # click 8.2 raises it, with the help as its message; older versions print the help and return.
            click.echo(error.ctx.get_help())
            return 0
        import io

        message = io.StringIO()
        error.show(message)
        usage = message.getvalue().partition("Error: ")[0]
        if usage:
            streams.print_status_lines(usage)
            streams.print_status("")
        streams.print_status(f"Error: {printable(error.format_message())}")
        return RequestError.exit_code


class _Group(click.Group):
    """The commands whose names begin with ``prefix``. A command is built when it is called."""

    def __init__(self, *arguments: Any, prefix: str = "", **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._prefix = prefix

    def _rest(self) -> dict[str, Command]:
        """Return the commands by their names without the prefix."""
        names = {name: command for name, command in commands().items() if name.startswith(self._prefix)}
        return {name[len(self._prefix) :]: command for name, command in names.items()}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(no_such_command(error.option_name, self.list_commands(ctx)), ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(dict.fromkeys(name.partition(" ")[0] for name in self._rest()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        rest = self._rest()
        if cmd_name in rest:
            return click_command(rest[cmd_name])
        if cmd_name in self.list_commands(ctx):
            return _Group(cmd_name, prefix=f"{self._prefix}{cmd_name} ")
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in (known := self.list_commands(ctx)):
            raise click.UsageError(no_such_command(args[0], known), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in self._rest().items()])


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_COLUMNS})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """seatrial proves that a cluster can train. To start, type: seatrial run"""


def click_command(command: Command) -> click.Command:
    """Return the command as click needs it."""

    def call(**options: Any) -> int:
        context = click.get_current_context()
        typed = {name for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
        debug = bool(context.find_root().params.get("debug"))
        return run_command(command, {name: options[name] for name in typed}, os.environ, debug=debug)

    return _SectionedCommand(
        command,
        command.name.rpartition(" ")[2],
        callback=call,
        help=command.text,
        params=[_parameter(option) for option in options_of(command)],
        context_settings={"allow_interspersed_args": not command.passes_rest},
    )


class _SectionedCommand(click.Command):
    """A command whose help shows the options under their headings."""

    def __init__(self, command: Command, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._command = command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_HELP] = help_sections(self._command, args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(f"{no_such_option(error.option_name, self._command)}.", ctx) from None
        except click.BadOptionUsage as error:
            if "requires" not in error.message:
                raise
            raise click.UsageError(f"{without_value(error.option_name, self._command)}.", ctx) from None
        except click.UsageError as error:
            if extra := _EXTRA.match(error.message):
                raise click.UsageError(f"unexpected argument {without_secret(extra[1])}.", ctx) from None
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown: HelpSections = ctx.meta[_HELP]
        by_name = {parameter.name: parameter for parameter in self.get_params(ctx)}
        for heading, options in shown.options.items():
            # Arguments are in the usage line; only newer versions of click have a row for them as well.
            records = [by_name[option.name].get_help_record(ctx) for option in options if option.flags]
            rows = [row for row in records if row is not None]
            if heading == OPTIONS and (help_option := self.get_help_option(ctx)):
                rows += filter(None, [help_option.get_help_record(ctx)])
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=_MAX_FLAG_COLUMNS)
        if shown.targets:
            with formatter.section("Targets"):
                formatter.write_dl(list(shown.targets.items()))
            formatter.write(f"\n{closing(ctx.command_path)}\n")


class _Value(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no type arguments
    """The value of an option that is no text, read as in the bundle."""

    def __init__(self, option: Option) -> None:
        self.name = option.name
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return read_value(self._option, value) if isinstance(value, str) else value


class _Choice(click.Choice):  # type: ignore[type-arg]
    """One of some words; help and completion list them."""

    def __init__(self, option: Option, words: tuple[str, ...]) -> None:
        super().__init__(words)
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return read_value(self._option, value)


class _Path(click.Path):
    """The path of a file or folder; completion lists them."""

    def __init__(self, option: Option) -> None:
        super().__init__()
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return read_value(self._option, value) if isinstance(value, str) else value


def _join(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> str | None:
    return ",".join(values) if values else None


def _parameter(option: Option) -> click.Parameter:
    from pathlib import Path

    kind: Any = option.type
    if isinstance(option.type, tuple):
        kind = _Choice(option, option.type)
    elif option.type is Path:
        kind = _Path(option)
    elif option.type is not str:
        kind = _Value(option)
    if option.rest:
        return click.Argument([option.name], type=click.UNPROCESSED, nargs=-1, metavar=option.metavar)
    if not option.flags:
        # click treats a default of None as a value, so a required argument must have no default at all.
        default = {} if option.required else {"default": option.default}
        return click.Argument(
            [option.name],
            type=kind,
            required=option.required,
            nargs=-1 if option.multiple else 1,
            metavar=option.metavar,
            **default,
        )
    names = [*option.flags, option.name]
    if option.flag:
        return click.Option(names, is_flag=True, help=option.help)
    if option.is_list:
        return click.Option(names, type=kind, multiple=True, metavar=option.metavar, help=option.help, callback=_join)
    return click.Option(
        names, type=kind, default=option.default, multiple=option.multiple, metavar=option.metavar, help=option.help
    )
