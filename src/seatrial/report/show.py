"""The end of a command that judged a trial: it prints the report and returns the exit code."""

from __future__ import annotations

import sys
from collections.abc import Collection

from seatrial.judge.conclude import Conclusion
from seatrial.report.console import lines, print_lines
from seatrial.report.document import document, to_text
from seatrial.report.view import View
from seatrial.report.write import Written
from seatrial.util.streams import print_status
from seatrial.util.terminal import columns_of
from seatrial.util.text import printable


def show(
    conclusion: Conclusion,
    written: Written | None,
    *,
    as_json: bool,
    verbose: bool = False,
    quiet: bool = False,
    foreign: Collection[str] | None = None,
) -> int:
    """Print the report on standard output, for people or as JSON, and return the exit code of the verdict.

    A report that cannot be printed, or copied to where the newest one is, does not change the verdict; a line on
    standard error then says where it is.
    ``foreign``: as of ``View``.
    """
    text = to_text(document(conclusion)) if as_json else ""
    view = View(columns=columns_of(sys.stdout), is_verbose=verbose, is_quiet=quiet, foreign=foreign)
    report_lines = [] if as_json else lines(conclusion, written.best if written else None, view)
    try:
        if sys.stdout is None:
            raise OSError("standard output is closed")
        if as_json:
            sys.stdout.write(text)
        else:
            print_lines(report_lines, sys.stdout)
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        path = f"it is in {written.document if as_json else written.best}" if written else "no file of it was written"
        reason = getattr(error, "strerror", None) or error
        print_status(f"seatrial: {conclusion.verdict.status}; the report could not be printed ({reason}), {path}.")
    if written and written.not_copied:
        print_status(f"seatrial: {printable(written.not_copied)}")
    return conclusion.verdict.exit_code


def wrong_request(conclusion: Conclusion) -> str | None:
    """Return what is wrong with the request, if that is why nothing was decided: in a note, else in a rank's error."""
    if conclusion.verdict.status != "INCONCLUSIVE" or conclusion.verdict.interrupted:
        return None
    return next(map(printable, conclusion.trial.wrong_requests()), None)
