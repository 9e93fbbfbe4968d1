"""``--on mpirun`` with real mpiruns, on this machine and on hosts with an sshd. SEATRIAL_TEST_MPIRUNS names them."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts import UID, Hosts
from launchers.mpiruns import each_mpirun, first_mpirun, first_mpirun_then_others_nightly
from live.trials import Trial, events_in, trial

pytestmark = pytest.mark.mpi
ON = ("--on", "mpirun", "--device", "cpu")
MOST_S = 30.0
"""From a fault to the report: silence of 15 s, a second to hear all, 10 s to end, and what else runs here."""


def begins(check: str) -> Callable[[dict[str, Any]], bool]:
    return lambda event: event["kind"] == "step" and event["check"] == check


def agents(running: Trial) -> dict[int, int]:
    """Rank -> process id of its agent."""
    return {
        event["node"]: event["pid"]
        for folder in running.out.glob("*/")
        for event in events_in(folder)
        if event["kind"] == "node"
    }


def launcher_of(running: Trial) -> int:
    """The process id of mpirun: the child of the controller."""
    path = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
    (child,) = path.read_text().split()
    return int(child)


def digest(*words: str) -> str:
    """The line about the parameters of a short training."""
    command = [sys.executable, "-m", "seatrial", "train", "digits", "--max-steps", "6", "--device", "cpu", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("digests of all ranks equal:"))
    return line


@pytest.fixture(scope="module")
def digest_here(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digest("--nproc-per-node", "2", "--out", str(tmp_path_factory.mktemp("local")))


@first_mpirun_then_others_nightly
def test_the_same_verdict_as_on_this_machine(tmp_path: Path, mpirun: str) -> None:
    # Slots of a host by name: so our code is handed over, and found by all ranks.
    ended = trial(tmp_path, "smoke", *ON, "--mpirun", mpirun, "--hosts", "localhost:2", "--comm-profile", "ethernet")
    assert ended.exit_code == 0, ended.errors
    assert ended.report["acceptance"]["status"] == "PASS"
    assert ended.report["world_size"] == 2
    assert ended.report["job"]["target"] == "mpirun"
    assert ended.report["job"]["env"]["NCCL_NET"] == "Socket"
    local_ranks = {event["rank"]: event["local_rank"] for event in ended.events() if event["kind"] == "rank"}
    assert local_ranks == {0: 0, 1: 1}


@first_mpirun_then_others_nightly
def test_the_same_parameters_as_on_this_machine(tmp_path: Path, mpirun: str, digest_here: str) -> None:
    assert digest("--on", "mpirun", "--mpirun", mpirun, "--hosts", "localhost:2", "--out", str(tmp_path)) == digest_here


@first_mpirun_then_others_nightly
def test_what_a_neighbor_has_at_the_name_of_the_session(
    tmp_path: Path, mpirun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI 4 looked at no owner, and a file there ended it without a reason."""
    (theirs := tmp_path / f"ompi.{platform.node()}.{os.geteuid()}").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    shared = {*os.listdir("/dev/shm")}
    ended = trial(tmp_path / "out", "smoke", *ON, "--mpirun", mpirun, "--nproc-per-node", "2", "--only", "compute")
    assert ended.exit_code == 0, ended.errors
    assert {*tmp_path.iterdir()} == {theirs, tmp_path / "out"}
    assert not [name for name in {*os.listdir("/dev/shm")} - shared if name.startswith("seatrial-")]


