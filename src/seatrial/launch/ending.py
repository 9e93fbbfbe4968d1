"""The end of whatever was typed: every failure is one sentence and an exit code."""

from __future__ import annotations

import difflib
import sys
import traceback
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from seatrial.errors import SeatrialError
from seatrial.launch.options import own_words
from seatrial.probe.own_code import heed_sigterm
from seatrial.report import streams
from seatrial.report.text import printable

__all__ = ["end_with", "no_such_command", "without_debug"]


def without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments but ``--debug``, and whether it was among them.

    It may stand anywhere, as a person adds it at the end of the line that failed; but what a script gets is its own.
    """
    count = own_words(arguments)
    own = [argument for argument in arguments[:count] if argument != "--debug"]
    return own + arguments[count:], len(own) < count


def end_with(command: Callable[[], Any], *, debug: bool) -> NoReturn:
    """Carry the command out and exit with its code, or with that of what it raised; tracebacks need ``debug``.

    Exit code 1 says FAIL of a cluster, so nothing else may end with it.
    """
    streams.fill()
    heed_sigterm()
    code: Any
    try:
        code = command()
    except KeyboardInterrupt:
        streams.tell("seatrial: stopped.")
        code = 130
    except SeatrialError as error:
        # What was typed, or stands in a file, may be anything: one line, and nothing that a terminal obeys.
        streams.tell(traceback.format_exc() if debug else f"Error: {printable(str(error))}")
        code = error.exit_code
    except SystemExit as error:
        # What parses arguments ends so after its help, and when a reader has seen enough.
        code = SeatrialError.exit_code if error.code else 0
    except BrokenPipeError:
        code = SeatrialError.exit_code
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


def no_such_command(word: str, names: Collection[str]) -> str:
    """The sentence about a command that nobody knows."""
    near = difflib.get_close_matches(word, names, n=1)
    return f"no such command {word!r}." + (f" Did you mean {near[0]!r}?" if near else f" Commands: {', '.join(names)}.")
