"""The element builder: a parser reads any text back as one text and any attribute as one attribute."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from event_streams import Stream
from fake_checks import a_plan, fake_load
from hypothesis import example, given
from hypothesis import strategies as st

from seatrial.judge.conclude import conclude
from seatrial.report.markup import Markup, element, fragment
from seatrial.report.page import page
from seatrial.util.text import printable

HOSTILE = "\"'><script>alert(1)</script>&amp;<!-- \x00\x1b[2J\u202e</p>"


class Recorder(HTMLParser):
    """Records tags, attributes and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[object] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parts += [tag, *attrs]

    def handle_endtag(self, tag: str) -> None:
        self.parts.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def read(markup: Markup) -> list[object]:
    recorder = Recorder()
    recorder.feed(markup.text)
    recorder.close()
    return recorder.parts


@given(st.text(min_size=1))
@example(HOSTILE)
@example("\n")
def test_a_text_stays_one_text_and_an_attribute_one_attribute(text: str) -> None:
    shown = printable(text)
    assert read(element("b", text, title=text)) == ["b", ("title", shown), shown, "/b"]
    assert read(element("b", [text, (text,)], class_=[text, text])) == [
        *("b", ("class", f"{shown} {shown}"), shown + shown, "/b")
    ]


def test_only_markup_is_written_unescaped() -> None:
    inner = element("i", "<&>")
    assert inner == Markup("<i>&lt;&amp;&gt;</i>")
    assert element("b", inner, None, 1, 0.5, [inner]).text == f"<b>{inner.text}10.5{inner.text}</b>"
    assert element("b", inner.text).text == "<b>&lt;i&gt;&amp;lt;&amp;amp;&amp;gt;&lt;/i&gt;</b>"
    assert fragment("<", Markup("<br>"), ">").text == "&lt;<br>&gt;"
    with pytest.raises(TypeError):
        "".join([inner])  # type: ignore[list-item]  # Markup is not a str


def test_names_of_attributes() -> None:
    drawn = element("text", x=1, text_anchor="end", class_="n", viewBox="0 0 1 1", title=None)
    assert drawn.text == '<text x="1" text-anchor="end" class="n" viewBox="0 0 1 1"></text>'
    assert element("meta", charset="utf-8").text == '<meta charset="utf-8">\n'


@pytest.mark.parametrize("name", ["", "a b", "a>", 'a"', "a=b", "1"])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        element(name)
    with pytest.raises(ValueError, match="not a name"):
        element("b", **{name: "x"})


def test_a_long_curve_is_drawn_to_its_end() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.begin("compute")
    for step in range(1000):
        stream.measure("compute", 0, 1 / (1 + step), name="loss", step=step)
    (points,) = re.findall(r'<polyline points="([^"]+)"', page(conclude(stream.events, load=fake_load)).text)
    assert len(points.split()) == 1000
    assert re.fullmatch(r"[0-9., -]+", points)
