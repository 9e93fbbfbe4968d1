"""The report as a page for a browser and for print."""

from __future__ import annotations

from seatrial.judge.conclude import Conclusion
from seatrial.report.page import page

FILE = "report.html"


def text(conclusion: Conclusion) -> str:
    """Return the page as HTML."""
    return page(conclusion).text
