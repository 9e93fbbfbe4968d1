"""A command with all values of its options: the typed ones, and those of other sources."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from seatrial.cli.command import Command, options_of
from seatrial.environment.working_folder import require_own_number
from seatrial.errors import RequestError


def run_command(command: Command, typed: Mapping[str, Any], environ: Mapping[str, str], *, debug: bool) -> int:
    """Run the command; return its exit code. ``typed``: the values of the options that were typed, by their names."""
    require_own_number()
    if not command.sources_of:
        return command.run({**defaults(command), **typed}, debug=debug)
    # It loads the targets, which other commands do without.
    from seatrial.cli.option_sources import name_origins, with_origins

    _refuse_without_folder()
    values = with_origins(command.sources_of, typed, environ)
    try:
        return command.run(values, debug=debug)
    except RequestError as error:
        error.args = (name_origins(str(error), command.sources_of, values["origins"]),)
        raise


def _refuse_without_folder() -> None:
    """Raise RequestError where the working folder was removed: ranks are started in it, and the MKL of torch does not
    load there, so that healthy ranks would fail."""
    try:
        os.getcwd()
        # Of a file system that has gone away the path may still be known.
        os.stat(os.curdir)
    except PermissionError as error:
        raise RequestError(
            "this user may not enter the working folder, in which ranks are started; change to another folder."
        ) from error
    except OSError as error:
        raise RequestError(
            f"the working folder was removed, or its file system is gone ({error.strerror}); change to another folder,"
            " or with cd to this one again."
        ) from error


def defaults(command: Command) -> dict[str, Any]:
    """Return the default of each option of a command by its name."""
    return {option.name: option.default_value for option in options_of(command)}
