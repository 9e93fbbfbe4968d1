"""A rank that its libraries crash or abort because a peer has gone: it is a witness, and a crash by itself is not."""

from __future__ import annotations

import pytest
from event_streams import Stream, on_gpus

from seatrial.evidence.findings import Finding
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold

ALL_REDUCE = "collectives/all_reduce 8 B"
MISSED = "NCCL error: remote process exited or there was a network error"
THROWN = "terminate called after throwing an instance of '{}'"


def _ended(code: int, last_lines: tuple[str, ...] = (), *, complains: bool = False) -> list[Finding]:
    """Return the findings where rank 0 complains of the fabric, and rank 1 of another host ends so."""
    stream = Stream(2, nodes=2).until("collectives")
    for rank in (0, 1) if complains else (0,):
        stream.error(rank, "fabric", MISSED, ALL_REDUCE)
    stream.exit(1, code, ours=False, last_lines=last_lines)
    stream.trouble({"rank": 0, "how": "error", "detail": "fabric"}, {"rank": 1, "how": "dead"})
    stream.kill(0)
    return list(blame(fold(on_gpus(stream.close(ranks=False)).events)))


@pytest.mark.parametrize(
    "lines",
    [
        (
            THROWN.format("c10::DistNetworkError"),
            "  what():  Failed to recv, got 0 bytes. Was it closed?",
        ),
        (THROWN.format("c10::DistStoreError"), "  what():  wait timeout after 300000ms, keys: /default_pg/0"),
        (THROWN.format("c10::DistBackendError"), f"  what():  [Rank 1] {MISSED}"),
        (THROWN.format("std::system_error"), "  what():  Connection reset by peer"),
        (THROWN.format("std::system_error"), "  what():  Broken pipe"),
        (THROWN.format("std::runtime_error"), "  what():  [/x/gloo/transport/tcp/pair.cc:5] Connection closed by peer"),
        (THROWN.format("gloo::IoException"), "  what():  no words of a connection"),
    ],
)
def test_a_process_that_aborts_for_a_lost_peer_is_a_witness(lines: tuple[str, ...]) -> None:
    (finding,) = _ended(-6, lines)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "fabric", ())
    assert any(lines[1].strip()[:40] in line for line in finding.evidence)


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (THROWN.format("std::bad_alloc"), "  what():  std::bad_alloc"),
        (THROWN.format("std::out_of_range"), "  what():  vector::_M_range_check"),
        ("Connection reset by peer", THROWN.format("std::logic_error"), "  what():  a bug"),
        ("free(): invalid pointer",),
    ],
)
def test_a_process_that_aborts_for_its_own_fault_is_named(lines: tuple[str, ...]) -> None:
    (finding,) = _ended(-6, lines)
    assert (finding.culprit.kind, finding.culprit.ranks) == ("process", (1,))


@pytest.mark.parametrize("code", [-11, -7])
def test_a_crash_after_a_complaint_of_the_peer_follows_from_it(code: int) -> None:
    (finding,) = _ended(code, ("Fatal Python error: Segmentation fault",), complains=True)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "fabric", ())
    assert any("rank 1" in line and f"then it was killed by signal {-code}" in line for line in finding.evidence)


def test_a_crash_of_a_rank_that_had_not_complained_is_named() -> None:
    (finding,) = _ended(-11)
    assert (finding.culprit.kind, finding.culprit.ranks) == ("process", (1,))


@pytest.mark.parametrize("how", ["lost", "silent"])
def test_a_crash_beside_a_lost_node_is_evidence(how: str) -> None:
    stream = Stream(3, nodes=3).until("collectives")
    stream.exit(1, -11, ours=False)
    stream.trouble({"node": 2, "how": how}, {"rank": 1, "how": "dead", "detail": "exit code -11"}, waiting=(0,))
    stream.kill(0)
    (finding,) = blame(fold(on_gpus(stream.close(ranks=False, nodes=(0, 1))).events))
    assert (finding.severity, finding.culprit.kind, finding.culprit.nodes) == ("fail", "node", ("gpu-2",))
    assert any("rank 1" in line and "was killed by signal 11" in line for line in finding.evidence)


def test_a_crash_is_named_where_the_lost_nodes_accuse_nobody() -> None:
    stream = Stream(2, nodes=2).until("collectives")
    stream.exit(1, -11, ours=False)
    stream.trouble({"node": 0, "how": "lost", "detail": "the agent sent a changed line"}, {"rank": 1, "how": "dead"})
    stream.events[0]["job"] |= {"target": "slurm", "ends_together": True}
    (finding,) = blame(fold(on_gpus(stream.close(ranks=False, nodes=(1,))).events))
    assert (finding.culprit.kind, finding.culprit.ranks) == ("process", (1,))


def _beside(
    code: int, crash: int = -11, *, nodes: int = 2, backend: str = "nccl", heard: tuple[int, ...] = (0, 1), **more: int
) -> list[int]:
    """Return the ranks that are named where rank 0 ends with this code and rank 1 crashes; the conductor heard of the
    ends in that order."""
    stream = Stream(2, nodes=nodes).until("collectives")
    stream.exit(0, code, ours=False)
    stream.events[-1] |= more
    stream.exit(1, crash, ours=False)
    stream.trouble(*({"rank": rank, "how": "dead"} for rank in heard))
    on_gpus(stream.close(ranks=False))
    for event in stream.events:
        if event["kind"] == "rank":
            event["backend"] = backend
    return [rank for finding in blame(fold(stream.events)) for rank in finding.culprit.ranks]


def test_a_crash_beside_the_end_of_a_rank_of_another_host() -> None:
    assert _beside(-9) == [0]
    assert _beside(-9, oom_limit_bytes=1 << 30) == [0]
    assert _beside(0) == [0]
    assert _beside(-9, -4) == [0]
    # On one host both may have had the same cause; MPI and a launcher end others because of a crash.
    assert _beside(-9, nodes=1) == [0, 1]
    assert _beside(-9, backend="mpi") == [0, 1]
    assert _beside(-15) == [0, 1]
    assert _beside(-11) == [0, 1]
    assert _beside(-6) == [1]


@pytest.mark.parametrize("code", [1, 0, -9])
def test_an_end_that_was_heard_of_later_explains_no_crash(code: int) -> None:
    assert _beside(code, heard=(1, 0)) == [0, 1]
    assert _beside(code, heard=(1,)) == [0, 1]
    assert _beside(code, heard=(0,)) == [0]
    assert _beside(code, heard=(0, 1, 0)) == [0]
