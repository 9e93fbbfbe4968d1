"""What reports say about each trial of the tests, word for word. After an intended change, read the difference of:

SEATRIAL_RENEW_GOLDEN=1 pytest tests/judge/test_word_for_word.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from event_streams import SCENES
from fake_checks import fake_load
from judge.more_scenes import MORE_SCENES

from seatrial.evidence.findings import Finding
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.report.document import document, to_text

ALL = {**SCENES, **MORE_SCENES}
_FOLDER = Path(__file__).parent / "golden"
_WHOLE = ("healthy", "second fault")
"""The trials whose whole report is compared."""


def _concluded(name: str) -> Conclusion:
    return conclude(ALL[name]().events, load=fake_load)


def _told(finding: Finding) -> list[str]:
    culprit = finding.culprit
    return [
        f"{finding.severity} in {finding.check}: {finding.what}",
        f"  {culprit.kind} {culprit.name!r} ranks {list(culprit.ranks)} nodes {list(culprit.nodes)}",
        *(f"  | {line}" for text in finding.evidence for line in text.splitlines()),
        f"  > {finding.action}".rstrip(),
    ]


def _text(name: str) -> str:
    conclusion = _concluded(name)
    verdict = conclusion.verdict
    lines = [
        f"== {name}: {verdict.status} {verdict.exit_code}",
        f"checks {dict(verdict.checks)}; {verdict.judged} of {verdict.measurements} judged",
        *(f"- {reason}" for reason in (*verdict.reasons, *verdict.partial, *verdict.unlimited)),
    ]
    return "\n".join([*lines, *(line for finding in conclusion.findings for line in _told(finding)), ""])


def _compared(file: Path, text: str) -> None:
    if os.environ.get("SEATRIAL_RENEW_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_findings_are_as_they_were() -> None:
    _compared(_FOLDER / "findings.txt", "\n".join(_text(name) for name in ALL))


@pytest.mark.parametrize("name", _WHOLE)
def test_report_is_as_it_was(name: str) -> None:
    _compared(_FOLDER / f"{name.replace(' ', '_')}.json", to_text(document(_concluded(name))))
