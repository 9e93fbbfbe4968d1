"""An agent that loses or distrusts the controller ends its ranks: what others then see is no fault of the fabric."""

from __future__ import annotations

import pytest
from event_streams import Stream
from fake_checks import fake_load

from seatrial.evidence.findings import NOBODY, Finding
from seatrial.judge.blame import blame
from seatrial.judge.conclude import conclude
from seatrial.judge.fold import fold

PHASE = "collectives/all_reduce 8 B"
WHY = "received a line that was changed, repeated or left out on the way from the controller"
SILENT = "received nothing from the controller for 30 s"


def ends_its_ranks(stream: Stream, node: int, why: str = WHY, *ranks: int) -> None:
    """Let an agent say why it gives up, and end its ranks."""
    stream.send(f"node{node}", "note", severity="error", text=f"node {node} {why}; its ranks were ended")
    for rank in ranks or (node,):
        stream.exit(rank, -9, ours=True)


def complains(stream: Stream, rank: int) -> None:
    stream.error(rank, "fabric", "Connection closed by peer", PHASE)


def of_fabric(stream: Stream) -> Finding:
    return blame(fold(stream.events))[0]


def one_ends(nodes: int = 3, *, is_confirmed: bool = False) -> Stream:
    """Agent 1 ends its ranks, and so the ranks of the others complain."""
    stream = Stream(nodes, nodes=nodes).until("collectives")
    ends_its_ranks(stream, 1)
    others = [rank for rank in range(nodes) if rank != 1]
    for rank in others:
        complains(stream, rank)
    stream.send("node1", "end")
    if is_confirmed:
        text = "the agent of node gpu-1 ended before the trial was over"
        stream.send("conductor", "note", severity="error", text=text)
        stream.step_end("trouble")
    else:
        stream.trouble(*({"rank": rank, "how": "error", "detail": "fabric"} for rank in others))
    stream.kill(*others)
    return stream.close(ranks=False, nodes=tuple(others))


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("is_confirmed", [False, True], ids=["complaints first", "end first"])
def test_complaints_after_the_end_of_an_agent_name_nobody(nodes: int, is_confirmed: bool) -> None:
    stream = one_ends(nodes, is_confirmed=is_confirmed)
    finding = of_fabric(stream)
    assert (finding.severity, finding.culprit) == ("error", NOBODY)
    assert "saw a communication error" in finding.what
    assert f'after the agent of node gpu-1 had ended its ranks, as it says: "node 1 {WHY}' in finding.what
    verdict = conclude(stream.events, load=fake_load).verdict
    assert (verdict.status, verdict.exit_code) == ("INCONCLUSIVE", 3)


def test_an_incomplete_record_tells_the_reason_too() -> None:
    stream = one_ends()
    lost = next(event for event in stream.events if event["kind"] == "stack")
    finding = blame(fold([event for event in stream.events if event is not lost]))[0]
    assert (finding.severity, finding.culprit) == ("error", NOBODY)
    assert WHY in finding.what


def test_a_controller_that_slept_names_nobody() -> None:
    """All agents take it for dead, one a little before the others, whose ranks have complained by then."""
    stream = Stream(3, nodes=3).until("collectives")
    ends_its_ranks(stream, 2, SILENT)
    for rank in (0, 1):
        complains(stream, rank)
        ends_its_ranks(stream, rank, SILENT)
    stream.send("conductor", "note", severity="error", text="the agent of node gpu-2 ended before the trial was over")
    stream.step_end("trouble")
    finding = of_fabric(stream.close(ranks=False))
    assert (finding.severity, finding.culprit) == ("error", NOBODY)
    assert "the agent of node gpu-2 had ended its ranks" in finding.what


