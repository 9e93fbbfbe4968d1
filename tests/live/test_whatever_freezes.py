"""Ranks, agents and controllers that stop or hang: each is named. The slow trials run side by side: each waits long."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from live.trials import Ended, Trial, trial, wait_until_none_left

STEP_TIMEOUT_S = 30

FAULTS = {
    "stopped rank": "stop@collectives/all_reduce:1",
    "stopped rank 0": "stop@training/step 4:0",
    "stopped alone": "stop@compute/gemm:1",
    "stopped agent": "agent-stop@collectives:0",
    "never enters": "hang@collectives/all_gather:1",
}
STOPPED_CONTROLLER = "stopped controller"


def test_a_frozen_rank_is_named(tmp_path: Path) -> None:
    """The deadline of the step is shorter than the patience with a rank that stops."""
    plan = tmp_path / "bootstrap.toml"
    plan.write_text('level = "smoke"\nchecks = ["bootstrap"]\n[bootstrap]\ntimeout_s = 4\n')
    ended = trial(tmp_path / "out", str(plan), plant=["stop@bootstrap:1"])
    (finding,) = ended.grave()
    assert (ended.exit_code, finding["severity"]) == (1, "fail")
    assert finding["culprit"]["ranks"] == [1]
    assert 'was frozen, state T (stopped), in "bootstrap/' in finding["what"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    controller = Trial(tmp_path_factory.mktemp("frozen"), plant=["hang@collectives:1"])
    controller.until(lambda event: event["kind"] == "step" and event["check"] == "collectives")
    controller.signal(signal.SIGSTOP)
    try:
        trials = {name: Trial(tmp_path_factory.mktemp("frozen"), plant=[fault]) for name, fault in FAULTS.items()}
        results = {name: running.ended() for name, running in trials.items()}
        wait_until_none_left(controller.out, 50)
    finally:
        controller.signal(signal.SIGCONT)
    return {**results, STOPPED_CONTROLLER: controller.ended()}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "rank", "phase", "words"),
    [
        ("stopped rank", 1, "collectives/all_reduce", "state T"),
        ("stopped rank 0", 0, "training/step 4", "state T"),
        ("stopped alone", 1, "compute/gemm", "state T"),
        ("never enters", 1, "collectives/all_gather", "faults.py"),
    ],
)
def test_a_frozen_or_absent_rank_is_named(
    ended: dict[str, Ended], name: str, rank: int, phase: str, words: str
) -> None:
    (finding,) = ended[name].grave()
    assert ended[name].exit_code == 1
    assert finding["culprit"]["ranks"] == [rank]
    assert phase in finding["what"]
    assert words in str(finding)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_stack_of_a_hanging_rank_is_evidence(ended: dict[str, Ended]) -> None:
    (finding,) = ended["never enters"].grave()
    assert any("in _carry_out" in evidence for evidence in finding["evidence"])


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_silent_node_is_named(ended: dict[str, Ended]) -> None:
    (finding,) = ended["stopped agent"].grave()
    assert ended["stopped agent"].exit_code == 1
    assert finding["culprit"]["kind"] == "node"


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_named_within_thirty_seconds(ended: dict[str, Ended], name: str) -> None:
    events = ended[name].events()
    trouble = next(event for event in events if event["kind"] == "trouble")
    began = next(event for event in events if event["kind"] == "step" and event["step"] == trouble["step"])
    end = next(event for event in events if event["kind"] == "end" and event["src"] == "conductor")
    assert end["t"] - began["t"] < STEP_TIMEOUT_S


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_agent_ends_without_a_stopped_controller(ended: dict[str, Ended]) -> None:
    after = ended[STOPPED_CONTROLLER]
    notes = [event["text"] for event in after.events() if event["kind"] == "note"]
    assert any("received nothing from the controller" in text for text in notes)
    assert after.exit_code == 3
    assert not any(finding["culprit"]["ranks"] for finding in after.grave())
