"""Blame: the primary cause is named and nothing else, least of all a rank that was only waiting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from event_streams import SCENES, Stream, died, frozen, healthy, interrupted, on_gpus, raised
from fake_checks import a_plan

from seatrial.evidence.findings import Finding
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold
from seatrial.judge.step_view import works_alone
from seatrial.judge.trial import NodeFailure
from seatrial.plan.model import Setting


def findings(stream: Stream) -> tuple[Finding, ...]:
    return blame(fold(stream.events))


@pytest.mark.parametrize(
    ("scene", "severity", "kind", "ranks", "words"),
    [
        ("killed", "fail", "process", (1,), 'was killed by signal 9 (SIGKILL) in "collectives/all_reduce 8 B"'),
        ("crashed", "fail", "process", (1,), "was killed by signal 11 (SIGSEGV)"),
        ("exited", "fail", "process", (1,), "exited with code 3"),
        ("exited early", "fail", "process", (1,), "exited early with code 0"),
        ("rank 0 killed", "fail", "process", (0,), "was killed by signal 9"),
        ("frozen", "fail", "process", (1,), "was frozen, state T (stopped), in collectives/begin for 16 s"),
        (
            "absent",
            "fail",
            "process",
            (1,),
            "never entered the collective: it was still in collectives/begin after 16 s",
        ),
        ("late", "fail", "process", (1,), "did not finish in time"),
        ("out of memory", "fail", "process", (1,), "out of memory on rank 1 (Test CPU, local rank 1 on node gpu-0)"),
        ("device", "fail", "device", (1,), "device error on rank 1"),
        (
            "own",
            "error",
            "none",
            (),
            'bug in seatrial, not a fault of the cluster: RuntimeError: "list index out of range"',
        ),
        ("request", "error", "none", (), "--device cuda: no device"),
        ("fabric", "fail", "fabric", (), "rank 1 saw a communication error"),
        ("stuck", "fail", "fabric", (), 'both ranks hung in "collectives/all_reduce 8 B" for 16 s'),
        ("node silent", "fail", "node", (1,), "node gpu-1 fell silent"),
        ("node lost", "fail", "node", (1,), "node gpu-1 was lost"),
        ("second generation", "fail", "process", (3,), "rank 3 (Test CPU, local rank 1 on node gpu-1) was killed"),
        ("watchdog", "fail", "process", (1,), "was killed by signal 9"),
        ("refused", "error", "none", (), "--device cuda: torch finds no usable device"),
        ("noted", "error", "none", (), "the disk is full"),
    ],
)
def test_the_primary_cause_is_named(scene: str, severity: str, kind: str, ranks: tuple[int, ...], words: str) -> None:
    (finding,) = findings(SCENES[scene]())
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == (severity, kind, ranks)
    assert words in finding.what


def test_a_rank_that_computes_while_all_hang_is_shown() -> None:
    """It may hold the interpreter while its main thread waits inside the operation; no link explains its CPU time."""
    stream = Stream(4, nodes=2).until("collectives")
    entries = ({"rank": rank, "how": "stuck", "phase": "barrier"} for rank in range(4))
    stream.trouble(*({**entry, "detail": "uses CPU time" if entry["rank"] == 2 else ""} for entry in entries))
    stream.kill(0, 1, 2, 3)
    (finding,) = findings(stream.close(ranks=False))
    assert finding.culprit.kind == "fabric"
    assert finding.what.endswith("; rank 2 used CPU time meanwhile, the others none")
    assert finding.action.startswith("look at rank 2 first: ")


@pytest.mark.parametrize("scene", ["healthy", "interrupted"])
def test_no_fault_no_finding(scene: str) -> None:
    assert findings(SCENES[scene]()) == ()


def test_a_device_is_named_by_its_address() -> None:
    """Local rank 1 may be the seventh device of its node, if a variable hides some."""
    stream = raised("device")
    for event in stream.events:
        if event["kind"] == "rank":
            event["device_id"] = f"0000:{event['rank'] + 26:02x}:00"
    (finding,) = findings(stream)
    assert finding.culprit.name == "rank 1 (Test CPU, 0000:1b:00, local rank 1 on node gpu-0)"


def test_a_consequence_is_evidence() -> None:
    (finding,) = findings(died())
    assert any('rank 0 saw a communication error in "collectives/all_reduce 8 B"' in line for line in finding.evidence)
    (finding,) = findings(frozen())
    assert 'rank 0 was waiting in "collectives/all_reduce 8 B"' in finding.evidence
    assert any('File "seatrial/checks/collectives/measure.py"' in line for line in finding.evidence)


def test_a_finding_belongs_to_the_check_of_its_step() -> None:
    assert [finding.check for finding in findings(raised("memory"))] == ["training"]
    assert [finding.check for finding in findings(died())] == ["collectives"]


def test_a_finding_belongs_to_the_first_check_that_did_not_finish() -> None:
    stream = Stream(3)
    for check in ("compute", "bootstrap"):
        stream.begin(check)
        stream.done(0)
        stream.step_end()
    stream.exit(1, -9, ours=False)
    assert [finding.check for finding in findings(stream)] == ["compute"]


def test_out_of_memory_and_a_death_are_two_causes() -> None:
    stream = Stream(3).until("training")
    stream.error(0, "memory", "out of memory", "training/step 1")
    stream.error(2, "fabric", "Connection closed by peer", "training/step 1")
    stream.exit(1, -9, ours=False)
    stream.trouble({"rank": 0, "how": "error", "detail": "memory"}, {"rank": 1, "how": "dead"})
    stream.kill(0, 2)
    assert sorted(finding.culprit.ranks for finding in findings(stream.close(ranks=False))) == [(0,), (1,)]


def test_a_rank_is_judged_by_its_error_not_its_exit() -> None:
    stream = Stream().until("training")
    stream.error(1, "own", "list index out of range", "training/step 1", kind="IndexError")
    stream.exit(1, 1, ours=False)
    stream.trouble({"rank": 1, "how": "error", "detail": "own"}, {"rank": 1, "how": "dead"}, waiting=(0,))
    stream.kill(0)
    (finding,) = findings(stream.close(ranks=False))
    assert finding.severity == "error"
    assert 'IndexError: "list index out of range"' in finding.what


def test_an_abort_is_a_consequence_of_a_frozen_rank() -> None:
    stream = Stream().until("collectives")
    stream.exit(0, -6, ours=False)
    stream.trouble({"rank": 0, "how": "dead"}, {"rank": 1, "how": "frozen"})
    stream.kill(1)
    (finding,) = findings(stream.close(ranks=False))
    assert finding.culprit.ranks == (1,)


WATCHDOG = "[rank0]:[E ProcessGroupNCCL.cpp:2068] [PG ID 0] Process group watchdog thread terminated with exception: "
MISSED = "NCCL error: remote process exited or there was a network error, NCCL version 2.27.5"
BROKEN = "CUDA error: uncorrectable ECC error encountered"


def _aborted(**messages: str) -> Finding:
    """Return the finding for ranks that NCCL's watchdog aborted, each with its message: ``r0="NCCL error: ..."``."""
    stream = Stream(3).until("collectives")
    for rank, message in messages.items():
        stream.exit(int(rank[1:]), -6, ours=False, last_lines=("terminate called", f"  what():  {WATCHDOG}{message}"))
    dead = [{"rank": int(rank[1:]), "how": "dead", "detail": "exit code -6"} for rank in messages]
    stream.trouble(*dead, waiting=(2,))
    stream.kill(2)
    (finding,) = findings(on_gpus(stream.close(ranks=False)))
    return finding


