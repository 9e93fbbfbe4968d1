"""The report for programs: everything known about the trial, as ``report/schema.json`` describes it."""

from __future__ import annotations

from seatrial.judge.conclude import Conclusion
from seatrial.report.document import document, to_text

FILE = "report.json"


def text(conclusion: Conclusion) -> str:
    """Return the document as JSON."""
    return to_text(document(conclusion))
