"""The driver of a Slurm job, with stubs of Slurm's commands that print the answers of a test."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from targets.jobs import A_JOB

from seatrial.errors import RequestError, SeatrialError, TargetUnreachableError
from seatrial.targets import remote_defaults
from seatrial.targets.command import Command
from seatrial.targets.host_of_node import HostOfNode, HostsMissingError
from seatrial.targets.slurm import driver, slurm_target
from seatrial.targets.slurm.driver import BatchJobDriver

COMMAND = Command(argv=("sbatch", "--parsable", "--wrap=true"), env={"SEATRIAL_TOKEN": "x"}, nodes=(0, 1))
# squeue prints the first line of its file and drops it unless it is the last one; scancel records its arguments and
# cancels the job, unless the file ``deaf`` exists. The partition is hidden: only --all shows its nodes and steps.
STUBS = {
    "sbatch": 'cat "$STUB/sbatch.err" >&2 2>/dev/null; [ -e "$STUB/sbatch.out" ] && cat "$STUB/sbatch.out"',
    "squeue": 'case "$*" in *--steps*) case "$*" in *--all*) cat "$STUB/squeue.out";; esac; exit;; esac;'
    ' head -n1 "$STUB/squeue.out"; [ $(wc -l < "$STUB/squeue.out") -gt 1 ] && sed -i 1d "$STUB/squeue.out"; :',
    "sacct": ":",
    "sinfo": 'echo "$@" > "$STUB/asked"; case "$*" in *--all*) cat "$STUB/sinfo.out";; esac',
    "sattach": 'echo "$@" > "$STUB/laid out"; cat "$STUB/sattach.out"',
    "scancel": 'echo "$@" >> "$STUB/cancelled"; [ -e "$STUB/deaf" ] || echo "CANCELLED|None|" > "$STUB/squeue.out"',
}


def no_feed(connection: socket.socket, sent: bytes, node: int) -> None:
    raise NotImplementedError


class StubSlurm:
    """The answers of the stubs, the status lines of the driver, and its clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.status: list[str] = []
        self.now = 0.0
        self.step_s = 0.5
        """Seconds by which each reading advances the clock."""
        (folder / "sbatch.out").write_text("12;cluster\n")

    def batch(self, *states: str, queue_timeout_s: float = 1e6) -> BatchJobDriver:
        (self.folder / "squeue.out").write_text("".join(f"{state}\n" for state in states))
        return BatchJobDriver(
            queue_timeout_s=queue_timeout_s,
            requested="--nodes=2",
            step_name="trial",
            on_status=self.status.append,
            clock=self.clock,
        )

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
    for name in ("_QUEUE_POLL_S", "_END_POLL_S"):
        monkeypatch.setattr(driver, name, 0.0)
    return StubSlurm(tmp_path)


