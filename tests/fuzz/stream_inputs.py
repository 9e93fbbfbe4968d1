"""Streams of events as they come out of a broken disk, a mixed log, or the hands of somebody who means harm."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from event_streams import SCENES, Event
from foreign_lines import line_of
from fuzz.hostile_values import HOSTILE_TEXTS, RAW_NUMBERS, VALUES
from hypothesis import strategies as st

_EVENTS = {name: make().events for name, make in SCENES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """The rest of a stream after damage."""

    scene: str
    lines: bytes
    forged: bool
    """Whether somebody wrote lines with right checksums; else bytes were only lost, changed, moved or doubled."""


def damaged(scenes: dict[str, list[Event]] | None = None) -> st.SearchStrategy[Damaged]:
    """Streams of these scenes, all that the tests know where none is given, after some mutations."""
    return _damaged(scenes or _EVENTS)


@st.composite
def _damaged(draw: st.DrawFn, scenes: dict[str, list[Event]]) -> Damaged:
    # Most scenes are no PASS to begin with, and what must not become one is the sound one with something wrong.
    scene = draw(st.sampled_from([name for name in sorted(scenes) if name == "healthy"] * len(scenes) + sorted(scenes)))
    events = scenes[scene]
    lines = [line_of(event) for event in events]
    forged = False
    for _ in range(draw(st.integers(0, 3))):
        if not lines:
            break
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["lose", "lose", "double", "swap", "cut", "flip", "glue", *["forge"] * 6]))
        if how == "lose":
            del lines[at : at + draw(st.sampled_from([1, 1, 1, 3, 20]))]
        elif how == "double":
            lines.insert(draw(st.integers(0, len(lines))), lines[at])
        elif how == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif how == "cut":
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))] + draw(st.sampled_from([b"", b"\n", b"\r\n"]))
        elif how == "flip":
            lines[at] = _flip(draw, lines[at])
        elif how == "glue":
            lines[at] = draw(st.sampled_from([b"0: ", b"\x1b[31m", b"@seatrial1 ", b"\0", b"\xff"])) + lines[at]
        else:
            forged = True
            number = draw(st.integers(0, len(events) - 1))
            line = _forged(draw, copy.deepcopy(events[number]))
            if len(lines) == len(events) and draw(st.integers(0, 3)):
                lines[number] = line
            else:
                lines.insert(at, line)
    return Damaged(scene=scene, lines=b"".join(lines), forged=forged)


def _flip(draw: st.DrawFn, line: bytes) -> bytes:
    if not line:
        return line
    changed = bytearray(line)
    changed[draw(st.integers(0, len(line) - 1))] ^= draw(st.integers(1, 255))
    return bytes(changed)


def _forged(draw: st.DrawFn, event: Event) -> bytes:
    """The event with some of its fields, at any depth, as nobody expects them; its checksum is right."""
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        place: Any = event
        while True:
            inner = [
                value
                for value in (place.values() if isinstance(place, dict) else place)
                if isinstance(value, (dict, list)) and value
            ]
            if not inner or draw(st.booleans()):
                break
            place = draw(st.sampled_from(inner))
        key = draw(st.sampled_from(sorted(place))) if isinstance(place, dict) else draw(st.integers(0, len(place) - 1))
        kind = draw(st.sampled_from(["value", "value", "text", "number", "gone", "number as text"]))
        if kind == "gone":
            del place[key]
        elif kind == "value":
            place[key] = draw(VALUES)
        elif kind == "text":
            place[key] = draw(st.sampled_from(HOSTILE_TEXTS))
        elif kind == "number":
            place[key] = "@@number@@"
        else:
            place[key] = str(place[key])
        if not place:
            break
    line = line_of(event)
    if b'"@@number@@"' in line:
        body = line.partition(b" ")[2].partition(b" ")[2].rstrip(b"\n").decode(errors="surrogatepass")
        line = line_of(body.replace('"@@number@@"', draw(st.sampled_from(RAW_NUMBERS))))
    return line
