"""``--on ssh`` between separate hosts: the same answers as on one machine, and an end whatever is lost."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import SSH_PORT, Host, Hosts

import seatrial

pytestmark = pytest.mark.hosts

_GONE_S = 45.0
"""30 s until an agent knows that its conductor is gone, and some until all has ended on a busy machine."""


def run(made: Hosts, *words: str, timeout_s: float = 55.0) -> subprocess.CompletedProcess[str]:
    """A command on the first host."""
    return made[0].run(*made.seatrial(*words), timeout_s=timeout_s)


def trial(made: Hosts, *words: str) -> dict[str, Any]:
    """The report of a trial of those checks that a machine under load passes, too."""
    common = ["--only", "inventory,bootstrap,collectives", "--device", "cpu", "--python", str(made.python), "--json"]
    done = run(made, "run", "smoke", *common, *words)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


# All nodes calculate with one thread: how many cores a node has of this machine differs.
TRAINING = ["train", "digits", "--model", "mlp", "--max-steps", "4", "--device", "cpu", "--env", "OMP_NUM_THREADS=1"]


def digest(done: subprocess.CompletedProcess[str]) -> str:
    """Digest of the parameters after some steps."""
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("digests of all ranks equal: "))
    return line.rpartition(" ")[2]


@pytest.fixture(scope="module")
def digest_here(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """The same on this machine, without hosts; by how many ranks."""
    folder = tmp_path_factory.mktemp("here")

    @functools.cache
    def trained(world_size: int) -> str:
        command = [sys.executable, "-m", "seatrial", *TRAINING, "--nproc-per-node", str(world_size)]
        command += ["--out", str(folder)]
        return digest(subprocess.run(command, capture_output=True, text=True, timeout=50, check=False))

    return trained


@contextlib.contextmanager
def running(made: Hosts, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command on the first host that is under way: two ranks somewhere are ready to train."""
    host = made[0]
    command = ["train", "digits", "--epochs", "10000", "--device", "cpu", "--python", str(made.python)]
    with open(made.folder / "said", "w+") as said:
        process = subprocess.Popen(
            host.argv(*made.seatrial(*command, *words)), stdout=said, stderr=subprocess.STDOUT, text=True
        )
        try:
            until = time.monotonic() + 50
            while "rank 0 of 2" not in (made.folder / "said").read_text():
                assert process.poll() is None, (made.folder / "said").read_text()
                assert time.monotonic() < until, (made.folder / "said").read_text()
                time.sleep(0.1)
            yield process
        finally:
            process.kill()
            process.wait()


def left_on(host: Host) -> list[str]:
    """Return the processes that still run on the host, except its sshd."""
    found = []
    for pid in host.processes():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            if "sshd" not in command and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(command)
    return found


