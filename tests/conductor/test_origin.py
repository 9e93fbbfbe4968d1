"""The messages that a node may send, and about which ranks."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from seatrial.conductor.origin import CONTROLLERS_KINDS, NumberError, OriginError, require_order, validate_origin
from seatrial.protocol.events import Event

_NODES = {0: 0, 1: 0, 2: 1, 3: 1}
_EVENT = {"run": "r", "seq": 0, "t": 0.0, "kind": "done"}


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "killed", "gen": 0},
        {"kind": "status", "ranks": {"2": ["R", 0.0, 1, "x"], "3": ["R", 0.0, 1, "x"]}},
        {"kind": "status", "ranks": 3},
        {**_EVENT, "src": "node1"},
        {**_EVENT, "src": "node1", "rank": 3},
        {**_EVENT, "src": "rank2.0", "rank": 2},
        {**_EVENT, "src": "rank3.1", "gen": 1},
    ],
)
def test_a_node_may_send_about_itself_and_its_ranks(message: dict[str, Any]) -> None:
    validate_origin(1, message, _NODES, "r")


@pytest.mark.parametrize(
    "message",
    [
        {**_EVENT, "src": "conductor"},
        {**_EVENT, "src": "node0"},
        {**_EVENT, "src": "node01"},
        {**_EVENT, "src": "recorder1"},
        {**_EVENT, "src": "rank0.0"},
        {**_EVENT, "src": "rank4.0"},
        {**_EVENT, "src": "rank٢.0"},
        {**_EVENT, "src": None},
        {**_EVENT, "src": ["node1"]},
        _EVENT,
        {"src": "node0", "kind": "done"},
        {**_EVENT, "src": "node1", "run": "another"},
        {**_EVENT, "src": "node1", "rank": 0},
        {**_EVENT, "src": "node1", "rank": True},
        {**_EVENT, "src": "rank2.0", "rank": 3},
        {**_EVENT, "src": "rank2.1", "gen": 0},
        *({**_EVENT, "src": "node1", "kind": kind} for kind in sorted(CONTROLLERS_KINDS)),
        {**_EVENT, "src": "rank2.0", "kind": "outcome"},
        {**_EVENT, "src": "node1", "rank": 0, "t": -1},
        {**_EVENT, "src": "rank2.0", "rank": 0, "seq": None},
        {"kind": "done", "rank": 1},
        {"kind": "done", "rank": 2},
        {"kind": "measurements", "gen": 0},
        {"kind": "end"},
        {"kind": "status", "ranks": {"2": [], "1": []}},
        {"kind": "status", "ranks": {"9": []}},
    ],
)
def test_a_message_about_others_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(OriginError, match=r"node 1 sent|rank ?2[.1]* sent"):
        validate_origin(1, message, _NODES, "r")


@pytest.mark.parametrize("field", [{"seq": "x"}, {"seq": -1}, {"seq": None}, {"t": "x"}, {"t": 1e300}, {"t": None}])
def test_an_event_has_a_number_and_a_time(field: dict[str, Any]) -> None:
    """What the rounds of a check read while the trial runs is what its judge reads."""
    with pytest.raises(ValueError, match=next(iter(field))):
        validate_origin(1, {**_EVENT, "src": "node1", **field}, _NODES, "r")


def test_the_kinds_of_the_controller_are_those_of_its_types() -> None:
    says = {
        get_args(get_type_hints(event)["kind"])[0]: (event.__doc__ or "").rpartition("(")[2]
        for event in get_args(Event)
    }
    theirs = {kind for kind, sender in says.items() if sender.startswith("con") or kind == "trouble"}
    assert theirs == CONTROLLERS_KINDS


@pytest.mark.parametrize(("number", "is_refused"), [(0, True), (6, True), (7, True), (8, False), (900, False)])
def test_the_numbers_of_a_source_rise(number: int, is_refused: bool) -> None:
    """A gap is found in the report; a lower number would be sorted before what the conductor acted on."""
    numbers = {"node1": 7, "node2": 10_000}
    event = {**_EVENT, "src": "node1", "seq": number}
    require_order({**event, "src": "rank2.0"}, numbers)
    require_order({"kind": "status", "ranks": {}}, numbers)
    if is_refused:
        with pytest.raises(NumberError, match=f"node1 sent event {number} after event 7"):
            require_order(event, numbers)
    else:
        require_order(event, numbers)
