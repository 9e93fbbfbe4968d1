"""Ranks that are not ready when the time to start is over: a trial names nobody who may have been slow only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from event_streams import Stream
from fake_checks import a_plan

from seatrial.evidence.findings import Finding
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold
from seatrial.plan.model import Setting
from seatrial.protocol.connecting import OTHERS_HAD_ITS_CORE

STARTING = "start-up/import torch"


def findings(stream: Stream) -> tuple[Finding, ...]:
    return blame(fold(stream.events))


def starting(deadline_s: float, *seen: dict[str, Any]) -> tuple[Finding, ...]:
    """Return the findings of trouble while ranks start."""
    stream = Stream(plan=replace(a_plan(), deadline_s=Setting(value=deadline_s, origin="--deadline")))
    full = [{"phase": STARTING, "waited_s": 20.0, "detail": "", **entry} for entry in seen]
    stream.send("conductor", "trouble", gen=0, step=-1, seen=full, waiting=[])
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
def test_a_short_trial_blames_no_slow_start(seen: dict[str, Any]) -> None:
    for deadline_s in (8.0, 120.0, 239.0):
        (finding,) = starting(deadline_s, {"rank": 1, **seen})
        assert (finding.severity, finding.culprit.kind) == ("error", "none")
        assert f"the trial's deadline of {deadline_s:g} s passed while ranks were starting" in finding.what
        assert finding.what.endswith(
            '1 of 2 were not ready; rank 1 on node gpu-0 was in "start-up/import torch" for 20 s'
        )
        assert finding.options == ("--deadline", f"{max(120, round(2 * deadline_s))}s")
        assert f"more time (--deadline {finding.options[1]})" in finding.action
    (finding,) = starting(1200.0, {"rank": 1, **seen})
    # Of one of two hosts the conductor says "stuck" where only the other one says that it is ready.
    assert finding.severity == ("error" if seen["how"] == "stuck" else "fail")
    assert finding.culprit.ranks == ((1,) if seen["how"] == "late" else ())
    if seen["how"] == "frozen":
        assert finding.culprit.name.startswith("a file system that rank 1")


@pytest.mark.parametrize(
    ("deadline_s", "words"),
    [
        (120.0, "the trial's deadline of 120 s passed while ranks were starting: 1 of 2 were not ready"),
        (1200.0, "1 of 2 ranks were still at work when the 180 s to start were over"),
    ],
)
def test_a_rank_whose_core_others_had_at_the_start(deadline_s: float, words: str) -> None:
    (finding,) = starting(deadline_s, {"rank": 1, "how": "working", "detail": OTHERS_HAD_ITS_CORE})
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert finding.what.startswith(words)
    assert finding.what.endswith("; other processes had the core of rank 1: end them on node gpu-0")


def test_a_rank_stopped_while_starting_is_named() -> None:
    (finding,) = starting(60.0, {"rank": 1, "how": "frozen", "detail": "state T (stopped)"})
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))


def test_a_later_generation_has_less_time() -> None:
    # 60 s to join, 195 s for the first attempt, three steps of 0.7 s, and 180 s to start again.
    for deadline_s, named in ((400.0, [(3,)]), (437.0, [(3,)]), (437.2, [(3,), (2,)])):
        stream = Stream(4, plan=replace(a_plan(), deadline_s=Setting(value=deadline_s, origin="--deadline")))
        stream.until("collectives").exit(3, -11, ours=False)
        stream.trouble({"rank": 3, "how": "dead"}, waiting=(0, 1, 2))
        stream.kill(0, 1, 2)
        stream.generation = 1
        stream.start((0, 1, 2))
        late = [{"rank": 2, "how": "late", "phase": STARTING, "waited_s": 5.0}]
        stream.send("conductor", "trouble", gen=1, step=-1, seen=late, waiting=[])
        stream.kill(0, 1, 2)
        assert [finding.culprit.ranks for finding in findings(stream.close(ranks=False))] == named


def test_a_step_of_agents_leaves_the_start_less_time() -> None:
    # 60 s to join, 0.7 s of the agents, and 180 s to start.
    for deadline_s, severity in ((240.5, "error"), (240.8, "fail")):
        stream = Stream(plan=replace(a_plan(), deadline_s=Setting(value=deadline_s, origin="--deadline")))
        step = stream.begin("compute")
        stream.events[-1] |= {"ranks": [], "nodes": [0]}
        stream.send("node0", "node_done", gen=0, step=step, seconds=0.5, share=[], error="")
        stream.step_end()
        late = [{"rank": 1, "how": "late", "phase": STARTING, "waited_s": 5.0}]
        stream.send("conductor", "trouble", gen=0, step=-1, seen=late, waiting=[])
        stream.kill(0, 1)
        (finding,) = findings(stream.close(ranks=False))
        assert finding.severity == severity


def test_cores_of_ranks_that_nobody_knows() -> None:
    """The log of a trial may be cut."""
    stream = Stream(2).until("training")
    stream.trouble({"rank": 1, "how": "working", "detail": OTHERS_HAD_ITS_CORE}, outcome="deadline")
    events = [event for event in stream.events if event["kind"] not in ("generation", "rank")]
    (finding,) = [finding for finding in blame(fold(events)) if "other processes" in finding.what]
    assert finding.what.endswith("; other processes had the core of rank 1")
