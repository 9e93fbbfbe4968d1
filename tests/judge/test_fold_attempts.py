"""The fold over several attempts, and over what checks have measured so far."""

from __future__ import annotations

from typing import Any

import pytest
from event_streams import SCENES, Stream, healthy

from seatrial.judge.blame import blame
from seatrial.judge.fold import evidence_so_far, fold


@pytest.mark.parametrize(("types", "limits_of"), [(("cuda", "cuda"), "cuda"), (("cpu", "cuda"), "cpu"), ((), "")])
def test_limits_are_those_of_the_device_that_all_have(types: tuple[str, ...], limits_of: str) -> None:
    events = healthy().events
    for event in events:
        if event["kind"] == "rank" and types:
            event["device_type"] = types[event["rank"]]
    trial = fold([event for event in events if types or event["kind"] != "rank"])
    assert trial.device_type == limits_of
    # A rank that says it is on a CPU would have all GPUs held to the limits of CPUs.
    told = any(what.startswith("one type of devices on all ranks") for what in trial.missing)
    assert told == (len(set(types)) > 1)


@pytest.mark.parametrize("asked", ["auto", "nccl"])
@pytest.mark.parametrize(("said", "expected"), [("nccl", "nccl"), ("gloo", ""), ("none", ""), ("nccl and gloo", "")])
def test_one_word_of_one_rank_changes_no_rules_of_others(said: str, expected: str, asked: str) -> None:
    events = healthy().events
    for event in events:
        if event["kind"] == "rank":
            event["backend"] = said if event["rank"] == 1 else "nccl"
        if event["kind"] == "run":
            event["job"]["backend"] = asked
    trial = fold(events)
    assert trial.backend == (expected if asked == "auto" else asked)
    told = [what for what in trial.missing if what.startswith("one backend on all ranks")]
    assert len(told) == (said != "nccl")
    assert not told or "rank 1 first" in told[0]


def test_the_devices_are_those_of_the_first_attempt() -> None:
    events = SCENES["second generation"]().events
    for event in events:
        if event["kind"] == "rank" and event["gen"] == 1:
            event["device"] = "another"
    trial = fold(events)
    assert {record.device for record in trial.ranks.values()} == {"Test CPU"}
    assert trial.device_type == "cpu"


def test_an_event_of_another_attempt_than_its_source_is_damage() -> None:
    stream = healthy()
    stream.events = [event for event in stream.events if (event["src"], event["kind"]) != ("rank1.0", "end")]
    stream.send("rank1.0", "done", gen=1, step=0, rank=1, seconds=0.5, share={})
    stream.send("rank1.0", "end")
    assert any("rank or gen of another source" in what for what in fold(stream.events).missing)


def test_an_interruption_keeps_its_reason() -> None:
    trial = fold(SCENES["interrupted"]().events)
    assert trial.interrupted == "SIGINT"
    stream = Stream()
    stream.send("conductor", "interrupted", by="")
    assert fold(stream.events).interrupted == "unknown"


@pytest.mark.parametrize("code", [1, 3, -9])
def test_a_dead_rank_is_expected_to_send_no_end(code: int) -> None:
    stream = healthy()
    stream.events = [event for event in stream.events if (event["src"], event["kind"]) != ("rank1.0", "end")]
    stream.events = [event for event in stream.events if (event["kind"], event.get("rank")) != ("exit", 1)]
    for number, event in enumerate(event for event in stream.events if event["src"] == "node0"):
        event["seq"] = number
    before = fold(stream.events)
    assert before.missing == ("the `end` event of rank1.0 is missing",)
    last = max(event["seq"] for event in stream.events if event["src"] == "node0")
    ending = {"code": code, "ours": False, "phase": "training", "last_lines": []}
    node_end = next(event for event in stream.events if (event["src"], event["kind"]) == ("node0", "end"))
    exited = {**node_end, "kind": "exit", "gen": 0, "rank": 1, **ending}
    node_end["seq"] = last + 1
    assert fold([*stream.events, {**exited, "seq": last}]).missing == ()


def test_a_check_asks_with_its_own_measurements_only() -> None:
    stream = Stream().until("collectives")
    stream.measure("collectives", 0)
    kinds = ("rank", "measurements", "facts")
    events = [event for event in stream.events if event["kind"] in kinds]
    for check, count in (("bootstrap", 2), ("collectives", 1), ("training", 0)):
        evidence = evidence_so_far(check, events)
        assert {entry.check for entry in evidence.measurements} <= {check}
        assert {fact.check for fact in evidence.facts} <= {check}
        assert len(evidence.measurements) == len(evidence.facts) == count


def test_a_check_asks_with_the_nodes_that_reported_facts() -> None:
    stream = Stream(2, nodes=2)
    for node in (0, 1):
        fact = {"check": "network", "name": "node", "value": "up", "node_rank": node}
        stream.send(f"node{node}", "facts", gen=0, step=0, facts=[fact])
    assert evidence_so_far("network", stream.events[-2:]).nodes == {0: "node 0", 1: "node 1"}


@pytest.mark.parametrize("begun", [False, True])
def test_only_a_run_that_nobody_began_lacks_nothing(begun: bool) -> None:
    stream = Stream()
    stream.events = [event for event in stream.events if event["kind"] in ("run", *(["generation"] if begun else []))]
    assert fold(stream.events).missing != (), "nobody says why"
    stream.send("recorder1", "note", severity="error", text="pod t-0 does not start")
    stream.send("recorder1", "end")
    assert (fold(stream.events).missing == ()) is not begun