def await_nothing_on(host: Host, made: Hosts, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while (left := left_on(host)) or folders(made):
        assert time.monotonic() < until, (left, folders(made), (made.folder / "said").read_text())
        time.sleep(0.2)


def folders(made: Hosts) -> list[str]:
    """The private folders of all hosts, which share a disk here."""
    return [name for name in os.listdir(made.folder / "tmp") if name.startswith("seatrial-")]


def test_the_verdict_is_that_of_one_machine(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    report = trial(made, "--on", "ssh", "--hosts", "node0,node1", "--nproc-per-node", "1")
    assert report["acceptance"]["status"] == "PASS", report["findings"]
    assert (report["world_size"], report["job"]["nodes"], report["job"]["target"]) == (2, 2, "ssh")
    assert [left_on(host) for host in made] == [[], []]
    assert folders(made) == []
    (folder,) = (made[0].home / "reports").glob("2*")
    assert sorted(path.name for path in folder.glob("rank*.log")) == ["rank0.gen0.log", "rank1.gen0.log"]


def test_the_bits_are_those_of_one_machine(hosts: Callable[[int], Hosts], digest_here: Callable[[int], str]) -> None:
    made = hosts(2)
    (made.folder / "hosts.txt").write_text("node1 slots=1 # first\nnode0:1\n")
    where = ["--on", "ssh", "--hostfile", str(made.folder / "hosts.txt"), "--python", str(made.python)]
    assert digest(run(made, *TRAINING, *where)) == digest_here(2)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("nodes", "nproc_per_node"), [(1, 8), (2, 4), (8, 1), (4, 2)])
def test_eight_ranks_compute_the_same_on_any_hosts(
    hosts: Callable[[int], Hosts], nodes: int, nproc_per_node: int, digest_here: Callable[[int], str]
) -> None:
    made = hosts(2)
    where = ["--on", "ssh", "--hosts", "node1" if nodes in (1, 4) else "node0,node1", "--python", str(made.python)]
    done = run(made, *TRAINING, *where, "--nodes", str(nodes), "--nproc-per-node", str(nproc_per_node))
    assert digest(done) == digest_here(8)


def test_a_host_that_is_missing_makes_a_pass_partial(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    words = ["--on", "ssh", "--hosts", "node0,node1,node2", "--nproc-per-node", "1"]
    done = run(made, "run", "smoke", *words, "--python", str(made.python))
    assert done.returncode == 3
    assert done.stderr.startswith("\nError: node2: its name cannot be resolved") or "Error: node2: " in done.stderr
    report = trial(made, *words, "--min-hosts", "2")
    assert report["acceptance"]["status"] == "PASS"
    assert "1 of the hosts absent: node2" in report["acceptance"]["partial"]
    assert any(finding["what"].startswith("left out: node2: ") for finding in report["findings"])


def test_a_changed_host_key_is_refused(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    known = made[0].home / ".ssh" / "known_hosts"
    first, second = known.read_text().splitlines()
    known.write_text(f"{first}\n{second.split()[0]} {' '.join(first.split()[1:])}\n")
    done = run(made, "run", "smoke", "--on", "ssh", "--hosts", "node0,node1", "--python", str(made.python))
    assert done.returncode == 3
    assert "Error: node1: its host key differs from the one in known_hosts" in done.stderr
    known.write_text(f"{first}\n")
    done = run(made, "run", "smoke", "--on", "ssh", "--hosts", "node1", "--python", str(made.python))
    assert "Error: node1: its host key is unknown" in done.stderr
    (made[0].home / ".ssh" / "id_ed25519").chmod(0o644)
    done = run(made, "run", "smoke", "--on", "ssh", "--hosts", "node0", "--python", str(made.python))
    assert "Error: node0: ssh ignores a private key that others can read; chmod 600 it" in done.stderr


@pytest.mark.slow
def test_sixty_four_hosts_start_at_once(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    names = [f"node{100 + number}" for number in range(64)]
    known = made[0].home / ".ssh" / "known_hosts"
    key = known.read_text().splitlines()[1].partition(" ")[2]
    known.write_text("".join(f"[{name}]:{SSH_PORT} {key}\n" for name in names))
    with open(made[0].etc / "hosts", "a") as file:
        file.write(f"{made[1].address} {' '.join(names)}\n")
    python = made.folder / "stub"
    source = Path(seatrial.__file__).parents[1]
    python.write_text(f"#!/bin/sh\nPYTHONPATH={source} exec {made.python} {made.folder}/ssh_agent_stub.py\n")
    python.chmod(0o755)
    for name in ("gather.py", "ssh_agent_stub.py"):
        shutil.copy(Path(__file__).parent / name, made.folder)
    words = [f"{made.folder}/gather.py", str(made[0].home), str(python), ",".join(names)]
    done = made[0].run("env", f"PYTHONPATH={source}", str(made.python), *words, timeout_s=55)
    assert done.stdout.startswith("64 agents came and ended"), done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_what_runs_on_the_hosts(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    with running(made, "--on", "ssh", "--hosts", "node0,node1", "--nproc-per-node", "1") as process:
        controller = next(
            pid
            for pid in made[0].processes()
            if b"--hosts" in (words := Path(f"/proc/{pid}/cmdline").read_bytes()) and b"nsenter" not in words
        )
        os.kill(controller, signal.SIGINT)
        assert process.wait(timeout=50) == 130
    await_nothing_on(made[1], made, 10.0)


@pytest.mark.slow
def test_a_controller_that_is_killed_leaves_nothing_running(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    with running(made, "--on", "ssh", "--hosts", "node1", "--nproc-per-node", "2") as process:
        process.kill()
        await_nothing_on(made[1], made, _GONE_S)


# By day a cable is pulled in live/test_cable_pulled.py, and the controller of hosts is killed above.
@pytest.mark.nightly
def test_a_host_that_is_cut_off_is_named_and_ends_what_it_runs(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    with running(made, "--on", "ssh", "--hosts", "node0,node1", "--nproc-per-node", "1") as process:
        made[1].pull_cable()
        assert process.wait(timeout=50) == 1
        said = (made.folder / "said").read_text()
        assert "node 1" in said
        await_nothing_on(made[1], made, _GONE_S)