def test_ranks_aborted_by_the_watchdog_are_witnesses() -> None:
    finding = _aborted(r0=MISSED, r1=MISSED)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "fabric", ())
    assert finding.what == 'ranks 0, 1 saw a communication error in "collectives/all_reduce 8 B"'
    assert any(MISSED in line for line in finding.evidence)
    assert _aborted(r1=MISSED).culprit.kind == "fabric"


GLOO_ABORT = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <="
    " op.nbytes. 16 vs 8. Received data size doesn't match expected size.",
)


@pytest.mark.parametrize(("said", "kind"), [(GLOO_ABORT, "fabric"), (("free(): invalid pointer",), "process")])
def test_a_rank_that_gloo_aborts_for_the_message_of_a_peer_is_a_witness(said: tuple[str, ...], kind: str) -> None:
    """A peer that sends 16 bytes in place of 8 then waits like all others."""
    stream = Stream(4, nodes=4).until("collectives")
    stream.exit(3, -6, ours=False, last_lines=said)
    stream.trouble({"rank": 3, "how": "dead", "detail": "exit code -6"}, waiting=(0, 1, 2))
    stream.kill(0, 1, 2)
    (finding,) = findings(stream.close(ranks=False))
    assert (finding.severity, finding.culprit.kind) == ("fail", kind)
    assert (3 in finding.culprit.ranks) == (kind == "process")
    assert "16 vs 8" in str(finding.evidence) or kind == "process"


