"""Commands that the controller runs to their end, on the double of a cluster."""

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

SHORT_TRIAL = ("run", "--only=inventory,collectives", "--", "smoke")
HALF_WAY = "ranks are ready"
"""Text that the first pod of a trial prints when all ranks have started."""
HAVE_MET = "] bootstrap "
"""Text that it prints when its ranks have met: for the loss of one until then no node is to blame."""
HELD = {"SEATRIAL_PLANT": "hang@collectives:1"}
"""Makes a short trial last 15 s longer; otherwise it ends within half a second on a fast machine."""
RIGHTS_SCRIPT = (
    "import os\n"
    "proc = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)\n"
    "print('uid', os.getuid(), 'gid', os.getgid(), 'groups', os.getgroups())\n"
    "print('caps', proc['CapEff'], proc['CapBnd'], 'escalation', proc['NoNewPrivs'], 'seccomp', proc['Seccomp'])\n"
    "shm = os.statvfs('/dev/shm')\n"
    "print('shm', shm.f_blocks * shm.f_frsize)\n"
    "for place in ('/opt/seatrial', '/etc', '/usr', '/', '/home/seatrial', '/tmp', '/dev/shm'):\n"
    "    print('may write', place, os.access(place, os.W_OK))\n"
)
"""A script that prints its user and its rights in a container."""
_KINDS = (
    *("jobs", "jobsets", "pytorchjobs", "trainjobs", "mpijobs", "trainingruntimes", "pods", "services", "configmaps"),
    *("secrets", "networkpolicies", "roles", "rolebindings", "serviceaccounts"),
)
_END_S = 55.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a command: exit code, output, report."""

    code: int
    said: str
    report: dict[str, Any]
    """Empty if there is none."""
    folder: Path
    """Folder of the run; ``out`` itself if no run began."""

    @property
    def blames(self) -> list[str]:
        """The findings that blame somebody."""
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
    end_s: float = _END_S,
) -> Ended:
    """Run ``words`` (the command first) in two pods of a target, call ``meanwhile``, and wait for the end.

    Asserts that nothing of the run is left in the cluster. Planted faults are removed at the end.
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
    until = time.monotonic() + end_s
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
    """Return the objects of the kinds that a run creates. The garbage collector may take a moment."""
    kinds = (*_KINDS, "securitycontextconstraints") if cluster.openshift else _KINDS
    until = time.monotonic() + 10
    while True:
        names = cluster.call("get", ",".join(kinds), "-A", "-o", "name")
        assert names.returncode == 0, names.stderr
        if not names.stdout or time.monotonic() > until:
            return names.stdout.split()
        time.sleep(0.1)


def await_in_logs(cluster: Cluster, text: str, timeout_s: float = 30.0) -> None:
    """Wait until some pod, even a deleted one, has printed this."""
    until = time.monotonic() + timeout_s
    while not any(text in log.read_text(errors="replace") for log in cluster.folder.glob("pods/*/*.log")):
        assert time.monotonic() < until, f"no pod has said {text!r}"
        time.sleep(0.1)


def await_in_file(file: Path, text: str, timeout_s: float = 40.0) -> None:
    """Wait until a file has this."""
    until = time.monotonic() + timeout_s
    while not (file.exists() and text in file.read_text(errors="replace")):
        assert time.monotonic() < until, f"{text!r} is not in {file}"
        time.sleep(0.1)


def plant_after(
    cluster: Cluster, text: str, fault: Mapping[str, Any], timeout_s: float = 30.0
) -> Callable[[subprocess.Popen[bytes]], None]:
    """Return a function that plants the fault as soon as any pod has printed this."""

    def plant(process: subprocess.Popen[bytes]) -> None:
        await_in_logs(cluster, text, timeout_s)
        cluster.plant(fault)

    return plant


def stop(cluster: Cluster, text: str) -> Callable[[subprocess.Popen[bytes]], None]:
    """Return a function that sends Ctrl-C as soon as a pod has printed this."""

    def press(process: subprocess.Popen[bytes]) -> None:
        await_in_logs(cluster, text)
        process.send_signal(signal.SIGINT)

    return press


def may_write(said: str) -> list[str]:
    """Return the folders that RIGHTS_SCRIPT could write to."""
    answers = re.findall(r"may write (\S+) (True|False)", said)
    assert answers, said
    return list(dict.fromkeys(place for place, can in answers if can == "True"))
