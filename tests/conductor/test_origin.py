"""The messages that a node may send, and about which ranks."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from conductor.simulated_agents import SimulatedFleet
from conductor.simulated_records import EPOCH_S

from seatrial.conductor.origin import (
    CONTROLLERS_KINDS,
    NumberError,
    OriginError,
    take_number,
    validate_form,
    validate_origin,
)
from seatrial.protocol.events import Event

_NODES = {0: 0, 1: 0, 2: 1, 3: 1}
_EVENT = {"run": "r", "seq": 0, "t": 0.0, "kind": "done"}


def _receive(message: dict[str, Any]) -> None:
    """Validate a message of node 1."""
    validate_origin(1, message, _NODES, "r")
    validate_form(message)


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "killed", "gen": 0},
        {"kind": "status", "ranks": {"2": ["R", 0.0, 1, "x", 0.0], "3": ["R", 0.0, 1, "x", 0.0]}},
        {"kind": "status", "ranks": 3},
        {**_EVENT, "src": "node1"},
        {**_EVENT, "src": "node1", "rank": 3},
        {**_EVENT, "src": "rank2.0", "rank": 2},
        {**_EVENT, "src": "rank3.1", "gen": 1},
    ],
)
def test_a_node_may_send_about_itself_and_its_ranks(message: dict[str, Any]) -> None:
    _receive(message)


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
        _receive(message)


@pytest.mark.parametrize("field", [{"seq": "x"}, {"seq": -1}, {"seq": None}, {"t": "x"}, {"t": 1e300}, {"t": None}])
def test_an_event_has_a_number_and_a_time(field: dict[str, Any]) -> None:
    """What the rounds of a check read while the trial runs is what its judge reads."""
    with pytest.raises(ValueError, match=next(iter(field))):
        _receive({**_EVENT, "src": "node1", **field})


@pytest.mark.parametrize("kind", ["exit", "result"])
def test_an_exit_code_is_one_that_the_system_has(kind: str) -> None:
    """The outcome of a program has the largest one: no decoder takes an integer of any size."""
    for code in (0, 1, 255, -9, 2**31 - 1, -(2**31)):
        _receive({**_EVENT, "src": "rank2.0", "kind": kind, "gen": 0, "rank": 2, "code": code})
    for wrong in (1e308, 1.0, True, "1", None, 2**31, -(2**31) - 1, 10**300):
        with pytest.raises(ValueError, match="code"):
            _receive({**_EVENT, "src": "rank2.0", "kind": kind, "gen": 0, "rank": 2, "code": wrong})


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
    take_number({**event, "src": "rank2.0"}, numbers)
    take_number({"kind": "status", "ranks": {}}, numbers)
    for none in (True, -1, "9", None, 2**63):
        take_number({**event, "seq": none}, numbers)
    if is_refused:
        with pytest.raises(NumberError, match=f"node1 sent event {number} after event 7"):
            take_number(event, numbers)
        assert numbers["node1"] == 7
    else:
        take_number(event, numbers)
        assert numbers["node1"] == number


@pytest.mark.parametrize(
    "wrong", [{"rank": "x"}, {"rank": []}, {"t": "x"}, {"code": 1e308}, {"last_lines": 3}, {"kind": "error"}]
)
@pytest.mark.parametrize("comes_first", [True, False])
def test_a_malformed_event_has_a_number_too(wrong: dict[str, Any], comes_first: bool) -> None:
    """It is recorded, and the report believes neither of two events with one number."""
    conductor = SimulatedFleet(nodes=1, nproc_per_node=2).conductor
    conductor.join(0, EPOCH_S, "10.0.0.1")
    died = {"gen": 0, "rank": 1, "code": -9, "ours": False, "phase": "ready", "last_lines": []}
    sound = {"run": "simulated", "src": "node0", "seq": 5, "t": 0.0, "kind": "exit", **died}
    malformed = sound | wrong
    first, second = (malformed, sound) if comes_first else (sound, malformed)
    if comes_first:
        with pytest.raises((LookupError, TypeError, ValueError), match=r"^(?!.*sent event)"):
            conductor.message(0, first, EPOCH_S)
    else:
        conductor.message(0, first, EPOCH_S)
    with pytest.raises(NumberError, match="node0 sent event 5 after event 5"):
        conductor.message(0, second, EPOCH_S)