def test_a_failed_device_is_named_among_watchdog_aborts() -> None:
    finding = _aborted(r0=MISSED, r1=BROKEN)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "rank", (1,))
    assert "was killed by signal 6 (SIGABRT)" in finding.what
    assert any("rank 0 saw a communication error" in line for line in finding.evidence)


def test_a_rank_on_a_lost_node_is_not_blamed() -> None:
    stream = Stream(2, nodes=2).until("collectives")
    stream.trouble({"node": 1, "how": "silent"}, {"rank": 1, "how": "absent"}, waiting=(0,))
    stream.kill(0)
    (finding,) = findings(stream.close(ranks=False, nodes=(0,)))
    assert (finding.culprit.kind, finding.culprit.ranks) == ("node", (1,))


def test_ranks_that_work_alone_do_not_blame_the_fabric() -> None:
    assert [finding.culprit.ranks for finding in findings(SCENES["alone"]())] == [(0,), (1,)]


def test_a_short_trial_blames_no_late_rank() -> None:
    stream = Stream()
    stream.begin("compute", timeout_s=2.0)
    stream.trouble({"rank": 0, "how": "late"}, outcome="deadline")
    stream.kill(0, 1)
    (finding,) = findings(stream.close(ranks=False))
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert "the deadline of the whole trial cut it short" in finding.what


def test_no_rank_is_blamed_where_none_was_ready() -> None:
    stream = Stream(plan=replace(a_plan(), deadline_s=Setting(value=1200.0, origin="level standard")))
    stream.events = [event for event in stream.events if event["kind"] != "rank"]
    seen = [{"rank": rank, "how": "stuck", "phase": "start-up/import torch"} for rank in (0, 1)]
    stream.send("conductor", "trouble", gen=0, step=-1, seen=seen, waiting=[])
    (finding,) = findings(stream)
    assert finding.severity == "error"
    assert "none of 2 ranks was ready in time" in finding.what


def test_one_host_that_was_not_ready_of_two_is_shown_and_not_blamed() -> None:
    stream = Stream(4, nodes=2, plan=replace(a_plan(), deadline_s=Setting(value=1200.0, origin="level standard")))
    seen = [{"rank": rank, "how": "stuck", "phase": "start-up/import torch", "waited_s": 180.0} for rank in (2, 3)]
    stream.send("conductor", "trouble", gen=0, step=-1, seen=seen, waiting=[])
    (finding,) = findings(stream)
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert (
        '2 of 4 ranks were not ready in time; rank 2 on node gpu-1 was in "start-up/import torch" for 180 s'
        in finding.what
    )


def _second_attempt_out_of_time(*seen: dict[str, Any], timeout_s: float = 20.0) -> tuple[Finding, ...]:
    """Return the findings where a rank died, and the deadline of the trial ended the attempt without it."""
    stream = Stream(4).until("collectives")
    stream.exit(3, -11, ours=False)
    stream.trouble({"rank": 3, "how": "dead"}, waiting=(0, 1, 2))
    stream.kill(0, 1, 2)
    stream.generation = 1
    stream.start((0, 1, 2))
    stream.check("bootstrap")
    stream.begin("collectives", timeout_s=timeout_s)
    stream.trouble(*seen, outcome="deadline")
    stream.kill(0, 1, 2)
    return findings(stream.close(ranks=False))


