"""Damaged events of a trial: a verdict that is never too good, and a report that harms nobody."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from event_streams import SCENES, Event
from fake_checks import fake_load
from fuzz.harness import Target, count, explore
from fuzz.oracle import may_pass
from fuzz.stream_inputs import Damaged, damaged
from live.trials import SCHEMA, events_in, trial

from seatrial.judge.conclude import Conclusion, conclude
from seatrial.judge.trial import Trial
from seatrial.protocol.wire import Decoder
from seatrial.report.console import lines, print_lines
from seatrial.report.document import document, to_text
from seatrial.report.formats.html import text as html
from seatrial.report.formats.junit import text as junit
from seatrial.report.progress import Progress

_WHOLE: dict[str, Trial] = {name: conclude(make().events, load=fake_load).trial for name, make in SCENES.items()}
_VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
_TAGS = {
    "code",
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "h1",
    "h2",
    "h3",
    "p",
    "strong",
    "ul",
    "li",
    "pre",
    "table",
    "tr",
    "th",
    "td",
    "div",
    "span",
    "svg",
    "text",
    "polyline",
}
_ATTRIBUTES = {
    "lang",
    "charset",
    "name",
    "content",
    "http-equiv",
    "class",
    "viewbox",
    "width",
    "height",
    "role",
    "aria-label",
    "x",
    "y",
    "text-anchor",
    "points",
    "stroke-dasharray",
    "opacity",
    "style",
}


class _Page(HTMLParser):
    """Fails on every tag and attribute that the template does not have."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _TAGS, tag
        assert {name for name, _ in attrs} <= _ATTRIBUTES, attrs
        for name, value in attrs:
            assert name != "style" or (value or "").startswith("width: "), value


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _conclude(stream: Damaged, load: Any) -> tuple[list[dict[str, Any]], Conclusion]:
    count("event streams")
    decoder = Decoder()
    messages = list(decoder.lines(stream.lines))
    return messages, conclude(messages, damaged=decoder.damaged, load=load)


def _assert_not_too_good(stream: Damaged, messages: list[Event], conclusion: Conclusion, whole: Trial) -> None:
    if conclusion.verdict.status == "PASS" and not conclusion.verdict.interrupted:
        assert may_pass(messages), "the oracle misses something, and the verdict is PASS"
        assert stream.forged or conclusion.trial == whole, (
            "bytes were changed, and the verdict is PASS of another trial"
        )
    console = lines(conclusion, Path("reports/x/report.html"))
    assert all(line.isprintable() for line in console)
    assert sum(line.startswith("FINAL ACCEPTANCE") for line in console) == 1


def _check(stream: Damaged) -> None:
    messages, conclusion = _conclude(stream, fake_load)
    _assert_not_too_good(stream, messages, conclusion, _WHOLE[stream.scene])


def _check_reports(stream: Damaged) -> None:
    messages, conclusion = _conclude(stream, fake_load)
    _assert_not_too_good(stream, messages, conclusion, _WHOLE[stream.scene])
    _assert_harmless(conclusion)
    progress = _Terminal() if len(messages) % 2 else io.StringIO()
    shown = Progress(progress)
    try:
        for message in messages:
            shown(message)
    finally:
        shown.close()
    _assert_no_foreign_escapes(progress.getvalue())


def _assert_harmless(conclusion: Conclusion) -> None:
    found = document(conclusion)
    _VALIDATOR.validate(found)
    text = to_text(found)
    assert text.isascii()
    assert json.loads(text) == found
    page = html(conclusion)
    assert all(char.isprintable() or char == "\n" for char in page)
    _Page().feed(page)
    root = ElementTree.fromstring(junit(conclusion))
    assert {element.tag for element in root.iter()} <= {
        "testsuites", "testsuite", "testcase", "failure", "error", "skipped",
    }  # fmt: skip
    for terminal in (io.StringIO(), _Terminal()):
        print_lines(lines(conclusion), terminal)
        _assert_no_foreign_escapes(terminal.getvalue())


def _assert_no_foreign_escapes(text: str) -> None:
    """The colours of the console and the redrawing of one line may be in it, and nothing else that a terminal obeys."""
    for piece in text.split("\x1b")[1:]:
        parameters = piece[1:].lstrip("0123456789;?")
        assert piece[:1] == "[", repr(piece[:20])
        assert parameters[:1] in ("m", "K", "A", "l", "h"), repr(piece[:20])
    assert not {"\x07", "\x08", "\x9b", "\u202e", "\u2066"} & set(text)


STREAMS = Target(name="event streams", inputs=damaged(), check=_check)
REPORTS = Target(name="event streams", inputs=damaged(), check=_check_reports)


def test_some_damaged_streams_are_judged_and_never_too_well() -> None:
    explore(STREAMS, 100)


def test_some_damaged_streams_make_reports_that_harm_nobody() -> None:
    explore(REPORTS, 30)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_many_damaged_streams_are_judged_and_never_too_well() -> None:
    explore(STREAMS, 12_000)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_many_damaged_streams_make_reports_that_harm_nobody() -> None:
    explore(REPORTS, 900)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_damaged_events_of_a_real_trial_never_pass(tmp_path: Path) -> None:
    ended = trial(tmp_path)
    assert ended.exit_code == 0, ended.report["findings"]
    decoder = Decoder()
    events = list(decoder.lines((ended.folder / "controller.events").read_bytes()))
    assert may_pass(events)
    assert len(events_in(ended.folder)) > len(events)  # the agents keep their own
    whole = conclude(events).trial

    def check(stream: Damaged) -> None:
        messages, conclusion = _conclude(stream, None)
        _assert_not_too_good(stream, messages, conclusion, whole)

    explore(Target(name="event streams", inputs=damaged({"real": events}), check=check), 2_000)
