"""A job of Slurm from its submission to its end, with stubs of Slurm's commands that say what a test wrote down."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from seatrial.errors import RequestError, SeatrialError
from seatrial.launch import slurm_driver
from seatrial.launch.command import Command
from seatrial.launch.slurm_driver import Batch

COMMAND = Command(argv=("sbatch", "--parsable", "--wrap=true"), env={"SEATRIAL_TOKEN": "x"}, nodes=(0, 1))
# The first line of the file is the answer, and is dropped unless it is the last one; scancel writes down what it is
# told, and the job is cancelled by it.
STUBS = {
    "sbatch": 'cat "$STUB/sbatch.err" >&2 2>/dev/null; [ -e "$STUB/sbatch.out" ] && cat "$STUB/sbatch.out"',
    "squeue": 'head -n1 "$STUB/squeue.out"; [ $(wc -l < "$STUB/squeue.out") -gt 1 ] && sed -i 1d "$STUB/squeue.out"; :',
    "sacct": ":",
    "scancel": 'echo "$@" >> "$STUB/cancelled"; [ -e "$STUB/deaf" ] || echo "CANCELLED|None|" > "$STUB/squeue.out"',
}


def no_feed(connection: socket.socket, sent: bytes) -> None:
    raise NotImplementedError


class StubSlurm:
    """What the stubs answer, and what the driver said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.now = 0.0
        self.step_s = 0.5
        """How far the clock goes on each time that somebody looks at it."""
        (folder / "sbatch.out").write_text("12;cluster\n")

    def batch(self, *states: str, queue_timeout_s: float = 1e6) -> Batch:
        (self.folder / "squeue.out").write_text("".join(f"{state}\n" for state in states))
        return Batch(queue_timeout_s=queue_timeout_s, asked="--nodes=2", tell=self.said.append, clock=self.clock)

    def clock(self) -> float:
        self.now += self.step_s
        return self.now

    @property
    def cancelled(self) -> str:
        path = self.folder / "cancelled"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubSlurm:
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for name, text in STUBS.items():
        (stubs / name).write_text(f"#!/bin/sh\n{text}\n")
        (stubs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{stubs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STUB", str(tmp_path))
    for name in ("_QUEUE_LOOK_S", "_END_LOOK_S"):
        monkeypatch.setattr(slurm_driver, name, 0.0)
    return StubSlurm(tmp_path)


def test_it_waits_with_the_reason_in_words_and_says_each_once(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("PENDING|Priority|", "PENDING|Priority|", "PENDING|Resources|", "RUNNING|None|n[0-1]")
    batch.start([COMMAND], tmp_path, [], no_feed)
    assert slurm.said == [
        "seatrial: submitted as Slurm job 12",
        "seatrial: Slurm job 12 waits: others are before it (Priority)",
        "seatrial: Slurm job 12 waits: nodes are not free yet (Resources)",
        "seatrial: Slurm job 12 runs on n[0-1]",
    ]


@pytest.mark.parametrize(
    ("states", "why"),
    [
        (["PENDING|Resources|", "CANCELLED|None|"], r"Slurm job 12: it was cancelled \(CANCELLED\)\."),
        (["PENDING|PartitionNodeLimit|"], r"Slurm job 12 will never start: it asks for more nodes than the partition"),
        (["BOOT_FAIL|None|n0"], r"Slurm job 12: a node could not be started \(BOOT_FAIL\)"),
    ],
)
def test_a_job_that_will_not_run_is_given_up_with_the_reason(
    slurm: StubSlurm, tmp_path: Path, states: list[str], why: str
) -> None:
    batch = slurm.batch(*states)
    with pytest.raises(SeatrialError, match=why):
        batch.start([COMMAND], tmp_path, [], no_feed)
    assert batch.end() == []
    assert (slurm.cancelled == "12\n") == states[-1].startswith("PENDING")


def test_it_does_not_wait_for_ever(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("PENDING|Resources|", queue_timeout_s=3.0)
    with pytest.raises(SeatrialError, match=r"has not started for [34] s \(--queue-timeout\): nodes are not free yet"):
        batch.start([COMMAND], tmp_path, [], no_feed)
    assert batch.end() == []
    assert slurm.cancelled == "12\n"


def test_a_slurm_that_says_nothing_any_more_is_given_up(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("slurm_load_jobs error: Unable to contact slurm controller")
    (slurm.folder / "deaf").touch()
    slurm.step_s = 20.0
    with pytest.raises(SeatrialError, match="Slurm has said nothing of job 12 for 120 s"):
        batch.start([COMMAND], tmp_path, [], no_feed)
    assert slurm.cancelled == ""


def test_ctrl_c_in_the_queue_cancels_the_job(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("PENDING|Resources|")
    batch.start([COMMAND], tmp_path, [2], no_feed)
    assert batch.end() == []
    assert slurm.cancelled == "12\n"


@pytest.mark.parametrize(
    ("said", "error", "why"),
    [
        (
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            RequestError,
            r"sbatch refuses the job: Invalid partition name specified; it asks for --nodes=2\.",
        ),
        (
            "sbatch: unrecognized option '--foo'\nTry \"sbatch --help\" for more information\n",
            RequestError,
            "sbatch refuses the job: unrecognized option '--foo'; it asks for",
        ),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            SeatrialError,
            "Slurm does not answer: Unable to contact slurm controller",
        ),
    ],
)
def test_what_sbatch_says_is_told(
    slurm: StubSlurm, tmp_path: Path, said: str, error: type[SeatrialError], why: str
) -> None:
    (slurm.folder / "sbatch.out").unlink()
    (slurm.folder / "sbatch.err").write_text(said)
    batch = slurm.batch()
    with pytest.raises(error, match=why) as raised:
        batch.start([COMMAND], tmp_path, [], no_feed)
    assert type(raised.value) is error
    assert batch.end() == []
    assert slurm.cancelled == ""


def test_without_slurm_it_says_where_to_type_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    batch = Batch(queue_timeout_s=1.0, asked="")
    with pytest.raises(RequestError, match="sbatch is not to be found; type this on a host of the cluster"):
        batch.start([COMMAND], tmp_path, [], no_feed)
    assert batch.end() == []


def news(batch: Batch, count: int) -> list[tuple[int, str] | str]:
    """The first that come, asked for as the conductor does: it never waits."""
    found: list[tuple[int, str] | str] = []
    give_up = time.monotonic() + 20
    while len(found) < count and time.monotonic() < give_up:
        told = batch.news()
        if told is not None:
            found.append(told)
        time.sleep(0.01)
    return found


def test_a_job_that_slurm_stopped_is_told_once(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("RUNNING|None|n[0-1]", "RUNNING|None|n[0-1]", "TIMEOUT|TimeLimit|n[0-1]")
    batch.start([COMMAND], tmp_path, [], no_feed)
    assert news(batch, 1) == ["Slurm job 12: its time is over; give it more with --time (TIMEOUT)"]
    assert [batch.news() for _ in range(50)] == [None] * 50
    assert batch.end() == []


def test_the_end_of_the_job_is_that_of_all_agents(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("RUNNING|None|n[0-1]", "FAILED|NonZeroExitCode|n[0-1]")
    batch.start([COMMAND], tmp_path, [], no_feed)
    (tmp_path / "slurm.log").write_text("srun: error: n1: task 1: Killed\n")
    words = "Slurm job 12: it failed (FAILED); n1: task 1: Killed"
    assert news(batch, 2) == [(0, words), (1, words)]
    assert batch.end() == []
    assert slurm.cancelled == ""


def test_an_srun_in_the_job_that_refuses_its_words_is_a_wrong_request(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("RUNNING|None|n[0-1]", "FAILED|NonZeroExitCode|n[0-1]")
    batch.start([COMMAND], tmp_path, [], no_feed)
    (tmp_path / "slurm.log").write_text("srun: unrecognized option '--container-image=x'\nTry srun --help\n")
    with pytest.raises(RequestError, match="srun: unrecognized option '--container-image=x'; see"):
        news(batch, 1)
    assert batch.end() == []


def test_a_job_that_goes_on_is_cancelled_at_the_end(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("RUNNING|None|n[0-1]")
    batch.start([COMMAND], tmp_path, [], no_feed)
    assert batch.end() == []
    assert slurm.cancelled == "12\n"


def test_a_job_that_cannot_be_cancelled_is_named(slurm: StubSlurm, tmp_path: Path) -> None:
    (slurm.folder / "deaf").touch()
    batch = slurm.batch("RUNNING|None|n[0-1]")
    batch.start([COMMAND], tmp_path, [], no_feed)
    ((node, words),) = batch.end()
    assert (node, words) == (0, "Slurm job 12 may still be there, Slurm does not say; type scancel 12")