@pytest.mark.parametrize("kind", ["end", "note", "rank"])
def test_a_rank_of_an_attempt_that_never_was_is_named(kind: str) -> None:
    """Else the controller's own record would seem to lack an attempt."""
    stream = healthy()
    stream.send("rank1.7", kind, gen=7, rank=1, severity="error", text="x")
    missing = fold(stream.events).missing
    assert any(f"{kind}: of a generation that was not begun, from rank 1" in what for what in missing)
    assert not any("attempt 7" in what for what in missing)


def _second_attempt() -> Stream:
    """Rank 4 of 6, on node 2 of 3, has failed, and the second attempt is without it."""
    stream = Stream(6, nodes=3).until("training")
    stream.error(4, "own", "list index out of range", "training/step 3 forward")
    stream.trouble({"rank": 4, "how": "error", "detail": "own"}, waiting=(0, 1, 2, 3, 5))
    stream.kill(0, 1, 2, 3, 4, 5)
    stream.generation = 1
    stream.start((0, 1, 2, 3, 5))
    stream.begin("bootstrap")
    return stream


_ENDING = {"code": -9, "ours": False, "phase": "training/step 3", "last_lines": []}


@pytest.mark.parametrize(
    ("src", "kind", "event"),
    [
        ("node1", "exit", _ENDING),
        ("node2", "exit", _ENDING),
        ("node1", "stack", {"state": "S", "wchan": "", "text": "measure.py"}),
        ("node1", "left", {"pid": 7, "state": "D"}),
        (
            "rank4.1",
            "error",
            {"cause": "own", "type": "E", "message": "x", "stack": "", "phase": "training", "step": 4},
        ),
        ("rank4.1", "note", {"severity": "error", "text": "x"}),
        ("rank4.1", "end", {}),
    ],
)
def test_nobody_speaks_of_a_rank_in_an_attempt_without_it(src: str, kind: str, event: dict[str, Any]) -> None:
    stream = _second_attempt()
    named = blame(fold(stream.events))
    before = fold(stream.events).missing
    stream.send(src, kind, gen=1, rank=4, **event)
    trial = fold(stream.events)
    assert blame(trial) == named
    assert any("of a rank that its attempt does not have" in gap for gap in set(trial.missing) - set(before))


@pytest.mark.parametrize(
    ("lost", "node", "rank", "is_told"),
    [
        ((1,), "node2", 4, True),
        ((1,), "node1", 4, False),
        ((1,), "node1", 9, False),
        ((0,), "node2", 5, True),
        ((0,), "node1", 5, False),
        ((0, 1), "node1", 4, True),
    ],
)
def test_of_an_attempt_that_is_lost_each_node_tells_the_ends_of_its_ranks(
    lost: tuple[int, ...], node: str, rank: int, is_told: bool
) -> None:
    stream = _second_attempt()
    stream.events = [
        event
        for event in stream.events
        if event["kind"] != "exit" and not (event["kind"] == "generation" and event["gen"] in lost)
    ]
    stream.send(node, "exit", gen=max(lost), rank=rank, **_ENDING)
    assert [ending.rank for ending in fold(stream.events).exits] == [rank] * is_told


def test_evidence_so_far_has_the_node_that_the_conductor_knows() -> None:
    """A rank that lies could have itself measured in place of ranks of other nodes."""
    stream = Stream(4, nodes=2).until("compute")
    events = [event for event in stream.events if event["kind"] in ("rank", "generation")]
    for event in events:
        if event["kind"] == "rank":
            event["node_rank"] = 1 - event["node_rank"]
        else:
            event["places_of_nodes"] = {"0": "10.0.0.1", "1": "10.0.0.2"}
    evidence = evidence_so_far("compute", sorted(events, key=lambda event: event["src"]))
    assert {rank: seen.node_rank for rank, seen in evidence.ranks.items()} == {0: 0, 1: 0, 2: 1, 3: 1}
    assert evidence.hosts() == {0: "10.0.0.1", 1: "10.0.0.1", 2: "10.0.0.2", 3: "10.0.0.2"}


class _SearchedList(list[int]):
    """Stands for the ranks of a step; it notes how often somebody searches it from its beginning."""

    searches = 0

    def __contains__(self, rank: object) -> bool:
        self.searches += 1
        return super().__contains__(rank)


def test_the_ranks_of_a_step_are_not_searched_for_each_entry() -> None:
    """One rank may send a hundred thousand entries, in a step of as many ranks."""
    stream = Stream().until("compute")
    ranks = _SearchedList((0, 1))
    (step,) = (event for event in stream.events if event["kind"] == "step" and event["check"] == "compute")
    step["ranks"] = ranks
    entry = {"check": "compute", "name": "x", "value": 1, "rank": 1}
    of_another = {**entry, "check": "memory"}
    stream.send("rank1.0", "facts", gen=0, step=step["step"], facts=[entry] * 50)
    stream.send("rank1.0", "facts", gen=0, step=step["step"], facts=[*[entry] * 50, of_another])
    trial = fold(stream.events)
    assert len([fact for fact in trial.facts if fact.name == "x"]) == 50
    assert any("of a step that its source was not asked for, from rank 1" in what for what in trial.missing)
    assert ranks.searches == 0
