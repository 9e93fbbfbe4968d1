"""The end of a command that judged a trial: what is printed, and the exit code."""

from __future__ import annotations

import sys

from seatrial.conductor.conclude import Conclusion
from seatrial.report.console import lines, print_lines
from seatrial.report.document import document, to_text
from seatrial.report.text import printable
from seatrial.report.write import Written

__all__ = ["show", "wrong_request"]


def show(conclusion: Conclusion, written: Written | None, *, as_json: bool) -> int:
    """Print the report on standard output, for people or as JSON; returns the exit code of the verdict."""
    if as_json:
        sys.stdout.write(to_text(document(conclusion)))
    else:
        print_lines(lines(conclusion, written.html if written else None), sys.stdout)
    sys.stdout.flush()
    return conclusion.verdict.exit_code


def wrong_request(conclusion: Conclusion) -> str | None:
    """What the ranks found wrong with the request, when that is why nothing was decided."""
    if conclusion.verdict.status != "INCONCLUSIVE" or conclusion.verdict.interrupted:
        return None
    told = [error.message for error in conclusion.trial.errors if error.cause == "request"]
    return printable(told[0]) if told else None
