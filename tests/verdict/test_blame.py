"""Blame: the primary cause is named and nobody else, least of all who was only waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from event_streams import SCENES, Stream, died, frozen, healthy, interrupted, raised
from fake_checks import a_plan

from seatrial.plan.model import Setting
from seatrial.verdict.blame import blame
from seatrial.verdict.findings import Finding
from seatrial.verdict.fold import fold


def findings(stream: Stream) -> tuple[Finding, ...]:
    return blame(fold(stream.events))


@pytest.mark.parametrize(
    ("scene", "severity", "kind", "ranks", "words"),
    [
        ("killed", "fail", "rank", (1,), "was killed by signal 9 (SIGKILL) in collectives/all_reduce 8 B"),
        ("crashed", "fail", "rank", (1,), "was killed by signal 11 (SIGSEGV)"),
        ("exited", "fail", "rank", (1,), "exited with code 3"),
        ("exited early", "fail", "rank", (1,), "exited early with code 0"),
        ("rank 0 killed", "fail", "rank", (0,), "was killed by signal 9"),
        ("frozen", "fail", "rank", (1,), "was frozen in collectives/begin for 16 s"),
        ("absent", "fail", "rank", (1,), "did not come: it stayed in collectives/begin for 16 s"),
        ("late", "fail", "rank", (1,), "did not finish in time"),
        ("out of memory", "fail", "rank", (1,), "out of memory on rank 1 (Test CPU, local rank 1 on gpu-0)"),
        ("device", "fail", "device", (1,), "device error on rank 1"),
        ("own", "error", "none", (), "an exception of our own on rank 1"),
        ("request", "error", "none", (), "--device cuda: no device"),
        ("fabric", "fail", "fabric", (), "1 of 2 ranks had a communication error"),
        ("stuck", "fail", "fabric", (), "all 2 ranks entered collectives/all_reduce 8 B and none left it for 16 s"),
        ("node silent", "fail", "node", (1,), "node gpu-1 fell silent"),
        ("node lost", "fail", "node", (1,), "node gpu-1 was lost"),
        ("second generation", "fail", "rank", (3,), "rank 3 (Test CPU, local rank 1 on gpu-1) was killed"),
        ("watchdog", "fail", "rank", (1,), "was killed by signal 9"),
        ("refused", "error", "none", (), "--device cuda: torch finds no usable device"),
        ("noted", "error", "none", (), "the disk is full"),
    ],
)
def test_the_primary_cause_is_named(scene: str, severity: str, kind: str, ranks: tuple[int, ...], words: str) -> None:
    (finding,) = findings(SCENES[scene]())
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == (severity, kind, ranks)
    assert words in finding.what


@pytest.mark.parametrize("scene", ["healthy", "interrupted"])
def test_nobody_is_blamed_without_a_fault(scene: str) -> None:
    assert findings(SCENES[scene]()) == ()


def test_a_device_is_named_by_its_address_where_that_is_known() -> None:
    """Local rank 1 may be the seventh device of its node, if a variable hides some."""
    stream = raised("device")
    for event in stream.events:
        if event["kind"] == "rank":
            event["device_id"] = f"0000:{event['rank'] + 26:02x}:00"
    (finding,) = findings(stream)
    assert finding.culprit.name == "rank 1 (Test CPU, 0000:1b:00, local rank 1 on gpu-0)"


def test_a_consequence_is_evidence() -> None:
    (finding,) = findings(died())
    assert any("rank 0 saw a communication error in collectives/all_reduce 8 B" in line for line in finding.evidence)
    assert any("last words" in line for line in finding.evidence)
    (finding,) = findings(frozen())
    assert "rank 0 was waiting in collectives/all_reduce 8 B" in finding.evidence
    assert any('File "collectives.py"' in line for line in finding.evidence)


def test_an_error_belongs_to_the_check_in_which_it_happened() -> None:
    assert [finding.check for finding in findings(raised("memory"))] == ["training"]
    assert [finding.check for finding in findings(died())] == ["collectives"]


def test_out_of_memory_stands_although_somebody_died_too() -> None:
    stream = Stream(3).until("training")
    stream.error(0, "memory", "out of memory", "training/step 1")
    stream.error(2, "fabric", "Connection closed by peer", "training/step 1")
    stream.exit(1, -9, ours=False)
    stream.trouble({"rank": 0, "how": "error", "detail": "memory"}, {"rank": 1, "how": "dead"})
    stream.kill(0, 2)
    assert sorted(finding.culprit.ranks for finding in findings(stream.close(ranks=False))) == [(0,), (1,)]


def test_a_rank_that_told_its_error_and_ended_is_judged_by_the_error() -> None:
    stream = Stream().until("training")
    stream.error(1, "own", "list index out of range", "training/step 1", kind="IndexError")
    stream.exit(1, 1, ours=False)
    stream.trouble({"rank": 1, "how": "error", "detail": "own"}, {"rank": 1, "how": "dead"}, waiting=(0,))
    stream.kill(0)
    (finding,) = findings(stream.close(ranks=False))
    assert finding.severity == "error"
    assert "IndexError: list index out of range" in finding.what


def test_a_frozen_rank_is_the_cause_and_an_aborted_one_a_consequence() -> None:
    stream = Stream().until("collectives")
    stream.exit(0, -6, ours=False)
    stream.trouble({"rank": 0, "how": "dead"}, {"rank": 1, "how": "frozen"})
    stream.kill(1)
    (finding,) = findings(stream.close(ranks=False))
    assert finding.culprit.ranks == (1,)


WATCHDOG = "[rank0]:[E ProcessGroupNCCL.cpp:2068] [PG ID 0] Process group watchdog thread terminated with exception: "
MISSED = "NCCL error: remote process exited or there was a network error, NCCL version 2.27.5"
BROKEN = "CUDA error: uncorrectable ECC error encountered"


def _aborted(**said: str) -> Finding:
    """What comes of ranks that NCCL's watchdog aborted, each with what it said: ``r0="NCCL error: ..."``."""
    stream = Stream(3).until("collectives")
    for rank, words in said.items():
        stream.exit(int(rank[1:]), -6, ours=False, said=("terminate called", f"  what():  {WATCHDOG}{words}"))
    stream.trouble(*({"rank": int(rank[1:]), "how": "dead", "detail": "exit code -6"} for rank in said), waiting=(2,))
    stream.kill(2)
    (finding,) = findings(stream.close(ranks=False))
    return finding