def test_each_reason_to_wait_is_reported_once(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("PENDING|Priority|", "PENDING|Priority|", "PENDING|Resources|", "RUNNING|None|n[0-1]")
    batch.submit([COMMAND], tmp_path, [], no_feed)
    assert slurm.status == [
        "seatrial: submitted as Slurm job 12",
        "seatrial: Slurm job 12 is waiting: jobs of higher priority are ahead of it (Priority)",
        "seatrial: Slurm job 12 is waiting: nodes are not free yet (Resources)",
        "seatrial: Slurm job 12 is running on n[0-1]",
    ]


@pytest.mark.parametrize(
    "output",
    ["12\n", "Welcome to n0\nquota: 5 of 9 GB\n12;cluster\n", " 12 \n\nSubmitted to gpu\n", "2026-11-26\n\n12;a-b.c"],
)
def test_the_number_of_the_job_is_found_among_words_of_the_site(output: str, slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("RUNNING|None|n[0-1]")
    (slurm.folder / "sbatch.out").write_text(output)
    batch.submit([COMMAND], tmp_path, [], no_feed)
    assert batch.number == "12"


@pytest.mark.parametrize("output", ["", "7\n12\n", "Submitted batch job 12\n", "-12\n"])
def test_a_job_without_a_number_is_not_called_refused(output: str, slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch()
    (slurm.folder / "sbatch.out").write_text(output)
    message = r"sbatch has not said the number of one job; .*scancel --name=seatrial-"
    with pytest.raises(SeatrialError, match=message) as raised:
        batch.submit([COMMAND], tmp_path, [], no_feed)
    assert not isinstance(raised.value, RequestError)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (["PENDING|Resources|", "CANCELLED|None|"], r"Slurm job 12: it was cancelled \(CANCELLED\)\."),
        (["PENDING|PartitionNodeLimit|"], r"Slurm job 12 will never start: it requests more nodes than the partition"),
        (["BOOT_FAIL|None|n0"], r"Slurm job 12: a node failed to boot \(BOOT_FAIL\)"),
    ],
)
def test_a_job_that_will_not_run_ends_the_wait(
    slurm: StubSlurm, tmp_path: Path, states: list[str], message: str
) -> None:
    batch = slurm.batch(*states)
    with pytest.raises(SeatrialError, match=message):
        batch.submit([COMMAND], tmp_path, [], no_feed)
    assert batch.cleanup() == []
    assert (slurm.cancelled == "12\n") == states[-1].startswith("PENDING")


def test_the_wait_in_the_queue_has_a_deadline(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("PENDING|Resources|", queue_timeout_s=3.0)
    with pytest.raises(
        SeatrialError, match=r"has not started after [34] s \(--queue-timeout\): nodes are not free yet"
    ):
        batch.submit([COMMAND], tmp_path, [], no_feed)
    assert batch.cleanup() == []
    assert slurm.cancelled == "12\n"


def test_a_controller_that_stops_answering_ends_the_wait(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("slurm_load_jobs error: Unable to contact slurm controller")
    (slurm.folder / "deaf").touch()
    slurm.step_s = 20.0
    with pytest.raises(SeatrialError, match="Slurm has not reported the state of job 12 for 120 s"):
        batch.submit([COMMAND], tmp_path, [], no_feed)
    assert slurm.cancelled == ""


def test_ctrl_c_in_the_queue_cancels_the_job(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("PENDING|Resources|")
    batch.submit([COMMAND], tmp_path, [2], no_feed)
    assert batch.cleanup() == []
    assert slurm.cancelled == "12\n"


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        (
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            RequestError,
            r"sbatch refuses the job: Invalid partition name specified; it requests --nodes=2\.",
        ),
        (
            "sbatch: unrecognized option '--foo'\nTry \"sbatch --help\" for more information\n",
            RequestError,
            "sbatch refuses the job: unrecognized option '--foo'; it requests",
        ),
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            RequestError,
            "sbatch refuses the job: Requested node configuration is not available; it requests",
        ),
        (
            "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
            "sbatch: fatal: Could not establish a configuration source",
            TargetUnreachableError,
            "Slurm does not answer: Could not establish a configuration source; check",
        ),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            TargetUnreachableError,
            r"Slurm does not answer: Unable to contact slurm controller .* with scancel --name=seatrial-trial\.",
        ),
    ],
)
def test_the_error_of_sbatch_is_reported(
    slurm: StubSlurm, tmp_path: Path, output: str, error: type[SeatrialError], message: str
) -> None:
    (slurm.folder / "sbatch.out").unlink()
    (slurm.folder / "sbatch.err").write_text(output)
    batch = slurm.batch()
    with pytest.raises(error, match=message) as raised:
        batch.submit([COMMAND], tmp_path, [], no_feed)
    assert type(raised.value) is error
    assert batch.cleanup() == []
    assert slurm.cancelled == ""