def test_a_second_attempt_adds_no_error_for_lack_of_time() -> None:
    working = [{"rank": rank, "how": "working"} for rank in range(3)]
    for seen in ((), working, [{"rank": 1, "how": "late", "waited_s": 2.0}]):
        assert [finding.culprit.ranks for finding in _second_attempt_out_of_time(*seen)] == [(3,)]


def test_a_second_attempt_adds_its_own_faults() -> None:
    first, second = _second_attempt_out_of_time({"rank": 1, "how": "late", "waited_s": 16.0})
    assert (first.culprit.ranks, second.culprit.ranks) == ((3,), (1,))
    assert second.what.startswith("after a restart without rank 3, rank 1 ")


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (
            "collectives/reduce_scatter 1048576 B (4 of 9)",
            "ran out of time: 3 of 9 operations within its 60 s (collectives.timeout_s), and",
        ),
        ("training/step 12 forward", "ran out of time: 12 steps within its 60 s (collectives.timeout_s), and"),
        (
            "collectives/barrier",
            "ran out of time: it came to collectives/barrier within its 60 s (collectives.timeout_s), and",
        ),
    ],
)
def test_too_slow_says_how_far_it_came(phase: str, words: str) -> None:
    stream = Stream(2).until("collectives")
    stream.trouble(*({"rank": rank, "how": "working", "phase": phase} for rank in (0, 1)), outcome="deadline")
    stream.kill(0, 1)
    (finding,) = findings(stream.close(ranks=False))
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert words in finding.what


def test_ranks_that_wait_at_a_store_are_no_culprits() -> None:
    """Ranks of links meet before the world is formed, and wait for one another."""
    stream = Stream(4, nodes=4, plan=a_plan(("compute", "links", "bootstrap"))).until("links")
    stream.trouble(*({"rank": rank, "how": "stuck", "phase": "links/meet"} for rank in range(4)), outcome="deadline")
    stream.kill(0, 1, 2, 3)
    (finding,) = findings(stream.close(ranks=False))
    assert (finding.culprit.kind, finding.culprit.ranks) == ("fabric", ())


@pytest.mark.parametrize(
    ("phases", "kind", "ranks"),
    [
        ({0: "broadcast 8 B", 1: "broadcast 8 B", 2: "broadcast 8 B"}, "fabric", [()]),
        ({1: "broadcast 8 B", 2: "broadcast 8 B"}, "process", [(1,), (2,)]),
        ({0: "broadcast 8 B", 1: "barrier", 2: "broadcast 8 B"}, "process", [(0,), (1,), (2,)]),
    ],
)
def test_most_late_in_one_operation_is_the_fabric(phases: dict[int, str], kind: str, ranks: list[Any]) -> None:
    stream = Stream(4, nodes=2).until("collectives")
    stream.trouble(*({"rank": rank, "how": "late", "phase": name} for rank, name in phases.items()), outcome="deadline")
    stream.kill(0, 1, 2, 3)
    named = findings(stream.close(ranks=False))
    assert {finding.culprit.kind for finding in named} == {kind}
    assert [finding.culprit.ranks for finding in named] == ranks
    if kind == "fabric":
        assert named[0].what == '3 of 4 ranks hung in "broadcast 8 B" until the deadline'
        assert named[0].culprit.nodes == ("gpu-0", "gpu-1")


def test_late_ranks_that_work_alone_are_each_named() -> None:
    stream = Stream(3).until("compute")
    stream.trouble({"rank": 0, "how": "late"}, {"rank": 1, "how": "late"}, outcome="deadline")
    stream.kill(0, 1, 2)
    assert [finding.culprit.ranks for finding in findings(stream.close(ranks=False))] == [(0,), (1,)]


def test_a_node_that_never_came_is_not_blamed() -> None:
    stream = Stream(2, nodes=2)
    stream.events = [event for event in stream.events if event["src"] not in ("node1", "rank1.0")]
    stream.send("conductor", "trouble", gen=0, step=-1, seen=[{"node": 1, "how": "lost"}], waiting=[])
    (finding,) = findings(stream)
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert "never reached" in finding.what


