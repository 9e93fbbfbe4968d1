"""The report for continuous integration: JUnit XML with one test case for each check."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from seatrial.judge.conclude import Conclusion
from seatrial.report.summary import drill, headline, sentence, status_word
from seatrial.util.text import printable

if TYPE_CHECKING:
    from junitparser.junitparser import FinalResult

FILE = "junit.xml"
PACKAGE = "junitparser"

_MOST_LACKING = 8


def text(conclusion: Conclusion) -> str:
    """Return the XML. The test case ``trial`` has the verdict and all findings."""
    from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

    kinds = {"fail": Failure, "skipped": Skipped, "not_asked": Skipped, "not_applicable": Skipped}
    trial, verdict = conclusion.trial, conclusion.verdict
    planted = drill(conclusion)
    suite = TestSuite(planted or "seatrial")
    # A foreign plan may have thousands of checks.
    seconds, sentences = defaultdict[str, float](float), defaultdict[str, list[str]](list)
    for step in trial.steps:
        seconds[step.check] += (step.seconds or 0.0) if step.generation == 0 else 0.0
    for finding in conclusion.findings:
        sentences[finding.check].append(sentence(finding))
    for name, status in verdict.checks.items():
        case = TestCase(printable(name), classname="seatrial.check")
        case.time = seconds[name]
        if status != "pass":
            said = "\n".join(sentences[name]) or _words(conclusion, name, status)
            case.result = [_result(kinds.get(status, Error), said, planted)]
        elif planted:
            case.result = [_result(Skipped, status_word(conclusion, name), planted)]
        suite.add_testcase(case)
    case = TestCase("trial", classname="seatrial")
    words = [
        headline(conclusion),
        *map(printable, verdict.reasons),
        *(f"{finding.severity} {printable(finding.check)}: {sentence(finding)}" for finding in conclusion.findings),
    ]
    if verdict.exit_code != 0:
        case.result = [_result(Failure if verdict.status == "FAIL" else Error, "\n".join(words), planted)]
    elif planted:
        case.result = [_result(Skipped, "\n".join(words), planted)]
    suite.add_testcase(case)
    report = JUnitXml()
    report.add_testsuite(suite)
    xml: bytes = report.tostring()
    return xml.decode()


def _words(conclusion: Conclusion, check: str, status: str) -> str:
    ruling = conclusion.rulings.get(check)
    if ruling is not None and status == "not_applicable":
        return f"{status_word(conclusion, check)} ({printable(ruling.not_applicable)})"
    lacks = ruling.absent[:_MOST_LACKING] if ruling is not None and status != "absent" else ()
    return status_word(conclusion, check) + (f"; lacks {printable(', '.join(lacks))}" if lacks else "")


def _result(kind: type[FinalResult], words: str, planted: str) -> FinalResult:
    """Return the result of a test case, which says first that a fault was planted, if so."""
    words = "\n".join(filter(None, [planted, words]))
    result = kind(words.splitlines()[0])
    result.text = words
    return result