def test_a_job_that_sbatch_may_have_submitted_can_be_found(
    slurm: StubSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_ANSWER_S", 0.1)
    command = replace(COMMAND, argv=("sleep", "100"))
    with pytest.raises(TargetUnreachableError, match=r"should squeue --name=seatrial-trial show a job then, end it"):
        slurm.batch().submit([command], tmp_path, [], no_feed)


def test_a_missing_sbatch_is_a_wrong_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    batch = BatchJobDriver(queue_timeout_s=1.0, requested="", step_name="trial")
    with pytest.raises(RequestError, match="sbatch was not found in PATH; run this command on a host of the cluster"):
        batch.submit([COMMAND], tmp_path, [], no_feed)
    assert batch.cleanup() == []


def news(batch: BatchJobDriver, count: int) -> list[tuple[int, str] | str]:
    """Return the first ``count`` pieces of news, polled without waiting, as the conductor does."""
    received: list[tuple[int, str] | str] = []
    give_up = time.monotonic() + 20
    while len(received) < count and time.monotonic() < give_up:
        item = batch.poll(())
        if item is not None:
            received.append(item)
        time.sleep(0.01)
    return received


def test_a_job_stopped_by_slurm_is_reported_once(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("RUNNING|None|n[0-1]", "RUNNING|None|n[0-1]", "TIMEOUT|TimeLimit|n[0-1]")
    batch.submit([COMMAND], tmp_path, [], no_feed)
    assert news(batch, 1) == ["Slurm job 12: it reached its time limit; raise it with --time (TIMEOUT)"]
    assert [batch.poll(()) for _ in range(50)] == [None] * 50
    assert batch.cleanup() == []


def test_the_end_of_the_job_is_the_end_of_all_agents(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("RUNNING|None|n[0-1]", "FAILED|NonZeroExitCode|n[0-1]")
    batch.submit([COMMAND], tmp_path, [], no_feed)
    (tmp_path / "slurm.log").write_text("srun: error: n1: task 1: Killed\n")
    words = 'Slurm job 12: it failed (FAILED); its output says: "n1: task 1: Killed"'
    assert news(batch, 2) == [(0, words), (1, words)]
    assert batch.cleanup() == []
    assert slurm.cancelled == ""


def test_bytes_of_slurm_that_are_no_text_are_shown_as_such(slurm: StubSlurm, tmp_path: Path) -> None:
    """The reason of a job is text of an administrator, in any encoding."""
    batch = slurm.batch("RUNNING|None|n[0-1]")
    states = b"PENDING|ge\xe4ndert|\nRUNNING|None|n[0-1]\nRUNNING|\xe4|n\nFAILED|\xe4|\n"
    (tmp_path / "squeue.out").write_bytes(states)
    batch.submit([COMMAND], tmp_path, [], no_feed)
    assert slurm.status[1] == "seatrial: Slurm job 12 is waiting: ge\ufffdndert"
    assert [told[0] for told in news(batch, 2)] == [0, 1]
    assert batch.cleanup() == []


@pytest.fixture
def squeue_below(slurm: StubSlurm, tmp_path: Path) -> Path:
    """The FIFO that the real squeue of a site waits for; squeue itself is a script around it."""
    os.mkfifo(tmp_path / "controller")
    (tmp_path / "stubs" / "squeue").write_text('#!/bin/sh\ncat "$STUB/controller"\n:\n')
    return tmp_path / "controller"


def _opened_by_reader(fifo: Path) -> int:
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.01)


@pytest.mark.parametrize("ended_by", ["deadline", "end"])
def test_a_squeue_below_a_script_is_ended_with_it(slurm: StubSlurm, squeue_below: Path, ended_by: str) -> None:
    """Nobody waits for it: it keeps what the script prints to open."""
    batch = slurm.batch()
    batch.poll({0, 1})
    writer = _opened_by_reader(squeue_below)
    try:
        if ended_by == "end":
            assert batch.cleanup() == []
        else:
            slurm.now += 1_000
            batch.poll({0, 1})
        with contextlib.suppress(BrokenPipeError):
            while True:
                os.write(writer, b"\n")
                time.sleep(0.01)
    finally:
        os.close(writer)
        assert batch.cleanup() == []


def test_the_answer_of_a_script_does_not_wait_for_what_it_leaves(slurm: StubSlurm, squeue_below: Path) -> None:
    script = '#!/bin/sh\ncat "$STUB/controller" &\necho "CANCELLED|None|"\n'
    (slurm.folder / "stubs" / "squeue").write_text(script)
    batch = slurm.batch()
    batch.poll({0, 1})
    writer = _opened_by_reader(squeue_below)
    try:
        assert news(batch, 1) == ["Slurm job : it was cancelled (CANCELLED)"]
    finally:
        os.close(writer)


def test_options_that_srun_refuses_are_a_wrong_request(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("RUNNING|None|n[0-1]", "FAILED|NonZeroExitCode|n[0-1]")
    batch.submit([COMMAND], tmp_path, [], no_feed)
    (tmp_path / "slurm.log").write_text("srun: unrecognized option '--container-image=x'\nTry srun --help\n")
    with pytest.raises(RequestError, match="srun: \"unrecognized option '--container-image=x'\"; see"):
        news(batch, 1)
    assert batch.cleanup() == []


def test_no_host_refuses_options_once_agents_have_joined(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("RUNNING|None|n[0-1]", "FAILED|NonZeroExitCode|n[0-1]")
    batch.submit([COMMAND], tmp_path, [], no_feed)
    assert batch.poll((0,)) is None
    (tmp_path / "slurm.log").write_text("srun: unrecognized option '--container-image=x'\n")
    assert [told[0] for told in news(batch, 2)] == [0, 1]
    assert batch.cleanup() == []


def test_a_job_that_continues_is_cancelled_at_the_end(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("RUNNING|None|n[0-1]")
    batch.submit([COMMAND], tmp_path, [], no_feed)
    assert batch.cleanup() == []
    assert slurm.cancelled == "12\n"


def test_a_job_that_cannot_be_cancelled_is_named(slurm: StubSlurm, tmp_path: Path) -> None:
    (slurm.folder / "deaf").touch()
    batch = slurm.batch("RUNNING|None|n[0-1]")
    batch.submit([COMMAND], tmp_path, [], no_feed)
    ((node, words),) = batch.cleanup()
    assert (node, words) == (0, "Slurm job 12 may still exist, as Slurm does not report its end; run scancel 12")


LAYOUT = """Job step layout:
\t5 tasks, 3 nodes (n[9-10],na)

\tNode 0 (n9), 3 task(s): 0 3 4 \n\tNode 1 (n10), 1 task(s): 1 \n\tNode 2 (na), 1 task(s): 2 \n"""
"""As sattach of Slurm 22.05 prints it."""
ADDRESSES = "n10 192.0.2.10\nn10 192.0.2.10\nn9 192.0.2.9\nna node-a.example\n"
_N9 = HostOfNode("192.0.2.9", "n9")
BY_TASK = (_N9, HostOfNode("192.0.2.10", "n10"), HostOfNode("node-a.example", "na"), _N9, _N9)


@pytest.mark.parametrize(
    ("steps", "layout", "addresses", "expected"),
    [
        ("12.batch|seatrial\n12.0|trial", LAYOUT, ADDRESSES, BY_TASK),
        ("", LAYOUT, ADDRESSES, ()),
        ("12.0|trial", "", ADDRESSES, ()),
        ("12.0|trial", LAYOUT.replace(": 1 ", ": 5 "), ADDRESSES, ()),
        ("12.0|trial", LAYOUT, ADDRESSES.replace("na ", "nb "), ()),
        ("12.0|trial", LAYOUT, "", ()),
    ],
)
def test_address_and_name_of_the_host_of_each_task(
    slurm: StubSlurm, tmp_path: Path, steps: str, layout: str, addresses: str, expected: tuple[HostOfNode, ...]
) -> None:
    batch = slurm.batch("RUNNING|None|n[9-10],na")
    assert batch.hosts() == ()
    batch.submit([COMMAND], tmp_path, [], no_feed)
    for name, text in (("squeue", steps), ("sattach", layout), ("sinfo", addresses)):
        (tmp_path / f"{name}.out").write_text(f"{text}\n")
    assert batch.hosts() == expected
    if expected:
        assert (tmp_path / "laid out").read_text() == "--layout 12.0\n"
        assert "--nodes=n9,n10,na" in (tmp_path / "asked").read_text().split()


def test_steps_of_other_names_are_not_taken(slurm: StubSlurm, tmp_path: Path) -> None:
    batch = slurm.batch("RUNNING|None|n[9-10],na")
    batch.submit([COMMAND], tmp_path, [], no_feed)
    (tmp_path / "squeue.out").write_text("12.0|other\n12.1|tri|al\n")
    with pytest.raises(HostsMissingError, match="none has the name of this run"):
        batch.hosts()


def test_of_several_steps_of_one_name_none_is_taken(slurm: StubSlurm, tmp_path: Path) -> None:
    """Who acts as the account on a node can start another one, even before ours."""
    batch = slurm.batch("RUNNING|None|n[9-10],na")
    batch.submit([COMMAND], tmp_path, [], no_feed)
    for name, text in (("squeue", "12.0|trial\n12.1|trial"), ("sattach", LAYOUT), ("sinfo", ADDRESSES)):
        (tmp_path / f"{name}.out").write_text(f"{text}\n")
    with pytest.raises(
        SeatrialError, match=r"steps 12\.0 and 12\.1 of Slurm's job 12 .*squeue --all --steps --jobs=12"
    ):
        batch.hosts()


def test_the_own_address_is_that_on_the_route_to_a_hidden_partition(
    slurm: StubSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_defaults, "own_address", lambda nodes: f"the one on the route to {', '.join(nodes)}")
    (tmp_path / "sinfo.out").write_text("n0\nn1\nn0\n")
    job = replace(A_JOB, target="slurm", detail=SimpleNamespace(partition="hidden"))
    assert slurm_target._address(job) == "the one on the route to n0, n1"
    assert "--partition=hidden" in (tmp_path / "asked").read_text().split()
    # The default partition is not hidden; hidden ones may lie in networks that its nodes do not reach.
    slurm_target._address(replace(A_JOB, target="slurm", detail=SimpleNamespace(partition="")))
    assert "--all" not in (tmp_path / "asked").read_text().split()