@first_mpirun_then_others_nightly
def test_settings_of_another_user_in_the_folder_of_the_user(
    tmp_path: Path, mpirun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI 4 without HOME loaded what ``(null)/.openmpi/components`` of its working folder has."""
    (theirs := tmp_path / "(null)" / ".openmpi").mkdir(parents=True)
    (theirs / "mca-params.conf").write_text("ess = nothing\n")
    tmp_path.chmod(0o777)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME")
    ended = trial(tmp_path / "out", "smoke", *ON, "--mpirun", mpirun, "--nproc-per-node", "2", "--only", "compute")
    assert ended.exit_code == 0, ended.errors


@first_mpirun_then_others_nightly
def test_ctrl_c_ends_all(tmp_path: Path, mpirun: str) -> None:
    running = Trial(tmp_path, "smoke", *ON, "--mpirun", mpirun, plant=["hang@compute:0"])
    running.until(begins("compute"))
    running.signal(signal.SIGINT)
    ended = running.ended()
    assert ended.exit_code == 130
    assert ended.report["acceptance"]["interrupted_by"] == "SIGINT"


@first_mpirun_then_others_nightly
def test_an_agent_that_dies_is_named_and_nobody_else(tmp_path: Path, mpirun: str) -> None:
    where = (*ON, "--mpirun", mpirun, "--nproc-per-node", "3")
    # A rank that hangs holds the step, so that the kill surely falls into it.
    running = Trial(tmp_path, "smoke", "--only", "compute", *where, plant=["hang@compute:0"])
    running.until(begins("compute"))
    os.kill(agents(running)[1], signal.SIGKILL)
    ended = running.ended()
    assert ended.exit_code == 1
    (finding,) = (finding for finding in ended.report["findings"] if finding["severity"] == "fail")
    assert "was lost" in finding["what"]
    assert not any(line.startswith("rank 1 ") for line in finding["evidence"])


@first_mpirun_then_others_nightly
def test_what_an_mpirun_refuses_is_a_wrong_request(tmp_path: Path, mpirun: str) -> None:
    words = ["run", "smoke", *ON, "--mpirun", mpirun, "--mpi-arg=--foo-bar", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "seatrial", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert "foo-bar" in line
    assert line.endswith("; see --mpi-arg.")


@first_mpirun
def test_an_mpirun_that_hangs_is_ended(tmp_path: Path, mpirun: str) -> None:
    """The measurements do not depend on it; conftest looks for processes that were left running."""
    running = Trial(tmp_path, "smoke", *ON, "--mpirun", mpirun, "--only", "compute")
    running.until(lambda event: event["kind"] == "generation")
    os.kill(launcher_of(running), signal.SIGSTOP)
    assert running.ended().exit_code == 0


@first_mpirun_then_others_nightly
def test_a_killed_mpirun_is_an_interruption(tmp_path: Path, mpirun: str) -> None:
    running = Trial(tmp_path, "smoke", *ON, "--mpirun", mpirun, plant=["hang@compute:0"])
    running.until(begins("compute"))
    os.kill(launcher_of(running), signal.SIGKILL)
    ended = running.ended()
    assert ended.exit_code == 130
    assert ended.report["acceptance"]["interrupted_by"] == "SIGKILL, sent to its launcher"
    assert not any(finding["severity"] == "fail" for finding in ended.report["findings"])


@each_mpirun
def test_scripts_can_initialize_mpi(tmp_path: Path, mpirun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI_Init of Open MPI 4 refused what mpirun had been given for the folder of its session. Needs no mpi4py."""
    (script := tmp_path / "script.py").write_text(
        "import ctypes\n"
        "from seatrial.mpi_backend.library import library_of_launcher\n"
        "mpi = ctypes.CDLL(str(library_of_launcher() or 'libmpi.so.40'), ctypes.RTLD_GLOBAL)\n"
        "assert mpi.MPI_Init(None, None) == 0\n"
        "assert mpi.MPI_Finalize() == 0\n"
    )
    # As docs/security.md says for other hosts; Open MPI 5 and MPICH do not read it.
    monkeypatch.setenv("OMPI_MCA_orte_remote_tmpdir_base", str(tmp_path))
    words = ["launch", *ON, "--mpirun", mpirun, "--nproc-per-node", "2", "--out", str(tmp_path / "out"), str(script)]
    command = [sys.executable, "-m", "seatrial", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.mpi4py
@each_mpirun
def test_mpi_moves_the_data(tmp_path: Path, mpirun: str) -> None:
    path = [os.environ["SEATRIAL_TEST_MPI4PY"], *filter(None, [os.environ.get("PYTHONPATH")])]
    words = ("--mpirun", mpirun, "--backend", "mpi", "--nproc-per-node", "2", "--only", "collectives")
    ended = trial(tmp_path, "smoke", *ON, *words, env={"PYTHONPATH": os.pathsep.join(path)})
    assert ended.exit_code == 0, ended.errors
    assert {event["backend"] for event in ended.events() if event["kind"] == "rank"} == {"mpi"}


# On two hosts


def usable(made: Hosts, mpirun: str) -> str:
    """Skips the test where the user of the hosts may not start this mpirun."""
    if made[0].run(mpirun, "--version").returncode != 0:
        pytest.skip(f"{mpirun} cannot be started by user {UID}")
    return mpirun


class OnHosts(Trial):
    """A trial that is typed on the first host; its folder is one that all of them share."""

    def __init__(self, made: Hosts, mpirun: str, only: str, *words: str):
        self.out = made.folder / "shared"
        self.out.mkdir(mode=0o777)
        self.out.chmod(0o777)
        typed = made.seatrial("run", "smoke", "--only", only, *ON, "--mpirun", usable(made, mpirun), "--json")
        self.process = subprocess.Popen(
            made[0].argv(*typed, "--out", str(self.out), "--python", str(made.python), *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@pytest.mark.hosts
@each_mpirun
def test_two_hosts(hosts: Callable[[int], Hosts], tmp_path: Path, mpirun: str) -> None:
    made = hosts(2)
    hostfile = made.folder / "hostfile"
    hostfile.write_text("# two of them\nnode0 slots=1\nnode1 slots=1\n")
    ended = OnHosts(made, mpirun, "bootstrap", "--hostfile", str(hostfile)).ended()
    assert ended.exit_code == 0, ended.errors
    seen = {event["rank"]: event["hostname"] for event in ended.events() if event["kind"] == "rank"}
    assert seen == {0: "node0", 1: "node1"}


@pytest.mark.hosts
@first_mpirun
def test_nodes_rendezvous_on_their_common_network(hosts: Callable[[int], Hosts], mpirun: str) -> None:
    """The network on which they reach us may be another one."""
    made = hosts(3)
    for host in made.each[1:]:
        host.join_network(f"10.88.0.{host.number}/24")
        (host.etc / "hosts").write_text("127.0.0.1 localhost\n10.88.0.1 node1\n10.88.0.2 node2\n")
    ended = OnHosts(made, mpirun, "host,bootstrap", "--hosts", "node1:1,node2:1").ended()
    assert ended.exit_code == 0, ended.errors
    seen = {event["hostname"]: event["address"] for event in ended.events() if event["kind"] == "node"}
    assert seen == {"node1": "10.88.0.1", "node2": "10.88.0.2"}
    chosen = [fact["value"]["chosen"] for fact in ended.report["facts"] if fact["name"] == "host"]
    assert [set(by_name) for by_name in chosen] == [{"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}] * 2
    assert all("eth1" in str(choice) for by_name in chosen for choice in by_name.values())


@pytest.mark.nightly
@pytest.mark.hosts
@first_mpirun
def test_a_host_that_is_cut_off_is_named(hosts: Callable[[int], Hosts], mpirun: str) -> None:
    made = hosts(2)
    running = OnHosts(made, mpirun, "compute", "--hosts", "node0:1,node1:1")
    running.until(begins("compute"))
    made[1].pull_cable()
    cut_at = time.monotonic()
    # Not ended(): what runs on the host that is cut off ends after 30 s of silence, later than the report is there.
    text, errors = running.process.communicate(timeout=50)
    assert time.monotonic() - cut_at < MOST_S
    assert running.process.returncode == 1, errors
    named = [finding["what"] for finding in json.loads(text)["findings"] if finding["severity"] == "fail"]
    assert len(named) == 1
    assert "node1" in named[0]


@pytest.mark.hosts
@first_mpirun
@pytest.mark.parametrize(
    "what", ["host key", *(pytest.param(what, marks=pytest.mark.nightly) for what in ("python", "name"))]
)
def test_a_host_that_refuses_the_start_is_a_sentence(hosts: Callable[[int], Hosts], mpirun: str, what: str) -> None:
    made = hosts(2)
    words = ["--hosts", "node0:1,node1:1"]
    expected = {
        "host key": "ssh: Host key verification failed; connect to each host by hand once and compare its key",
        "python": "a host has no /opt/none/python; name a Python that all hosts have with --python",
        "name": "ssh: Could not resolve hostname node7",
    }[what]
    if what == "host key":
        (made[0].home / ".ssh" / "known_hosts").write_text("")
    elif what == "python":
        words += ["--python", "/opt/none/python"]
    else:
        words = ["--hosts", "node0:1,node7:1"]
    ended = OnHosts(made, mpirun, "compute", *words).ended()
    assert ended.exit_code == 3
    assert any(expected in finding["what"] for finding in ended.grave()), ended.grave()
