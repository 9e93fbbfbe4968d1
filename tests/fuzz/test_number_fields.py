"""Each number of each kind of event at its extremes: a verdict in bounded time, and reports that harm nobody."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from by_day import by_day
from event_streams import SCENES, Event, Stream
from fake_checks import fake_load
from foreign_lines import line_of
from fuzz.harness import watched
from fuzz.oracle import may_pass
from fuzz.test_fuzz_streams import _assert_harmless

from seatrial.judge.conclude import conclude
from seatrial.protocol.wire import Decoder

_EXTREMES = [2**62, 10**7, -1, 10**400, 1e308]
Place = tuple[str | int, ...]


def _numbers(value: Any, place: Place = ()) -> Iterator[Place]:
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, entry in entries:
            yield from _numbers(entry, (*place, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place


def _with(events: list[Event], at: int, place: Place, number: float) -> list[Event]:
    changed: Any = copy.deepcopy(events[at])
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = number
    return [*events[:at], changed, *events[at + 1 :]]


def _kinds_of_numbers() -> list[tuple[list[Event], int, Place]]:
    """The first number of each kind, in the smallest stream that has it: (events, number of its event, its place)."""
    first: dict[tuple[str, ...], tuple[list[Event], int, Place]] = {}
    for events in sorted((make().events for make in SCENES.values()), key=len):
        for at, event in enumerate(events):
            for place in _numbers(event):
                name = (event["kind"], *("*" if isinstance(key, int) else key for key in place))
                first.setdefault(name, (events, at, place))
    return list(first.values())


@pytest.mark.parametrize("number", by_day(_EXTREMES, 0, 2, 3), ids=["2**62", "1e7", "-1", "1e400", "1e308"])
def test_a_number_at_its_extreme_is_judged_in_bounded_time(number: float) -> None:
    places = _kinds_of_numbers()
    assert len(places) > 50
    for events, at, place in places:
        with watched((events[at]["kind"], place, number)):
            decoder = Decoder()
            messages = list(decoder.lines(b"".join(map(line_of, _with(events, at, place, number)))))
            conclusion = conclude(messages, damaged=decoder.damaged, load=fake_load)
            _assert_harmless(conclusion)
        if conclusion.verdict.status == "PASS":
            assert may_pass(messages), (events[at]["kind"], place)


@pytest.mark.parametrize("number", [16, 2**62])
@pytest.mark.parametrize("kind", ["exit", "generation", "trouble", "step", "step_end", "error", "measurements"])
def test_a_generation_that_cannot_be_is_damage(kind: str, number: int) -> None:
    found = [
        (make().events, at)
        for make in SCENES.values()
        for at, event in enumerate(make().events)
        if event["kind"] == kind and "gen" in event
    ]
    assert found
    events, at = found[0]
    with watched(kind):
        conclusion = conclude(_with(events, at, ("gen",), number), load=fake_load)
    assert any("damaged events" in line for line in conclusion.trial.missing)
    assert conclusion.verdict.status != "PASS"


@pytest.mark.parametrize("how", ["late", "lost"])
def test_many_suspects_are_judged_in_bounded_time(how: str) -> None:
    """A folder of somebody else may have any number of them."""
    num_ranks = 15_000
    stream = Stream()
    stream.events[0]["job"] |= {"nodes": num_ranks, "world_size": num_ranks}
    begin = next(event for event in stream.events if event["kind"] == "generation")
    begin["ranks"] = [[rank, rank, 0] for rank in range(num_ranks)]
    for node in range(2, num_ranks):
        stream.send(f"node{node}", "node", node=node, hostname=f"gpu-{node}", address="10.0.0.9", pid=1, cores=1)
    stream.until("training")
    suspects = range(num_ranks if how == "late" else num_ranks // 2)
    what: dict[str, Any] = {"how": how, "phase": "training/step 1"}
    stream.trouble(*({"rank" if how == "late" else "node": number, **what} for number in suspects), outcome="deadline")
    with watched(how):
        conclusion = conclude(stream.events, load=fake_load)
    assert conclusion.findings
