"""What ranks say or die of after the controller has decided to end all of them, which takes some agents longer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from event_streams import Stream

from seatrial.judge.blame import blame
from seatrial.judge.fold import fold

_AFTER: dict[str, Callable[[Stream], object]] = {
    "a complaint": lambda stream: stream.error(20, "fabric", "Connection closed by peer", "collectives/all_reduce 8 B"),
    "a device error": lambda stream: stream.error(20, "device", "CUDA error: unknown", "collectives/all_reduce 8 B"),
    "a bug": lambda stream: stream.error(20, "own", "list index out of range", "collectives/all_reduce 8 B"),
    "a crash": lambda stream: stream.exit(20, -11, ours=False),
    "an abort": lambda stream: stream.exit(20, -6, ours=False),
    "an end": lambda stream: stream.exit(20, 1, ours=False),
}


def _ended(how: str, ranks: range, after: Callable[[Stream], object], *, outcome: str = "deadline") -> Stream:
    """32 ranks on 4 nodes; the agents of the first two end theirs before the others, which take stacks first."""
    stream = Stream(32, nodes=4).until("collectives")
    stream.trouble(*({"rank": rank, "how": how, "waited_s": 16.0} for rank in ranks), outcome=outcome)
    stream.kill(*range(16))
    after(stream)
    ended_before = {20} if any(event["kind"] == "exit" and event["rank"] == 20 for event in stream.events) else set()
    stream.kill(*(rank for rank in range(16, 32) if rank not in ended_before))
    return stream.close(ranks=False)


@pytest.mark.parametrize("after", list(_AFTER.values()), ids=list(_AFTER))
def test_a_step_without_time_names_nobody(after: Callable[[Stream], object]) -> None:
    (finding,) = blame(fold(_ended("working", range(32), after).events))
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert "ran out of time" in finding.what


@pytest.mark.parametrize("after", list(_AFTER.values()), ids=list(_AFTER))
def test_an_absent_rank_stays_the_one_that_is_named(after: Callable[[Stream], object]) -> None:
    (finding,) = blame(fold(_ended("absent", range(5, 6), after, outcome="trouble").events))
    assert (finding.severity, finding.culprit.ranks) == ("fail", (5,))


@pytest.mark.parametrize("after", list(_AFTER.values()), ids=list(_AFTER))
def test_a_hang_of_all_stays_one(after: Callable[[Stream], object]) -> None:
    (finding,) = blame(fold(_ended("stuck", range(32), after, outcome="trouble").events))
    assert (finding.severity, finding.culprit.kind) == ("fail", "fabric")
    assert "all 32 ranks hung" in finding.what


def test_a_node_that_does_not_end_its_ranks_is_named() -> None:
    def then_silent(stream: Stream) -> None:
        _AFTER["a device error"](stream)
        stream.trouble({"node": 3, "how": "silent", "waited_s": 10.0}, outcome="deadline")

    (finding,) = blame(fold(_ended("working", range(32), then_silent).events))
    assert (finding.severity, finding.culprit.kind) == ("fail", "node")
