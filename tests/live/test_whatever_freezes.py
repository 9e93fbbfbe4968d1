"""Whatever is stopped or never comes: named within half a minute. The trials run side by side, for each waits long."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from live.trials import Ended, Trial, events_in, wait_until_none_left

STEP_TIMEOUT_S = 30

FAULTS = {
    "stopped rank": "stop@collectives/all_reduce:1",
    "stopped rank 0": "stop@training/step 4:0",
    "stopped alone": "stop@compute/gemm:1",
    "stopped agent": "agent-stop@collectives:0",
    "never enters": "hang@collectives/all_gather:1",
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ended]]:
    trials = {name: Trial(tmp_path_factory.mktemp("frozen"), plant=[fault]) for name, fault in FAULTS.items()}
    yield {name: trial.ended() for name, trial in trials.items()}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "rank", "phase", "words"),
    [
        ("stopped rank", 1, "collectives/all_reduce", "state T"),
        ("stopped rank 0", 0, "training/step 4", "state T"),
        ("stopped alone", 1, "compute/gemm", "state T"),
        ("never enters", 1, "collectives/all_gather", "inject.py"),
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


@pytest.mark.timeout(120)
def test_the_stack_of_a_rank_that_hangs_is_evidence(ended: dict[str, Ended]) -> None:
    (finding,) = ended["never enters"].grave()
    assert any("in _do" in evidence for evidence in finding["evidence"])


@pytest.mark.timeout(120)
def test_a_silent_node_is_named(ended: dict[str, Ended]) -> None:
    (finding,) = ended["stopped agent"].grave()
    assert ended["stopped agent"].exit_code == 1
    assert finding["culprit"]["kind"] == "node"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_named_within_thirty_seconds(ended: dict[str, Ended], name: str) -> None:
    events = ended[name].events()
    trouble = next(event for event in events if event["kind"] == "trouble")
    began = next(event for event in events if event["kind"] == "step" and event["step"] == trouble["step"])
    end = next(event for event in events if event["kind"] == "end" and event["src"] == "conductor")
    assert end["t"] - began["t"] < STEP_TIMEOUT_S


@pytest.mark.timeout(120)
def test_a_stopped_controller_is_outlived_and_then_left(tmp_path: Path) -> None:
    running = Trial(tmp_path, plant=["hang@collectives:1"])
    running.until(lambda event: event["kind"] == "step" and event["check"] == "collectives")
    running.signal(signal.SIGSTOP)
    try:
        wait_until_none_left(tmp_path, 50)
        (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
        notes = [event["text"] for event in events_in(folder) if event["kind"] == "note"]
        assert any("heard nothing from the controller" in text for text in notes)
        running.signal(signal.SIGCONT)
        after = running.ended()
    finally:
        os.kill(running.process.pid, signal.SIGCONT) if running.process.poll() is None else None
    assert after.exit_code == 3
    assert not any(finding["culprit"]["ranks"] for finding in after.grave())
