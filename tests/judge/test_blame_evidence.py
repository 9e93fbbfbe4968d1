"""What a finding of blame shows: the rank's own stack and output, its check, and the name of the fabric."""

from __future__ import annotations

import pytest
from event_streams import Stream

from seatrial.evidence.findings import Finding
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold


def only(stream: Stream) -> Finding:
    (finding,) = blame(fold(stream.events))
    return finding


def test_the_evidence_of_a_rank_is_its_own() -> None:
    stream = Stream(2, nodes=2).until("collectives")
    for rank, state in ((0, "S"), (1, "D")):
        place = {"state": state, "wchan": f"wait_{rank}", "text": f'File "own_{rank}.py", line 1 in f'}
        stream.send(f"node{rank}", "stack", gen=0, rank=rank, **place)
        stream.exit(rank, -9, ours=True, last_lines=(f"words of rank {rank}",))
    stream.trouble({"rank": 1, "how": "frozen", "detail": "state D"}, waiting=(0,))
    text = "\n".join(only(stream.close(ranks=False)).evidence)
    assert "process state D, in the kernel at wait_1" in text
    assert "own_1.py" in text
    assert "words of rank 1" in text
    assert "own_0.py" not in text
    assert "words of rank 0" not in text


def test_a_blocked_rank_without_a_place_in_the_kernel() -> None:
    stream = Stream().until("collectives")
    stream.send("node0", "stack", gen=0, rank=1, state="D", wchan="", text="")
    stream.trouble({"rank": 1, "how": "frozen"}, waiting=(0,))
    assert only(stream.close(ranks=False)).evidence[0] == "process state D"


def test_a_death_without_a_trouble_belongs_to_the_open_step() -> None:
    stream = Stream().until("training")
    stream.exit(1, -11, ours=False)
    assert only(stream.close(ranks=False)).check == "training"


@pytest.mark.parametrize(
    ("nodes", "name"),
    [
        (1, "communication between the processes inside node gpu-0"),
        (2, "communication between nodes gpu-0 and gpu-1 (node or link not told apart)"),
    ],
)
def test_the_fabric_of_one_node_is_inside_it(nodes: int, name: str) -> None:
    stream = Stream(2, nodes=nodes).until("collectives")
    stream.trouble({"rank": 0, "how": "stuck"}, {"rank": 1, "how": "stuck"}, outcome="deadline")
    stream.kill(0, 1)
    assert only(stream.close(ranks=False)).culprit.name == name


def test_a_crash_with_the_words_of_a_watchdog_is_a_death() -> None:
    """NCCL's watchdog aborts; what ends by another signal has crashed, whatever it printed before."""
    stream = Stream().until("collectives")
    stream.exit(1, -11, ours=False, last_lines=("[rank1] watchdog thread found nothing",))
    stream.trouble({"rank": 1, "how": "dead", "detail": "exit code -11"}, waiting=(0,))
    stream.kill(0)
    assert only(stream.close(ranks=False)).culprit.ranks == (1,)


def test_late_ranks_elsewhere_do_not_count_among_those_of_one_operation() -> None:
    stream = Stream(4, nodes=4).until("collectives")
    phases = {0: "b", 1: "b", 2: "b", 3: "c"}
    seen = [{"rank": rank, "how": "late", "phase": f"collectives/{name}"} for rank, name in phases.items()]
    stream.trouble(*seen, outcome="deadline")
    stream.kill(*phases)
    findings = blame(fold(stream.close(ranks=False).events))
    told = [(finding.culprit.kind, finding.culprit.ranks) for finding in findings]
    assert told == [("process", (3,))]


def test_a_rank_alone_that_stands_still_missed_no_collective() -> None:
    stream = Stream(3, nodes=3).until("compute")
    stream.trouble({"rank": 1, "how": "absent", "phase": "compute/gemm", "detail": "state S"}, waiting=(2,))
    stream.kill(1, 2)
    finding = only(stream.close(ranks=False))
    assert finding.what.endswith(" stood still in compute/gemm for 16 s, when others had finished (state S)")
    assert finding.culprit.ranks == (1,)
    assert 'rank 2 on node gpu-2 was in "compute/all_reduce 8 B"' in finding.evidence
    assert "look at its stack" in finding.action


def test_ranks_that_measure_again_are_named_by_themselves() -> None:
    stream = Stream(2, nodes=2).until("training")
    stream.check("training")
    stream.begin("training", "repeat")
    stream.trouble(*({"rank": rank, "how": "late"} for rank in (0, 1)), outcome="deadline")
    stream.kill(0, 1)
    findings = blame(fold(stream.close(ranks=False).events))
    assert [finding.culprit.ranks for finding in findings] == [(0,), (1,)]