def test_ranks_that_complained_before_their_agents_lost_one_another() -> None:
    """A network that was cut: the agents need longer than the ranks to see it."""
    stream = Stream(3, nodes=3).until("collectives")
    for rank in range(3):
        complains(stream, rank)
    for node in range(3):
        ends_its_ranks(stream, node, SILENT)
    stream.step_end("trouble")
    finding = of_fabric(stream.close(ranks=False))
    assert (finding.severity, finding.culprit.kind) == ("fail", "fabric")
    assert finding.culprit.nodes == ("gpu-0", "gpu-1", "gpu-2")


def test_a_lost_node_is_named_whatever_it_wrote_down_later() -> None:
    stream = Stream(3, nodes=3).until("collectives")
    for rank in (0, 1):
        complains(stream, rank)
    stream.trouble({"node": 2, "how": "silent"}, {"rank": 0, "how": "error", "detail": "fabric"}, waiting=(1,))
    stream.kill(0, 1)
    # It kept this in a folder of its own.
    ends_its_ranks(stream, 2, SILENT)
    finding = of_fabric(stream.close(ranks=False))
    assert (finding.severity, finding.culprit.name) == ("fail", "node gpu-2")


def test_a_note_after_the_ranks_were_killed_explains_nothing() -> None:
    stream = Stream(3, nodes=3).until("collectives")
    complains(stream, 0)
    stream.trouble({"rank": 0, "how": "error", "detail": "fabric"}, waiting=(1, 2))
    stream.kill(0, 1, 2)
    stream.send("node1", "note", severity="error", text=f"node 1 {SILENT}; its ranks were ended")
    assert of_fabric(stream.close(ranks=False)).culprit.kind == "fabric"


def test_a_warning_of_an_agent_explains_nothing() -> None:
    stream = Stream(2, nodes=2).until("collectives")
    stream.send("node1", "note", severity="warn", text="the disk is full")
    complains(stream, 0)
    stream.trouble({"rank": 0, "how": "error", "detail": "fabric"}, waiting=(1,))
    stream.kill(0, 1)
    assert of_fabric(stream.close(ranks=False)).culprit.kind == "fabric"


def test_a_hang_is_not_explained_by_the_end_of_an_agent() -> None:
    stream = Stream(2, nodes=2).until("collectives")
    stream.trouble(*({"rank": rank, "how": "stuck", "waited_s": 90.0} for rank in (0, 1)))
    ends_its_ranks(stream, 1)
    stream.kill(0)
    assert of_fabric(stream.close(ranks=False)).culprit.kind == "fabric"


def test_an_agent_that_gives_up_excuses_no_device_of_another_node() -> None:
    stream = Stream(3, nodes=3).until("collectives")
    ends_its_ranks(stream, 1)
    stream.error(2, "device", "CUDA error: uncorrectable ECC error", PHASE)
    complains(stream, 0)
    seen = [{"rank": 2, "how": "error", "detail": "device"}, {"rank": 0, "how": "error", "detail": "fabric"}]
    stream.trouble(*seen)
    stream.kill(0, 2)
    stream.close(ranks=False)
    finding = of_fabric(stream)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "device", (2,))
    assert conclude(stream.events, load=fake_load).verdict.status == "FAIL"


def test_an_agent_that_gives_up_explains_its_attempt_only() -> None:
    stream = Stream(4, nodes=4).until("collectives")
    complains(stream, 0)
    stream.trouble({"rank": 0, "how": "error", "detail": "fabric"}, {"rank": 3, "how": "absent"}, waiting=(1, 2))
    stream.kill(0, 1, 2, 3)
    stream.generation = 1
    stream.start((0, 1, 2))
    stream.begin("collectives")
    ends_its_ranks(stream, 1)
    complains(stream, 0)
    stream.trouble({"rank": 0, "how": "error", "detail": "fabric"}, waiting=(2,))
    stream.kill(0, 2)
    first, second, *_ = blame(fold(stream.close(ranks=False).events))
    assert (first.severity, first.culprit.ranks) == ("fail", (3,))
    assert (second.severity, second.culprit) == ("error", NOBODY)
    assert second.what.startswith("after a restart without rank 3, rank 0 saw a communication error")
