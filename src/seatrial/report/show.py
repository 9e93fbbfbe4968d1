"""The end of a command that judged a trial: what is printed, and the exit code."""

from __future__ import annotations

import sys

from seatrial.conductor.conclude import Conclusion
from seatrial.report.console import lines, print_lines
from seatrial.report.document import document, to_text
from seatrial.report.streams import tell
from seatrial.report.text import printable
from seatrial.report.write import Written

__all__ = ["show", "wrong_request"]


def show(conclusion: Conclusion, written: Written | None, *, as_json: bool) -> int:
    """Print the report on standard output, for people or as JSON; returns the exit code of the verdict.

    A report that cannot be printed changes no verdict; a line on standard error then says where it is.
    """
    text = to_text(document(conclusion)) if as_json else ""
    told = [] if as_json else lines(conclusion, written.best if written else None)
    try:
        if sys.stdout is None:
            raise OSError("standard output is closed")
        if as_json:
            sys.stdout.write(text)
        else:
            print_lines(told, sys.stdout)
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        where = f"it is in {written.json if as_json else written.best}" if written else "no file of it was written"
        why = getattr(error, "strerror", None) or error
        tell(printable(f"seatrial: {conclusion.verdict.status}; the report could not be printed ({why}), {where}."))
    return conclusion.verdict.exit_code


def wrong_request(conclusion: Conclusion, refused: str | None = None) -> str | None:
    """What was found wrong with the request, when that is why nothing was decided: ``refused``, else what ranks say."""
    if conclusion.verdict.status != "INCONCLUSIVE" or conclusion.verdict.interrupted:
        return None
    told = [refused] if refused else [error.message for error in conclusion.trial.errors if error.cause == "request"]
    return printable(told[0]) if told else None
