"""The report as one line of JSON in a log, for runs whose files are lost: in pods that nobody follows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seatrial.judge.conclude import Conclusion

VARIABLE = "SEATRIAL_REPORT_LINE"
"""Where this variable is set, a trial prints the line."""
PREFIX = "seatrial-report: "


def print_report_line(conclusion: Conclusion, environ: Mapping[str, str]) -> None:
    """Print the report as one line if the environment asks for it."""
    if VARIABLE in environ:
        from seatrial.report.document import document

        # A report that cannot be printed does not change the verdict.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print(PREFIX + json.dumps(document(conclusion)), flush=True)