def test_ranks_that_the_watchdog_of_nccl_aborted_are_witnesses_of_the_fabric() -> None:
    finding = _aborted(r0=MISSED, r1=MISSED)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "fabric", ())
    assert finding.what == "2 of 3 ranks had a communication error in collectives/all_reduce 8 B"
    assert any(MISSED in line for line in finding.evidence)
    assert _aborted(r1=MISSED).culprit.kind == "fabric"


def test_the_rank_whose_device_failed_under_the_watchdog_is_named_and_not_those_that_missed_it() -> None:
    finding = _aborted(r0=MISSED, r1=BROKEN)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "rank", (1,))
    assert "was killed by signal 6 (SIGABRT)" in finding.what
    assert any("rank 0 saw a communication error" in line for line in finding.evidence)


def test_a_rank_on_a_lost_node_is_the_nodes_matter() -> None:
    stream = Stream(2, nodes=2).until("collectives")
    stream.trouble({"node": 1, "how": "silent"}, {"rank": 1, "how": "absent"}, waiting=(0,))
    stream.kill(0)
    (finding,) = findings(stream.close(ranks=False, nodes=(0,)))
    assert (finding.culprit.kind, finding.culprit.ranks) == ("node", (1,))


def test_alone_in_a_step_nobody_blames_the_fabric() -> None:
    assert [finding.culprit.ranks for finding in findings(SCENES["alone"]())] == [(0,), (1,)]


def test_nobody_is_late_when_the_whole_trial_was_too_short() -> None:
    stream = Stream()
    stream.begin("compute", timeout_s=2.0)
    stream.trouble({"rank": 0, "how": "late"}, outcome="deadline")
    stream.kill(0, 1)
    (finding,) = findings(stream.close(ranks=False))
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert "the deadline of the whole trial cut it short" in finding.what


def test_nobody_ready_in_time_is_not_the_fault_of_each() -> None:
    stream = Stream(plan=replace(a_plan(), deadline_s=Setting(value=1200.0, origin="level standard")))
    stream.events = [event for event in stream.events if event["kind"] != "rank"]
    seen = [{"rank": rank, "how": "stuck", "phase": "start-up/import torch"} for rank in (0, 1)]
    stream.say("conductor", "trouble", gen=0, step=-1, seen=seen, waiting=[])
    (finding,) = findings(stream)
    assert finding.severity == "error"
    assert "none of 2 ranks was ready in time" in finding.what


STARTING = "start-up/import torch"


def starting(deadline_s: float, *seen: dict[str, Any]) -> tuple[Finding, ...]:
    """Trouble while ranks start."""
    stream = Stream(plan=replace(a_plan(), deadline_s=Setting(value=deadline_s, origin="--deadline")))
    full = [{"phase": STARTING, "waited_s": 20.0, "detail": "", **entry} for entry in seen]
    stream.say("conductor", "trouble", gen=0, step=-1, seen=full, waiting=[])
    stream.kill(0, 1)
    return findings(stream.close(ranks=False))


@pytest.mark.parametrize(
    "seen",
    [
        {"how": "late", "detail": "state R, had not finished when the deadline passed"},
        {"how": "stuck"},
        {"how": "frozen", "detail": "state D (uninterruptible sleep)"},
    ],
)
def test_nobody_is_slow_to_start_when_the_whole_trial_was_too_short(seen: dict[str, Any]) -> None:
    for deadline_s in (8.0, 120.0, 239.0):
        (finding,) = starting(deadline_s, {"rank": 1, **seen})
        assert (finding.severity, finding.culprit.kind) == ("error", "none")
        assert f"the trial's deadline of {deadline_s:g} s passed while ranks were starting" in finding.what
    (finding,) = starting(1200.0, {"rank": 1, **seen})
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))


