"""Ranks and agents that die, raise or leave: the verdict names the right one, and no process stays behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from live.trials import Ended, Trial, events_in, trial, wait_until_none_left


def seconds_to_the_end(ended: Ended, kind: str, rank: int) -> float:
    """Seconds from the event of that kind about that rank to the conductor's end, by their own clocks."""
    events = ended.events()
    at = next(event["t"] for event in events if event["kind"] == kind and event.get("rank") == rank)
    end = next(event["t"] for event in events if event["kind"] == "end" and event["src"] == "conductor")
    return float(end - at)


@pytest.mark.parametrize(
    ("fault", "rank", "phase"),
    [
        pytest.param("kill@compute:1", 1, "compute/", marks=pytest.mark.nightly),
        ("kill@collectives/all_reduce:0", 0, "collectives/all_reduce"),
        pytest.param("kill@training/step 5:1", 1, "training/step 5", marks=pytest.mark.nightly),
    ],
)
def test_a_dead_rank_is_named_with_its_phase(tmp_path: Path, fault: str, rank: int, phase: str) -> None:
    check = phase.partition("/")[0]
    ended = trial(tmp_path, "smoke", "--only", f"bootstrap,{check}", plant=[fault])
    (finding,) = ended.grave()
    assert (ended.exit_code, finding["severity"]) == (1, "fail")
    assert finding["culprit"]["ranks"] == [rank]
    assert "SIGKILL" in finding["what"]
    assert phase in finding["what"]


@pytest.mark.slow
def test_a_dead_rank_is_named_within_five_seconds(tmp_path: Path) -> None:
    ended = trial(tmp_path, plant=["kill@collectives/all_reduce:0"])
    (finding,) = ended.grave()
    assert finding["culprit"]["ranks"] == [0]
    assert seconds_to_the_end(ended, "exit", 0) < 5


@pytest.mark.slow
def test_a_rank_that_exits_0_early_is_named(tmp_path: Path) -> None:
    ended = trial(tmp_path, plant=["exit@training/step 3:1"])
    (finding,) = ended.grave()
    assert ended.exit_code == 1
    assert finding["culprit"]["ranks"] == [1]
    assert "code 0" in finding["what"]


@pytest.mark.slow
def test_our_exception_is_no_fault_of_the_cluster(tmp_path: Path) -> None:
    ended = trial(tmp_path, plant=["raise@collectives:1"])
    (finding,) = ended.grave()
    assert (ended.exit_code, finding["severity"]) == (3, "error")
    assert "rank 1" in finding["what"]
    assert "KeyError" in str(finding)


@pytest.mark.slow
def test_a_rank_with_a_device_error_is_named(tmp_path: Path) -> None:
    ended = trial(tmp_path, plant=["device@training/step 2:0"])
    (finding,) = ended.grave()
    assert ended.exit_code == 1
    assert finding["culprit"]["ranks"] == [0]
    assert "CUDA error" in str(finding)


@pytest.mark.slow
def test_a_rank_out_of_memory_is_named(tmp_path: Path) -> None:
    ended = trial(tmp_path, plant=["memory@training:1"])
    (finding,) = ended.grave()
    assert ended.exit_code == 1
    assert finding["culprit"]["ranks"] == [1]
    assert "out of memory" in finding["what"]


@pytest.mark.slow
def test_the_node_of_a_killed_agent_is_named(tmp_path: Path) -> None:
    ended = trial(tmp_path, plant=["agent-kill@collectives:0"])
    (finding,) = ended.grave()
    assert ended.exit_code == 1
    assert finding["culprit"]["kind"] == "node"


@pytest.mark.slow
def test_the_rest_goes_on_without_the_dead_rank(tmp_path: Path) -> None:
    ended = trial(tmp_path, "smoke", "--nproc-per-node", "3", plant=["kill@collectives/all_reduce:1"])
    assert ended.exit_code == 1
    assert [generation["ranks"] for generation in ended.report["generations"]] == [[0, 1, 2], [0, 2]]
    again = [step for step in ended.report["steps"] if step["generation"] == 1]
    assert {step["check"] for step in again} == {"bootstrap", "collectives", "training"}
    assert all(step["outcome"] == "done" for step in again)
    assert [finding["culprit"]["ranks"] for finding in ended.grave()] == [[1]]


@pytest.mark.slow
def test_a_killed_controller_leaves_events_and_no_rank(tmp_path: Path) -> None:
    running = Trial(tmp_path, plant=["hang@collectives:1"])
    running.until(lambda event: event["kind"] == "step" and event["check"] == "collectives")
    running.process.kill()
    running.process.communicate()
    wait_until_none_left(tmp_path, 20)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    events = events_in(folder)
    assert any(event["kind"] == "note" and "control connection" in event["text"] for event in events)
    assert any(event["kind"] == "end" and event["src"] == "node0" for event in events)
    again = subprocess.run(
        [sys.executable, "-m", "seatrial", "report", str(folder), "-v", "--out", str(tmp_path / "again")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert again.returncode == 3, again.stderr
    assert "FINAL ACCEPTANCE: INCONCLUSIVE" in again.stdout
    assert "tflops" in again.stdout
