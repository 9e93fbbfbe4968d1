"""``--on slurm`` with a real Slurm: two nodes, which are this machine twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from by_day import by_day
from launchers.slurm_cluster import slurm_cluster
from live.trials import Ended, Trial, events_in

pytestmark = pytest.mark.slurm

ON = ("--on", "slurm", "--device", "cpu", "--nodes", "2", "--nproc-per-node", "1")
LOST_S = 40.0
"""From a stopped agent to the report: silence of 15 s, a second to hear all, 10 s to end, and what else runs here."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """What a process needs in its environment to find the cluster."""
    with slurm_cluster(tmp_path_factory.mktemp("cluster")) as environ:
        yield {"SLURM_CONF": environ["SLURM_CONF"]}


def jobs(slurm: Mapping[str, str]) -> list[str]:
    """The states of all jobs that are not over."""
    asked = ["squeue", "--noheader", "--format=%T", "--states=PENDING,RUNNING"]
    done = subprocess.run(asked, env={**os.environ, **slurm}, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.split()


def cancel_all(slurm: Mapping[str, str], *states: str) -> None:
    command = ["scancel", f"--user={os.getuid()}", *(f"--state={state}" for state in states)]
    subprocess.run(command, env={**os.environ, **slurm}, timeout=20, check=True)


def ended(running: Trial, slurm: Mapping[str, str]) -> Ended:
    """The end of a trial, after which Slurm has no job any more."""
    over = running.ended()
    assert jobs(slurm) == []
    return over


def begins(check: str) -> Callable[[dict[str, Any]], bool]:
    return lambda event: event["kind"] == "step" and event["check"] == check


def agents(out: Path) -> dict[int, int]:
    """Node -> process id of its agent."""
    events = [event for folder in out.glob("*/") for event in events_in(folder)]
    return {event["node"]: event["pid"] for event in events if event["kind"] == "node"}


def test_the_same_verdict_as_on_this_machine(slurm: Mapping[str, str], tmp_path: Path) -> None:
    over = ended(Trial(tmp_path, "smoke", *ON, env=slurm), slurm)
    assert over.exit_code == 0, over.errors
    assert over.report["acceptance"]["status"] == "PASS"
    assert over.report["job"]["target"] == "slurm"
    assert {event["node"] for event in over.events() if event["kind"] == "node"} == {0, 1}
    assert "submitted as Slurm job" in over.errors
    assert "is running on n[0-1]" in over.errors


@pytest.mark.nightly
def test_the_same_verdict_in_an_allocation(slurm: Mapping[str, str], tmp_path: Path) -> None:
    typed = [sys.executable, "-m", "seatrial", "run", "smoke", "--only", "bootstrap", "--json"]
    where = ["--on", "slurm", "--device", "cpu", "--nproc-per-node", "1", "--out", str(tmp_path)]
    command = ["salloc", "--nodes=2", "--exclusive", *typed, *where]
    done = subprocess.run(command, env={**os.environ, **slurm}, capture_output=True, text=True, timeout=58, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job"]["nodes"] == 2
    assert "on 2 nodes of Slurm job" in done.stderr


def digest(slurm: Mapping[str, str], *words: str) -> str:
    """The line about the parameters of a short training; as many threads on every node as on the one here."""
    command = [sys.executable, "-m", "seatrial", "train", "digits", "--max-steps", "6", "--device", "cpu", *words]
    done = subprocess.run(
        [*command, "--env", "OMP_NUM_THREADS=1"],
        env={**os.environ, **slurm},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("digests of all ranks equal:"))
    return line


def test_the_same_parameters_as_on_this_machine(slurm: Mapping[str, str], tmp_path: Path) -> None:
    here = digest(slurm, "--nproc-per-node", "2", "--out", str(tmp_path / "here"))
    assert digest(slurm, *ON, "--out", str(tmp_path / "there")) == here


@pytest.mark.parametrize(
    "allocation", by_day([[], ["salloc", "--quiet", "--nodes=2", "--exclusive"]]), ids=["job", "salloc"]
)
def test_the_failed_rank_of_a_script_is_named(slurm: Mapping[str, str], tmp_path: Path, allocation: list[str]) -> None:
    (tmp_path / "place.py").write_text(
        "import os, sys\n"
        "print(*sys.argv[1:], os.environ['SLURM_NODEID'], os.environ['MASTER_ADDR'], os.getcwd(), flush=True)\n"
        "sys.exit(5 if os.environ['RANK'] == '3' else 0)"
    )
    where = ["--on", "slurm", "--device", "cpu", "--nodes", "2", "--nproc-per-node", "2"]
    typed = [sys.executable, "-m", "seatrial", "launch", *where, "place.py", "{rank} {node_rank}.{local_rank}/{nnodes}"]
    done = subprocess.run(
        [*allocation, *typed],
        cwd=tmp_path,
        env={**os.environ, **slurm},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Error: rank 3 on " in done.stderr
    assert ' failed with exit code 5 without a traceback; its last line: "3 1.1/2 1 127.0.0.1 ' in done.stderr
    texts = {path.name: path.read_text() for path in tmp_path.glob("reports/*/rank*.log")}
    assert texts == {
        f"rank{rank}.gen0.log": f"{rank} {rank // 2}.{rank % 2}/2 {rank // 2} 127.0.0.1 {tmp_path}\n"
        for rank in range(4)
    }
    assert done.stdout == texts["rank0.gen0.log"]
    assert jobs(slurm) == []


def test_ctrl_c_cancels_the_job(slurm: Mapping[str, str], tmp_path: Path) -> None:
    running = Trial(tmp_path, "smoke", *ON, plant=["hang@compute:0"], env=slurm)
    running.until(begins("compute"))
    running.signal(signal.SIGINT)
    over = ended(running, slurm)
    assert over.exit_code == 130
    assert over.report["acceptance"]["interrupted_by"] == "SIGINT"


def test_a_canceled_job_blames_nobody(slurm: Mapping[str, str], tmp_path: Path) -> None:
    running = Trial(tmp_path, "smoke", *ON, plant=["hang@compute:0"], env=slurm)
    running.until(begins("compute"))
    cancel_all(slurm)
    over = ended(running, slurm)
    assert over.exit_code == 130
    assert not any(finding["severity"] == "fail" for finding in over.report["findings"])


def test_a_silent_node_is_named_before_slurm_notices(slurm: Mapping[str, str], tmp_path: Path) -> None:
    running = Trial(tmp_path, "smoke", *ON, plant=["hang@compute:0"], env=slurm)
    running.until(begins("compute"))
    stopped = agents(tmp_path)[1]
    os.kill(stopped, signal.SIGSTOP)
    at = time.monotonic()
    try:
        over = ended(running, slurm)
    finally:
        with contextlib.suppress(ProcessLookupError):  # Slurm has ended it, with the job
            os.kill(stopped, signal.SIGKILL)
    assert time.monotonic() - at < LOST_S
    assert over.exit_code == 1
    (finding,) = (finding for finding in over.report["findings"] if finding["severity"] == "fail")
    assert "said nothing" in finding["what"] or "silent" in finding["what"]
    assert not any(line.startswith("rank 1 ") for line in finding["evidence"])


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["run", "launch"])
def test_a_killed_node_is_named_whatever_srun_ends_with(command: str, slurm: Mapping[str, str], tmp_path: Path) -> None:
    """srun ends its other tasks because of the killed one, and its exit code proves nothing."""
    if command == "run":
        running = Trial(tmp_path, "smoke", *ON, plant=["hang@compute:0"], env=slurm)
        running.until(begins("compute"))
        os.kill(agents(tmp_path)[1], signal.SIGKILL)
        over = ended(running, slurm)
        assert over.exit_code == 1
        (finding,) = (finding for finding in over.report["findings"] if finding["severity"] == "fail")
        assert " was lost in compute" in finding["what"], finding
        assert (finding["culprit"]["ranks"], finding["culprit"]["nodes"]) == ([1], ["n1"])
        return
    (tmp_path / "wait.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    typed = [sys.executable, "-m", "seatrial", "launch", "--device", "cpu", *ON, "wait.py"]
    with open(tmp_path / "said", "wb") as said:
        process = subprocess.Popen(typed, cwd=tmp_path, env={**os.environ, **slurm}, stdout=said, stderr=said)
        try:
            until = time.monotonic() + 30
            while b"begun" not in (tmp_path / "said").read_bytes():
                assert time.monotonic() < until, (tmp_path / "said").read_text()
                time.sleep(0.1)
            os.kill(agents(tmp_path / "reports")[1], signal.SIGKILL)
            assert process.wait(timeout=30) == 1, (tmp_path / "said").read_text()
        finally:
            process.kill()
            process.wait()
    assert "Error: node 1 " in (tmp_path / "said").read_text()


# In the queue


@pytest.fixture
def full(slurm: Mapping[str, str]) -> Iterator[None]:
    """Somebody else has all nodes."""
    subprocess.run(
        ["sbatch", "--nodes=2", "--exclusive", "--job-name=other", "--output=/dev/null", "--wrap=exec sleep 60"],
        env={**os.environ, **slurm},
        stdout=subprocess.DEVNULL,
        timeout=20,
        check=True,
    )
    yield
    cancel_all(slurm)


def in_queue(running: Trial) -> None:
    """Read what it says until it says why it waits; what was read is not there any more."""
    assert running.process.stderr is not None
    while "is waiting: nodes are not free yet (Resources)" not in (line := running.process.stderr.readline()):
        assert line, "it ended without waiting"


@pytest.mark.usefixtures("full")
def test_a_job_canceled_in_the_queue_is_given_up(slurm: Mapping[str, str], tmp_path: Path) -> None:
    running = Trial(tmp_path, "smoke", *ON, env=slurm)
    in_queue(running)
    cancel_all(slurm, "PENDING")
    over = running.ended()
    assert over.exit_code == 3
    assert any("it was cancelled (CANCELLED)" in finding["what"] for finding in over.grave())


@pytest.mark.usefixtures("full")
def test_ctrl_c_in_the_queue_takes_the_job_back(slurm: Mapping[str, str], tmp_path: Path) -> None:
    running = Trial(tmp_path, "smoke", *ON, env=slurm)
    in_queue(running)
    running.signal(signal.SIGINT)
    assert running.ended().exit_code == 130
    assert jobs(slurm) == ["RUNNING"]


@pytest.mark.usefixtures("full")
def test_the_wait_in_the_queue_ends(slurm: Mapping[str, str], tmp_path: Path) -> None:
    over = Trial(tmp_path, "smoke", *ON, "--queue-timeout", "4", env=slurm).ended()
    assert over.exit_code == 3
    assert any("(--queue-timeout): nodes are not free yet" in finding["what"] for finding in over.grave())
    assert jobs(slurm) == ["RUNNING"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--nodes=9"], "will never start: the partition is too small for it or does not allow it; see --nodes"),
        pytest.param(
            ["--partition=nope"],
            "Error: sbatch refuses the job: Invalid partition name specified; it requests",
            marks=pytest.mark.nightly,
        ),
        (["--slurm-arg=--foo"], "Error: sbatch refuses the job: unrecognized option '--foo'; it requests"),
        (
            ["--container-image=x"],
            """Error: srun: "unrecognized option '--container-image=x'"; see --slurm-arg and""",
        ),
    ],
)
def test_what_slurm_refuses_is_a_wrong_request(
    slurm: Mapping[str, str], tmp_path: Path, words: list[str], why: str
) -> None:
    command = [sys.executable, "-m", "seatrial", "run", "smoke", *ON, *words, "--out", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, **slurm}, capture_output=True, text=True, timeout=55, check=False)
    assert (done.returncode, why in done.stderr) == (2, True), done.stderr
    assert jobs(slurm) == []


def test_a_slurm_that_does_not_answer(slurm: Mapping[str, str], tmp_path: Path) -> None:
    lines = Path(slurm["SLURM_CONF"]).read_text().splitlines()
    dead = tmp_path / "slurm.conf"
    dead.write_text("\n".join("SlurmctldPort=1" if line.startswith("SlurmctldPort=") else line for line in lines))
    over = Trial(tmp_path / "out", "smoke", *ON, env={"SLURM_CONF": str(dead)}).ended()
    assert over.exit_code == 3
    assert any("Slurm does not answer: Unable to contact" in finding["what"] for finding in over.grave())