def test_who_was_stopped_while_starting_is_named_whatever_the_deadline() -> None:
    (finding,) = starting(60.0, {"rank": 1, "how": "frozen", "detail": "state T (stopped)"})
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))


def test_a_later_generation_has_less_of_the_trials_time() -> None:
    for deadline_s, severity in ((400.0, "error"), (1200.0, "fail")):
        stream = Stream(4, plan=replace(a_plan(), deadline_s=Setting(value=deadline_s, origin="--deadline")))
        stream.until("collectives").exit(3, -11, ours=False)
        stream.trouble({"rank": 3, "how": "dead"}, waiting=(0, 1, 2))
        stream.kill(0, 1, 2)
        stream.generation = 1
        stream.start((0, 1, 2))
        late = [{"rank": 2, "how": "late", "phase": STARTING, "waited_s": 5.0}]
        stream.say("conductor", "trouble", gen=1, step=-1, seen=late, waiting=[])
        stream.kill(0, 1, 2)
        dead, cut = findings(stream.close(ranks=False))
        assert (dead.culprit.ranks, cut.severity) == ((3,), severity)


@pytest.mark.parametrize(
    ("phases", "kind", "ranks"),
    [
        ({0: "broadcast 8 B", 1: "broadcast 8 B", 2: "broadcast 8 B"}, "fabric", [()]),
        ({1: "broadcast 8 B", 2: "broadcast 8 B"}, "rank", [(1,), (2,)]),
        ({0: "broadcast 8 B", 1: "barrier", 2: "broadcast 8 B"}, "rank", [(0,), (1,), (2,)]),
    ],
)
def test_most_late_in_one_operation_is_the_fabric(phases: dict[int, str], kind: str, ranks: list[Any]) -> None:
    stream = Stream(4, nodes=2).until("collectives")
    stream.trouble(*({"rank": rank, "how": "late", "phase": name} for rank, name in phases.items()), outcome="deadline")
    stream.kill(0, 1, 2, 3)
    found = findings(stream.close(ranks=False))
    assert {finding.culprit.kind for finding in found} == {kind}
    assert [finding.culprit.ranks for finding in found] == ranks
    if kind == "fabric":
        assert found[0].what == "3 of 4 ranks entered broadcast 8 B and did not leave it in time"
        assert found[0].culprit.nodes == ("gpu-0", "gpu-1")


def test_most_late_where_each_works_by_itself_are_each_named() -> None:
    stream = Stream(3).until("compute")
    stream.trouble({"rank": 0, "how": "late"}, {"rank": 1, "how": "late"}, outcome="deadline")
    stream.kill(0, 1, 2)
    assert [finding.culprit.ranks for finding in findings(stream.close(ranks=False))] == [(0,), (1,)]


def test_a_node_that_never_came_is_not_blamed() -> None:
    stream = Stream(2, nodes=2)
    stream.events = [event for event in stream.events if event["src"] not in ("node1", "rank1.0")]
    stream.say("conductor", "trouble", gen=0, step=-1, seen=[{"node": 1, "how": "lost"}], waiting=[])
    (finding,) = findings(stream)
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert "never reached" in finding.what


def test_a_death_before_the_interruption_stands_and_one_after_it_does_not() -> None:
    assert findings(interrupted()) == ()
    stream = Stream().until("collectives")
    stream.exit(1, -9, ours=False)
    stream.trouble({"rank": 1, "how": "dead"})
    stream.say("conductor", "interrupted", by="SIGINT")
    stream.kill(0)
    (finding,) = findings(stream.close(ranks=False))
    assert finding.culprit.ranks == (1,)


def test_a_later_generation_says_so() -> None:
    first, second = findings(SCENES["second fault"]())
    assert first.culprit.ranks == (3,)
    assert second.culprit.ranks == (2,)
    assert second.what.startswith("in generation 1, without rank 3: rank 2 ")


def test_what_was_left_and_what_ended_badly_at_last_are_warnings() -> None:
    stream = healthy()
    stream.events = [event for event in stream.events if (event["src"], event["kind"]) != ("node0", "end")]
    stream.events = [event for event in stream.events if event["kind"] != "exit" or event["rank"] != 1]
    stream.exit(1, -6, ours=False, phase="end", said=(WATCHDOG + MISSED,))
    stream.say("node0", "left", gen=0, rank=0, pid=4711, state="D")
    after, left = findings(stream)
    assert (after.severity, left.severity) == ("warn", "warn")
    assert "after its work was done" in after.what
    assert "process 4711 of rank 0 on gpu-0 could not be ended (state D)" in left.what


def test_a_death_by_our_own_hand_is_never_a_finding() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.check("compute")
    stream.kill(0, 1)
    assert findings(stream.close(ranks=False)) == ()


def test_where_all_were_getting_on_the_time_was_too_short_and_nobody_is_blamed() -> None:
    (finding,) = findings(SCENES["too short"]())
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert finding.what == "training/measure was not finished within 60 s, and all 2 ranks were still at work"
    assert finding.action.startswith("give it more time (training.timeout_s)")
    assert finding.evidence == ("rank 0 was at work in step 21", "rank 1 was at work in step 21")
