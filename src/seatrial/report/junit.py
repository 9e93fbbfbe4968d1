"""The report for continuous integration: one test case a check, in JUnit's XML."""

from __future__ import annotations

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
from junitparser.junitparser import FinalResult

from seatrial.conductor.conclude import Conclusion
from seatrial.report.summary import headline, sentence, status_word
from seatrial.report.text import printable

__all__ = ["junit"]

_MOST_LACKING = 8


def junit(conclusion: Conclusion) -> str:
    """The XML text. A case of its own, ``trial``, carries the verdict and what belongs to no single check."""
    trial, verdict = conclusion.trial, conclusion.verdict
    suite = TestSuite("seatrial")
    for name, status in verdict.checks.items():
        case = TestCase(printable(name), classname="seatrial.check")
        case.time = sum(step.seconds or 0.0 for step in trial.steps if (step.generation, step.check) == (0, name))
        findings = [finding for finding in conclusion.findings if finding.check == name]
        words = "\n".join(sentence(finding) for finding in findings)
        ruling = conclusion.rulings.get(name)
        lacks = ruling.absent[:_MOST_LACKING] if ruling is not None and status != "absent" else ()
        missing = f"; lacks {printable(', '.join(lacks))}" if lacks else ""
        result = _result(status, words or status_word(conclusion, name) + missing)
        if result is not None:
            case.result = [result]
        suite.add_testcase(case)
    case = TestCase("trial", classname="seatrial")
    words = "\n".join(
        [
            headline(conclusion),
            *map(printable, verdict.reasons),
            *(f"{found.severity} {printable(found.check)}: {sentence(found)}" for found in conclusion.findings),
        ]
    )
    if verdict.status != "PASS" or verdict.interrupted:
        case.result = [_told(Failure if verdict.status == "FAIL" else Error, words)]
    suite.add_testcase(case)
    report = JUnitXml()
    report.add_testsuite(suite)
    text: bytes = report.tostring()
    return text.decode()


def _result(status: str, words: str) -> FinalResult | None:
    if status == "pass":
        return None
    kind = {"fail": Failure, "skipped": Skipped, "not_asked": Skipped}.get(status, Error)
    return _told(kind, words)


def _told(kind: type[FinalResult], words: str) -> FinalResult:
    result = kind(words.splitlines()[0])
    result.text = words
    return result
