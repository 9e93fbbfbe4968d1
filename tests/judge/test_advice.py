"""The advice beside a finding fits what was seen: the state, the place, and how far a slow check came."""

from __future__ import annotations

from dataclasses import replace

import pytest
from event_streams import SCENES, Stream, died, frozen
from fake_checks import a_plan

from seatrial.evidence.findings import Finding
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold
from seatrial.plan.model import Setting


def finding_of(stream: Stream) -> Finding:
    (finding,) = blame(fold(stream.events))
    return finding


def stopped(detail: str) -> Stream:
    stream = Stream(2).until("collectives")
    stream.trouble({"rank": 1, "how": "frozen", "phase": "collectives/begin", "detail": detail}, waiting=(0,))
    stream.kill(0, 1)
    return stream.close(ranks=False)


@pytest.mark.parametrize(
    ("detail", "words", "others"),
    [
        ("state T (stopped)", "who stopped it", "kernel log"),
        ("state t (stopped)", "debugger", "kernel log"),
        ("state D (in uninterruptible sleep)", "a process that stays in state D", "who stopped it"),
        ("", "kernel log", "state D"),
    ],
)
def test_a_frozen_process_has_the_advice_of_its_state(detail: str, words: str, others: str) -> None:
    action = finding_of(stopped(detail)).action
    assert words in action
    assert others not in action


def test_frozen_and_absent_are_told_apart() -> None:
    """A frozen process cannot run; one that never entered the collective could, and its stack says why it did not."""
    assert finding_of(frozen()).what.endswith(" was frozen, state T (stopped), in collectives/begin for 16 s")
    absent = finding_of(frozen("absent"))
    assert absent.what.endswith("while the others waited (no progress and no CPU time, state S)")
    assert absent.action.startswith("look at its stack for what it waits for")


def hung(nodes: int, device_type: str = "cpu", checks: tuple[str, ...] = ()) -> Finding:
    stream = Stream(max(2, nodes), nodes=nodes, plan=a_plan((*checks, "compute", "bootstrap", "collectives")))
    for event in stream.events:
        if event["kind"] == "rank":
            event["device_type"] = device_type
    stream.until("collectives")
    stream.trouble({"rank": 0, "how": "stuck"}, {"rank": 1, "how": "stuck"}, outcome="deadline")
    stream.kill(0, 1)
    return finding_of(stream.close(ranks=False))


def test_inside_one_node_there_is_no_cable() -> None:
    for device_type, words in (("cpu", "loopback, shared memory"), ("cuda", "NVLink, PCIe, shared memory")):
        finding = hung(1, device_type)
        assert finding.culprit.name == "communication between the processes inside node gpu-0"
        assert f"({words}), not at the network between nodes" in finding.action
        assert "cables" not in finding.action


def test_between_nodes_the_checks_that_were_left_out_are_named() -> None:
    assert hung(3).action.endswith("; the checks network and links tell node from link")
    assert hung(2).action.endswith("; the checks network and links tell node from link, where there is a third node")
    assert hung(2, checks=("network", "links")).action.endswith("the network settings between these nodes")


def slow(phase: str, **settings: float) -> Finding:
    plan = a_plan()
    table = {
        **plan.settings["training"],
        **{name: Setting(value=value, origin="level") for name, value in settings.items()},
    }
    stream = Stream(plan=replace(plan, settings={**plan.settings, "training": table})).until("training")
    stream.trouble(*({"rank": rank, "how": "working", "phase": phase} for rank in (0, 1)), outcome="deadline")
    stream.kill(0, 1)
    return finding_of(stream.close(ranks=False))


def test_a_slow_check_says_what_it_needs() -> None:
    """60 s for 21 of 100 steps: 286 s for all, and 429 s to try next, in a trial of 120 + 369 s."""
    finding = slow("training/step 21 forward", max_steps=100)
    assert "21 of 100 steps within its 60 s" in finding.what
    assert finding.what.endswith("; at this pace it needs about 286 s")
    assert finding.options == ("training.timeout_s", "429", "--deadline", "489s")
    assert "(training.timeout_s = 429 in a plan file, --deadline 489s)" in finding.action


@pytest.mark.parametrize(
    ("phase", "settings", "needed"),
    [
        ("training/step 21 forward", {}, ""),
        ("training/step 21 forward", {"max_steps": 100, "epochs": 2}, ""),
        ("training/step 0 forward", {"max_steps": 100}, ""),
        ("training/all_reduce 8 B (4 of 9)", {}, "; at this pace it needs about 180 s"),
        ("training/barrier", {"max_steps": 100}, ""),
    ],
)
def test_no_pace_where_none_is_known(phase: str, settings: dict[str, float], needed: str) -> None:
    finding = slow(phase, **settings)
    assert finding.what.endswith(f"still at work{needed}")
    assert finding.options[1] == ("270" if needed else "120")


def test_a_lost_node_did_not_come_back() -> None:
    assert (
        finding_of(SCENES["node silent"]()).what
        == "node gpu-1 fell silent in collectives and sent nothing more for 16 s"
    )
    lost = finding_of(SCENES["node lost"]())
    assert lost.what == "node gpu-1 was lost in collectives: the control connection was closed"


def test_a_rank_that_only_says_why_its_peer_is_gone_says_it_first() -> None:
    """The place in the source of Gloo would fill the line."""
    stream = died()
    for event in stream.events:
        if event["kind"] == "error":
            event["message"] = (
                "[/__w/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"
            )
    assert finding_of(stream).evidence[-1].endswith(": Connection closed by peer [127.0.0.1]:4711")