def test_only_a_death_before_the_interruption_counts() -> None:
    assert findings(interrupted()) == ()
    stream = Stream().until("collectives")
    stream.exit(1, -9, ours=False)
    stream.trouble({"rank": 1, "how": "dead"})
    stream.send("conductor", "interrupted", by="SIGINT")
    stream.kill(0)
    (finding,) = findings(stream.close(ranks=False))
    assert finding.culprit.ranks == (1,)


def test_a_later_generation_is_named() -> None:
    first, second = findings(SCENES["second fault"]())
    assert first.culprit.ranks == (3,)
    assert second.culprit.ranks == (2,)
    assert second.what.startswith("after a restart without rank 3, rank 2 ")


def test_leftovers_and_late_crashes_are_warnings() -> None:
    stream = healthy()
    stream.events = [event for event in stream.events if (event["src"], event["kind"]) != ("node0", "end")]
    stream.events = [event for event in stream.events if event["kind"] != "exit" or event["rank"] != 1]
    stream.exit(1, -6, ours=False, phase="end", last_lines=(WATCHDOG + MISSED,))
    stream.send("node0", "left", gen=0, rank=0, pid=4711, state="D")
    after, left = findings(stream)
    assert (after.severity, left.severity) == ("warn", "warn")
    assert "after its work was done" in after.what
    assert "process 4711 of rank 0 on node gpu-0 could not be ended (state D)" in left.what


def test_a_rank_that_we_killed_is_no_finding() -> None:
    stream = Stream(plan=a_plan(("compute",)))
    stream.check("compute")
    stream.kill(0, 1)
    assert findings(stream.close(ranks=False)) == ()


def test_no_rank_is_blamed_where_all_were_at_work() -> None:
    (finding,) = findings(SCENES["too short"]())
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert (
        finding.what
        == "training/measure ran out of time: 21 steps within its 60 s (training.timeout_s), and both ranks were still"
        " at work"
    )
    assert finding.evidence == tuple(f'rank {rank} was at work in "training/step 21 forward"' for rank in (0, 1))


def test_an_out_of_memory_kill_is_called_that() -> None:
    stream = died()
    for event in stream.events:
        if event["kind"] == "exit" and event["code"] == -9 and not event["ours"]:
            event["oom_limit_bytes"] = 300 << 20
    (finding,) = findings(stream)
    assert "was killed by signal 9 (SIGKILL)" in finding.what
    assert "the kernel's out-of-memory killer ended it" in finding.what
    assert "allows 300 MiB" in finding.what
    assert finding.action.startswith("allow it more memory")


def test_communication_errors_after_an_interruption_are_its_consequence() -> None:
    def faulty(*, trouble: bool, interrupted: bool) -> tuple[Finding, ...]:
        stream = Stream().until("collectives")
        stream.error(0, "fabric", "Connection closed by peer", "collectives/all_reduce 8 B")
        if trouble:
            stream.trouble({"rank": 0, "how": "error", "detail": "fabric"})
        if interrupted:
            stream.send("conductor", "interrupted", by="SIGINT")
        stream.kill(0, 1)
        return findings(stream.close(ranks=False))

    assert faulty(trouble=False, interrupted=True) == ()
    for was_interrupted in (True, False):
        (finding,) = faulty(trouble=True, interrupted=was_interrupted)
        assert (finding.severity, finding.culprit.kind) == ("fail", "fabric")
    (finding,) = faulty(trouble=False, interrupted=False)
    assert "events were lost, so the cause is not known" in finding.what


@pytest.mark.parametrize(("how", "severity"), [("dead", "fail"), ("stuck", "error"), ("working", "error")])
def test_a_death_that_the_conductor_did_not_see_needs_a_whole_record(how: str, severity: str) -> None:
    """The event that explains the exit may be among those lost."""
    stream = Stream().until("collectives")
    stream.exit(1, 3, ours=False)
    stream.trouble({"rank": 1, "how": how, "detail": "exit code 3"})
    stream.kill(0)
    (finding,) = blame(fold(stream.close(ranks=False).events[:-1]))
    assert finding.severity == severity
    assert ("may be among those lost" in finding.what) is (severity == "error")


