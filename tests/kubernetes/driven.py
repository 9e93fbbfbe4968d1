"""Commands that the controller drives to their end by itself, on the double of a cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kubernetes.double.cluster import Cluster
from kubernetes.runs import typed

import seatrial

__all__ = [
    *("HALF_WAY", "HELD", "LOOK", "SHORT_TRIAL", "Ended", "await_in_logs", "driven", "may_write", "plant_after"),
    "stop",
]

SHORT_TRIAL = ("run", "--only=inventory,collectives", "--", "smoke")
HALF_WAY = "inventory, at most"
"""What the first pod of a trial says when all ranks are there."""
HELD = {"SEATRIAL_PLANT": "hang@collectives:1"}
"""With this a short trial goes on after that for 15 s. By itself it ends within half a second on a fast machine."""
LOOK = (
    "import os\n"
    "told = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)\n"
    "print('uid', os.getuid(), 'gid', os.getgid(), 'groups', os.getgroups())\n"
    "print('caps', told['CapEff'], told['CapBnd'], 'escalation', told['NoNewPrivs'], 'seccomp', told['Seccomp'])\n"
    "shm = os.statvfs('/dev/shm')\n"
    "print('shm', shm.f_blocks * shm.f_frsize)\n"
    "for place in ('/opt/seatrial', '/etc', '/usr', '/', '/home/seatrial', '/tmp', '/dev/shm'):\n"
    "    print('may write', place, os.access(place, os.W_OK))\n"
)
"""A script: who it is and what it may do, in a container."""
_KINDS = (
    *("jobs", "jobsets", "pytorchjobs", "trainjobs", "mpijobs", "trainingruntimes", "pods", "services", "configmaps"),
    *("secrets", "networkpolicies", "roles", "rolebindings", "serviceaccounts"),
)
_END_S = 55.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended, what it said, and the report that it left."""

    code: int
    said: str
    report: dict[str, Any]
    """Empty: it left none."""
    folder: Path
    """Of the run; ``out`` itself, if nothing was begun."""

    @property
    def blames(self) -> list[str]:
        """What it found somebody to be at fault for."""
        return [finding["what"] for finding in self.report["findings"] if finding["severity"] == "fail"]

    @property
    def found(self) -> str:
        return " | ".join(finding["what"] for finding in self.report["findings"])


def driven(
    cluster: Cluster,
    out: Path,
    words: Sequence[str],
    target: str = "job",
    nproc_per_node: int = 1,
    meanwhile: Callable[[subprocess.Popen[bytes]], None] | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
) -> Ended:
    """Types ``words`` (the command first) for two pods of a target, does what is to be done ``meanwhile``, and waits.

    Whatever the end was, nothing of the run is left in the cluster. Planted faults go when it has ended.
    """
    where = [f"--kubectl={cluster.kubectl}", f"--out={out}"]
    said = out.with_suffix(".said")
    with open(said, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "seatrial", *typed([words[0], *where, *words[1:]], target, nproc_per_node)],
            env={**os.environ, "PYTHONPATH": str(Path(seatrial.__file__).parents[1]), **env},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    until = time.monotonic() + _END_S
    try:
        if meanwhile is not None:
            meanwhile(process)
        process.wait(timeout=max(1.0, until - time.monotonic()))
    finally:
        process.kill()
        process.wait()
    cluster.plant()
    assert _left_in(cluster) == [], said.read_text()
    folder = next((file.resolve().parent for file in out.glob("*/controller.events")), out)
    report = folder / "report.json"
    return Ended(
        code=process.returncode,
        said=said.read_text(),
        report=json.loads(report.read_text()) if report.exists() else {},
        folder=folder,
    )


def _left_in(cluster: Cluster) -> list[str]:
    """What is there of the kinds that a run makes. Who collects what belongs to nobody may take a moment."""
    kinds = (*_KINDS, "securitycontextconstraints") if cluster.openshift else _KINDS
    until = time.monotonic() + 10
    while True:
        names = cluster.call("get", ",".join(kinds), "-A", "-o", "name")
        assert names.returncode == 0, names.stderr
        if not names.stdout or time.monotonic() > until:
            return names.stdout.split()
        time.sleep(0.1)


def await_in_logs(cluster: Cluster, text: str, timeout_s: float = 30.0) -> None:
    """Until some pod has said this, be it one that is gone."""
    until = time.monotonic() + timeout_s
    while not any(text in log.read_text(errors="replace") for log in cluster.folder.glob("pods/*/*.log")):
        assert time.monotonic() < until, f"no pod has said {text!r}"
        time.sleep(0.1)


def plant_after(cluster: Cluster, text: str, fault: Mapping[str, Any]) -> Callable[[subprocess.Popen[bytes]], None]:
    """This goes wrong as soon as a pod, whichever, has said this."""

    def plant(process: subprocess.Popen[bytes]) -> None:
        await_in_logs(cluster, text)
        cluster.plant(fault)

    return plant


def stop(cluster: Cluster, text: str) -> Callable[[subprocess.Popen[bytes]], None]:
    """Ctrl-C, as soon as a pod has said this."""

    def press(process: subprocess.Popen[bytes]) -> None:
        await_in_logs(cluster, text)
        process.send_signal(signal.SIGINT)

    return press


def may_write(said: str) -> list[str]:
    """The folders that LOOK could write to."""
    told = re.findall(r"may write (\S+) (True|False)", said)
    assert told, said
    return list(dict.fromkeys(place for place, can in told if can == "True"))
