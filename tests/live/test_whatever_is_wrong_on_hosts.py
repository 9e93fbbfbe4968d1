"""Hosts over ssh on which something is wrong: two things at once, the first host, names, clocks, limits, logins, data.

Each row is one fault with whom the trial must name, or with what the command must say where no trial begins.
"""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Host, Hosts
from live.host_faults import (
    COLLECTIVES,
    TRAINING,
    HostFault,
    at_start,
    both,
    clock,
    faults_of,
    on,
    rc,
    run_fault,
    shell,
)
from live.host_trials import limit_both_ways
from training.small_files import write_mnist

pytestmark = [pytest.mark.hosts, pytest.mark.nightly, pytest.mark.timeout(200)]

_LINKS = ("links",)


def slow(number: int, rate: str = "100mbit") -> Callable[[Hosts], None]:
    """One host is slow in both directions."""
    return lambda hosts: limit_both_ways(hosts[number], rate)


def slow_one_way(source: Host, target: Host) -> None:
    """What one host sends another one is slow, and nothing else."""
    tc = ["nsenter", f"--net=/run/netns/{source.namespace}", "tc"]
    for words in (
        "qdisc replace dev eth0 root handle 1: htb default 1",
        "class add dev eth0 parent 1: classid 1:1 htb rate 1gbit",
        "class add dev eth0 parent 1: classid 1:2 htb rate 50mbit",
        f"filter add dev eth0 parent 1: protocol ip u32 match ip dst {target.address}/32 flowid 1:2",
    ):
        subprocess.run([*tc, *words.split()], check=True, capture_output=True)


def _dead_link(hosts: Hosts) -> None:
    hosts[1].firewall("-A", "INPUT", "-s", hosts[2].address, "-j", "DROP")


def _stop_sshd_later(hosts: Hosts) -> None:
    """The processes of sshd that serve node2's agent stand still once that runs."""

    def stop() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            running = {pid: _command(pid) for pid in hosts[2].processes()}
            if any("worker_main" in command for command in running.values()):
                for pid, command in running.items():
                    if command.startswith("sshd"):
                        os.kill(pid, signal.SIGSTOP)
                return
            time.sleep(0.1)

    threading.Thread(target=stop, daemon=True).start()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


_OTHER_TORCH = """
import importlib.machinery, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == "torch.version" else None
        if spec is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), setattr(module, "__version__", "2.4.0"))
        return spec

sys.meta_path.insert(0, Finder)
"""


def _other_torch(*numbers: int) -> Callable[[Hosts], None]:
    """A double: torch on these hosts says that it is 2.4.0."""

    def plant(hosts: Hosts) -> None:
        (hosts.folder / "other").mkdir()
        (hosts.folder / "other" / "sitecustomize.py").write_text(_OTHER_TORCH)
        for number in numbers:
            at_start(hosts[number], hosts.python, f"PYTHONPATH={hosts.folder}/other; export PYTHONPATH")

    return plant


def _no_torch(hosts: Hosts) -> None:
    own = hosts[2].etc / "python"
    own.write_text(hosts.python.read_text().replace("PYTHONPATH=", "NOT_PYTHONPATH="))
    own.chmod(0o755)


def _data(change: Callable[[Path], None]) -> Callable[[Hosts], None]:
    """Each host has the data in its own /etc; on node2 they are changed."""

    def plant(hosts: Hosts) -> None:
        for host in hosts:
            folder = host.etc / "data"
            folder.mkdir()
            write_mnist(folder, 512, 64)
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o755)
        change(hosts[2].etc / "data")

    return plant


def _cut(folder: Path) -> None:
    (file,) = folder.rglob("train-images*")
    file.write_bytes(file.read_bytes()[:1000])


def _remove(folder: Path) -> None:
    (file,) = folder.rglob("train-images*")
    file.unlink()


def _other_images(folder: Path) -> None:
    """Some bytes are 0, as in a stale copy."""
    (file,) = folder.rglob("train-images*")
    content = bytearray(gzip.decompress(file.read_bytes()))
    content[10_000:11_000] = bytes(1_000)
    file.write_bytes(gzip.compress(bytes(content), 1))


_ON_DATA = ("--data", "/etc/data")