def test_only_known_checks_work_alone() -> None:
    assert [check for check in ("compute", "collectives", "telepathy") if works_alone(check)] == ["compute"]


def test_an_unended_process_is_named_with_its_node() -> None:
    stream = Stream(2, nodes=2).until("training")
    stream.send("node1", "left", gen=0, rank=1, pid=4711, state="D")
    (finding,) = findings(stream.close(ranks=False))
    assert finding.what == "process 4711 of rank 1 on node gpu-1 could not be ended (state D)"
    assert (finding.severity, finding.culprit.ranks, finding.culprit.nodes) == ("warn", (1,), ("gpu-1",))


@pytest.mark.parametrize(("detail", "words"), [("exit code 3", "exited with code 3"), ("", "disappeared in ")])
def test_a_death_that_no_agent_reported_is_named(detail: str, words: str) -> None:
    stream = Stream(2, nodes=2).until("collectives")
    stream.trouble({"rank": 1, "how": "dead", "detail": detail}, waiting=(0,))
    stream.kill(0)
    (finding,) = findings(stream.close(ranks=False))
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))
    assert words in finding.what


@pytest.mark.parametrize("how", ["frozen", "absent"])
def test_a_rank_without_an_exit_is_not_dead(how: str) -> None:
    stream = Stream(2, nodes=2).until("collectives")
    stream.trouble({"rank": 1, "how": how}, waiting=(0,))
    (finding,) = findings(stream.close(ranks=False))
    assert ("was frozen" if how == "frozen" else "never entered the collective") in finding.what


def test_a_rank_that_raised_and_is_gone_is_judged_by_its_error() -> None:
    stream = Stream(2, nodes=2).until("training")
    stream.error(1, "own", "list index out of range", "training/step 1", kind="IndexError")
    stream.trouble({"rank": 1, "how": "error", "detail": "own"}, {"rank": 1, "how": "dead", "detail": "exit code 1"})
    stream.kill(0)
    (finding,) = findings(stream.close(ranks=False))
    assert finding.severity == "error"
    assert "IndexError" in finding.what


def test_an_abort_after_a_communication_error_is_explained_by_it() -> None:
    stream = Stream().until("collectives")
    for rank in (0, 1):
        stream.error(rank, "fabric", "Connection closed by peer", "collectives/all_reduce 8 B")
    stream.exit(1, -6, ours=False)
    stream.trouble({"rank": 1, "how": "error", "detail": "fabric"}, {"rank": 1, "how": "dead"})
    stream.kill(0)
    (finding,) = findings(stream.close(ranks=False))
    assert finding.culprit.kind == "fabric"


class _CountedSteps(tuple):  # type: ignore[type-arg]
    """The steps of a trial that count how often somebody goes through all of them."""

    walks: ClassVar[int] = 0

    def __iter__(self) -> Iterator[Any]:
        type(self).walks += 1
        return super().__iter__()


def test_the_steps_are_not_gone_through_for_each_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of somebody else may have a million of both."""
    ranks = 100
    stream = Stream(ranks, nodes=ranks, plan=a_plan(("compute",)))
    stream.begin("compute")
    seen = [{"rank": rank, "how": "late", "phase": f"part {rank}", "waited_s": 20.0} for rank in range(ranks)]
    stream.send("conductor", "trouble", gen=0, step=0, seen=seen, waiting=[])
    trial = fold(stream.events)
    failures = tuple(NodeFailure(generation=0, step=0, node=node, error="boom") for node in range(ranks))
    monkeypatch.setattr(_CountedSteps, "walks", 0)
    found = blame(replace(trial, steps=_CountedSteps(trial.steps), node_failures=failures))
    assert len(found) == 2 * ranks
    assert {finding.check for finding in found} == {"compute"}
    assert _CountedSteps.walks < 10


def test_times_that_no_plan_has_end_in_advice() -> None:
    """A sum of the largest numbers is none any more."""
    events = SCENES["too short"]().events
    for settings in events[0]["plan"]["settings"].values():
        settings["timeout_s"] = [1e308, "level"]
    (option,) = (finding.options for finding in blame(fold(events)) if finding.options)
    assert option == ("--deadline", "240s")
