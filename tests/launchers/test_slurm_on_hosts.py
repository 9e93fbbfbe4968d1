"""``--on slurm`` on two hosts, of which the second takes connections of Slurm only: the network check names that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts
from live.host_trials import named

pytestmark = [pytest.mark.slurm, pytest.mark.hosts, pytest.mark.nightly, pytest.mark.timeout(150)]

_CONTROLLER_PORT, _NODE_PORT = 6817, 6818
_READY_S = 30.0


def _configuration(made: Hosts, auth: str = "none") -> str:
    settings = {
        "ClusterName": "test",
        "SlurmctldHost": f"node0({made[0].address})",
        "SlurmctldPort": _CONTROLLER_PORT,
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": f"auth/{auth}",
        "CredType": f"cred/{auth}",
        "StateSaveLocation": made.folder / "slurm" / "state",
        "SlurmdSpoolDir": f"{made.folder}/slurm/spool.%n",
        "SlurmctldPidFile": made.folder / "slurm" / "slurmctld.pid",
        "SlurmdPidFile": f"{made.folder}/slurm/slurmd.%n.pid",
        "SlurmctldLogFile": made.folder / "slurm" / "slurmctld.log",
        "SlurmdLogFile": f"{made.folder}/slurm/slurmd.%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SlurmdParameters": "config_overrides",
        "SchedulerParameters": "bf_interval=1,sched_interval=1,batch_sched_delay=0",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines += [
        f"NodeName={host.name} NodeHostname={host.name} NodeAddr={host.address} Port={_NODE_PORT} CPUs=4"
        for host in made
    ]
    lines.append("PartitionName=main Nodes=node[0-1] Default=YES MaxTime=INFINITE State=UP")
    return "\n".join([*lines, ""])


def _as_root(made: Hosts, number: int, *command: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
    words = made[number].argv("env", f"SLURM_CONF={made.folder}/slurm/slurm.conf", *command, root=True)
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)


def _start(made: Hosts, auth: str = "none") -> None:
    """Start the daemons, which the fixture of the hosts ends."""
    folder = made.folder / "slurm"
    for path in (folder, folder / "state", *(folder / f"spool.{host.name}" for host in made)):
        path.mkdir()
    (folder / "slurm.conf").write_text(_configuration(made, auth))
    done = _as_root(made, 0, "slurmctld", "-c", "-f", str(folder / "slurm.conf"))
    assert done.returncode == 0, done.stderr
    for host in made:
        done = _as_root(made, host.number, "slurmd", "-f", str(folder / "slurm.conf"), "-N", host.name)
        assert done.returncode == 0, done.stderr
    until = time.monotonic() + _READY_S
    while (idle := _as_root(made, 0, "sinfo", "-h", "-t", "idle", "-o", "%D")).stdout.strip() != "2":
        assert time.monotonic() < until, (idle.stdout, idle.stderr)
        time.sleep(0.3)


def _trial(made: Hosts, python: Path | None = None, *environ: str) -> dict[str, Any]:
    """Run a trial that lasts until Slurm has said where its step is."""
    out = made.folder / "reports"
    where = ("--on", "slurm", "--nodes", "2", "--nproc-per-node", "1", "--device", "cpu", "--out", str(out))
    argv = made.seatrial(
        "run", "smoke", "--only", "network,compute", *where, "--python", str(python or made.python), "--json"
    )
    done = _as_root(made, 0, *environ, *argv, timeout_s=100.0)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_node_that_slurm_alone_reaches_is_named(hosts: Callable[[int], Hosts], is_closed: bool) -> None:
    made = hosts(2)
    _start(made)
    if is_closed:
        for rule in (
            ("-i", "lo"),
            ("-m", "state", "--state", "ESTABLISHED"),
            ("-p", "tcp", "--dport", str(_NODE_PORT)),
        ):
            made[1].firewall("-A", "INPUT", *rule, "-j", "ACCEPT")
        made[1].firewall("-A", "INPUT", "-p", "tcp", "-j", "DROP")
    report = _trial(made)
    assert report["acceptance"]["status"] == ("FAIL" if is_closed else "PASS"), report["findings"]
    assert named(report) == ([("link", "link node0–node1")] if is_closed else [])
    if is_closed:
        assert "node0 cannot connect to node1: no answer at 10.77.0.11:" in report["findings"][0]["what"]


def _trial_of_liars(made: Hosts, lie: str) -> tuple[list[str], list[str]]:
    """Return the names of the nodes, and the errors. ``lie``: what each node does before it joins."""
    _start(made)
    liar = made.folder / "liar"
    liar.write_text(f'#!/bin/sh\n{lie}\nexec {made.python} "$@"\n')
    liar.chmod(0o755)
    report = _trial(made, liar)
    assert report["acceptance"]["status"] == "INCONCLUSIVE", report["findings"]
    told = [finding["what"] for finding in report["findings"] if finding["severity"] == "error"]
    return [node["name"] for node in report["nodes"]], told


def test_a_node_that_claims_another_name_is_a_finding(hosts: Callable[[int], Hosts]) -> None:
    names, told = _trial_of_liars(hosts(2), '[ "$SLURM_NODEID" = 0 ] || export SLURMD_NODENAME=gpu-77')
    assert names == ["node0", "node1"]
    assert [what.partition(";")[0] for what in told] == [
        "node 1 says that its name in Slurm is gpu-77, where Slurm has node1"
    ]


def test_nodes_that_lie_about_their_number_are_a_finding(hosts: Callable[[int], Hosts]) -> None:
    """Both know the secret of the run. Where they are is what Slurm says and the network shows."""
    made = hosts(2)
    names, told = _trial_of_liars(made, "export SLURM_NODEID=$((1 - SLURM_NODEID))")
    assert names == ["#0", "#1"]
    for node in (0, 1):
        address, other = made[1 - node].address, made[node].address
        sentence = f"node {node} joined from {address}, which is the address of node {1 - node}, and node {node} is at"
        assert any(what.startswith(sentence) and other in what for what in told), told


@pytest.fixture
def munged() -> Iterator[None]:
    """A munged at the usual place, where the commands of munge and Slurm look for it."""
    socket, folder = Path("/run/munge/munge.socket.2"), Path("/run/munge")
    program = shutil.which("munged", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None or shutil.which("munge") is None:
        pytest.skip("munge is not installed")
    if folder.exists():
        pytest.skip(f"somebody has made {folder} on this machine, perhaps for a munged that works")
    folder.mkdir(mode=0o755)
    (key := folder / "key").write_bytes(os.urandom(64))
    key.chmod(0o400)
    files = {"key-file": key, "pid-file": folder / "pid", "log-file": folder / "log", "seed-file": folder / "seed"}
    argv = [program, "--force", "--foreground", *(f"--{name}={path}" for name, path in files.items())]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 10.0
        while not socket.exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(10.0)
        shutil.rmtree(folder)


def test_munge_carries_the_token_for_a_user_who_says_so(hosts: Callable[[int], Hosts], munged: None) -> None:
    """Slurm sends the environment of a job readable over the network."""
    made = hosts(2)
    _start(made, "munge")
    (told := made.folder / "told").mkdir(mode=0o777)
    teller = made.folder / "teller"
    teller.write_text(f'#!/bin/sh\necho "$SEATRIAL_TOKEN" > {told}/$SLURM_NODEID\nexec {made.python} "$@"\n')
    teller.chmod(0o755)
    report = _trial(made, teller, "SEATRIAL_TOKEN=munge")
    assert report["acceptance"]["status"] == "PASS", report["findings"]
    told_token = f"munge:{report['run_id']}\n"
    assert [(told / str(node)).read_text() for node in range(2)] == [told_token] * 2


def test_munge_carries_the_token_of_a_trial_under_srun(hosts: Callable[[int], Hosts], munged: None) -> None:
    made = hosts(2)
    _start(made, "munge")
    what = ("smoke", "--only", "network,compute", "--nproc-per-node", "1", "--device", "cpu")
    argv = made.seatrial("run", *what, "--out", str(made.folder / "reports"), "--json")
    step = ("srun", "--nodes=2", "--ntasks-per-node=1", "--mpi=none")
    done = _as_root(made, 0, "SEATRIAL_TOKEN=munge", *step, *argv, timeout_s=100.0)
    report = json.loads(done.stdout)
    assert report["acceptance"]["status"] == "PASS", (report["findings"], done.stderr)
    assert len(report["nodes"]) == 2