FAULTS: dict[str, HostFault] = {
    # Nothing is wrong: the twins.
    "none": HostFault(verdict="PASS", checks=TRAINING),
    "none, links": HostFault(verdict="PASS", checks=_LINKS, at_1_gbit=True, hosts=4),
    "none, all hosts are called worker": HostFault(verdict="PASS", called="worker"),
    "none, data of each host": HostFault(
        verdict="PASS", checks=("bootstrap", "training"), plant=_data(lambda folder: None), options=_ON_DATA
    ),
    # Two at once.
    "node1 and node2 of 4 at 100 Mbit/s": HostFault(
        plant=both(slow(1), slow(2)), checks=_LINKS, named=["node node1", "node node2"], at_1_gbit=True, hosts=4
    ),
    "node1 at 100 Mbit/s, and node0 to node3 at 50": HostFault(
        plant=both(slow(1), lambda hosts: slow_one_way(hosts[0], hosts[3])),
        checks=_LINKS,
        named=["node node1", "link node0–node3"],
        at_1_gbit=True,
        hosts=4,
    ),
    "node1 at 100 Mbit/s, and rank 3 multiplies wrong": HostFault(
        plant=slow(1),
        planted="flip-product@compute:3",
        checks=("compute", "links"),
        named=["rank 3", "node node1"],
        at_1_gbit=True,
        hosts=4,
    ),
    "node1 at 100 Mbit/s, and rank 3 has wrong gradients": HostFault(
        plant=slow(1),
        planted="flip-gradient@training:3",
        checks=("links", "bootstrap", "training"),
        named=["rank 3", "node node1"],
        at_1_gbit=True,
        hosts=4,
    ),
    "node0 to node2 at 50 Mbit/s, and rank 3 is killed": HostFault(
        plant=lambda hosts: slow_one_way(hosts[0], hosts[2]),
        planted="kill@collectives:3",
        checks=("links", "bootstrap", "collectives"),
        named=["rank 3", "link node0–node2"],
        at_1_gbit=True,
        hosts=4,
    ),
    "ranks 1 and 3 have wrong gradients": HostFault(
        planted="flip-gradient@training:1;flip-gradient@training:3",
        checks=TRAINING,
        named=["rank 1", "rank 3"],
        hosts=4,
    ),
    "ranks 1 and 3 are killed": HostFault(
        planted="kill@collectives:1;kill@collectives:3", named=["rank 1", "rank 3"], hosts=4
    ),
    # The first rank, its node, and the machine that conducts.
    "rank 0 has wrong gradients": HostFault(planted="flip-gradient@training:0", checks=TRAINING, named=["rank 0"]),
    "rank 0 multiplies wrong": HostFault(planted="flip-product@compute:0", checks=("compute",), named=["rank 0"]),
    "rank 0 is stopped": HostFault(planted="stop@training/step 30:0", checks=TRAINING, named=["rank 0"]),
    "rank 0 hangs": HostFault(planted="hang@training:0", checks=TRAINING, named=["rank 0"]),
    "the agent of node0 is killed": HostFault(planted="agent-kill@collectives:0", named=["node node0"]),
    "the machine that conducts has 2 Mbit/s": HostFault(
        plant=slow(0, "2mbit"), first=1, verdict="PASS", hosts=4, checks=TRAINING
    ),
    "node0 at 20 Mbit/s": HostFault(
        plant=slow(0, "20mbit"), checks=_LINKS, named=["node node0"], at_1_gbit=True, hosts=4
    ),
    "sshd of node2 stands still": HostFault(
        plant=_stop_sshd_later, checks=TRAINING, named=["node node2"], words=["node2"]
    ),
    # Clocks.
    "clock of node2 3 hours ahead": HostFault(
        plant=clock(2, 10_800), verdict="PASS", words=["node2"], checks=COLLECTIVES
    ),
    "clock of node2 400 days behind": HostFault(plant=clock(2, -34_560_000.0), verdict="PASS", words=["node2"]),
    "clock of node2 jumps 2 hours ahead": HostFault(plant=clock(2, 7_200, 8), verdict="PASS", checks=TRAINING),
    "clock of node2 jumps 2 hours back": HostFault(plant=clock(2, -7_200, 8), verdict="PASS", checks=TRAINING),
    "node2 in another time zone": HostFault(plant=on(2, "export TZ=Asia/Tokyo"), verdict="PASS"),
    # Resources.
    "node2 may open 24 files": HostFault(
        plant=on(2, "ulimit -n 24"), verdict="PASS", words=["node2"], checks=("network", *COLLECTIVES)
    ),
    "all ranks on one core": HostFault(
        plant=both(*(on(number, "taskset -p 1 $$ >/dev/null") for number in range(3))),
        verdict="PASS",
        checks=TRAINING,
    ),
    # Software and names.
    "torch 2.4.0 on node2": HostFault(plant=_other_torch(2), named=["node node2"], words=["torch"]),
    "torch 2.4.0 on 2 of 4": HostFault(plant=_other_torch(2, 3), words=["torch"], hosts=4, named=["nobody: no kind"]),
    "no torch on node2": HostFault(plant=_no_torch, verdict="", words=["node2", "torch"]),
    "the interpreter of node2 exits with 3": HostFault(plant=on(2, "exit 3"), verdict="", words=["node2"]),
    "the interpreter of node2 prints": HostFault(plant=on(2, "echo hello"), verdict="PASS"),
    "all are called worker, node2 at 100 Mbit/s": HostFault(
        plant=slow(2), checks=_LINKS, called="worker", named=["node node2"], at_1_gbit=True, hosts=4
    ),
    "all are called worker, a dead link": HostFault(
        plant=_dead_link, checks=_LINKS, called="worker", named=["link node1 ("], at_1_gbit=True, hosts=4
    ),
    "all are called worker, rank 2 is killed": HostFault(
        planted="kill@collectives:2", called="worker", named=["rank 2"], words=["on node node2"]
    ),
    "all are called localhost": HostFault(called="localhost", verdict="PASS", checks=("network", *COLLECTIVES)),
    # Logins.
    "rc file prints": HostFault(plant=rc("echo Welcome; echo again >&2"), verdict="PASS"),
    "rc file prints 20,000 lines": HostFault(plant=rc("yes welcome | head -n 20000"), verdict="PASS"),
    "rc file prints 300 kB of garbage": HostFault(
        plant=rc("head -c 300000 /dev/urandom | tr -d '\\n'"), verdict="PASS"
    ),
    "rc file reads everything": HostFault(plant=rc("cat >/dev/null"), verdict="", words=["node2", ".bashrc"]),
    "rc file reads a line": HostFault(plant=rc("read -r line"), verdict="", words=["node2", ".bashrc"]),
    "rc file exits": HostFault(plant=rc("exit 0"), verdict="", words=["node2", ".bashrc"]),
    "rc file sends all to standard error": HostFault(plant=rc("exec 1>&2"), verdict="", words=["node2", ".bashrc"]),
    "rc file leaves a job behind": HostFault(plant=rc("(sleep 60 >&2 &)"), verdict="PASS"),
    "login shell is dash": HostFault(plant=shell("/bin/dash"), verdict="PASS"),
    "login shell is nologin": HostFault(plant=shell("/usr/sbin/nologin"), verdict="", words=["node2", "not available"]),
    "login shell is restricted": HostFault(plant=shell("/bin/rbash"), verdict="", words=["node2", "restricted"]),
    # Data of a training.
    "data cut on node2": HostFault(
        plant=_data(_cut),
        checks=("bootstrap", "training"),
        options=_ON_DATA,
        named=["node node2"],
        words=["seatrial data fetch"],
    ),
    "data missing on node2": HostFault(
        plant=_data(_remove), checks=("bootstrap", "training"), options=_ON_DATA, named=["node node2"]
    ),
    "other images on node2": HostFault(
        plant=_data(_other_images),
        checks=("bootstrap", "training"),
        options=_ON_DATA,
        named=["node node2"],
        words=["other training"],
    ),
}
"""By what is planted."""


@pytest.mark.parametrize("fault", FAULTS)
def test_whoever_is_at_fault_is_named(hosts: Callable[..., Hosts], fault: str) -> None:
    row = FAULTS[fault]
    outcome = run_fault(hosts(row.hosts, row.called), row)
    assert faults_of(outcome, row) == [], (outcome.named, outcome.said)
