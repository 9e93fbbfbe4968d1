"""A double of a cluster that lasts for a ``with`` block."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosts import python_of_anybody
from kubernetes.double import kubectl_double, server
from kubernetes.double.dns import DENIAL_S
from kubernetes.double.faults import FILE, NAMES
from kubernetes.double.podman_sandbox import remove_containers

_NUMBERS = itertools.count()
_START_S = 15.0
_END_S = 20.0
_TESTS = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Its folder, and the kubectl that speaks with it."""

    folder: Path
    kubectl: Path
    openshift: bool = False

    def call(self, *words: str, stdin: str = "", timeout_s: float = 50.0) -> subprocess.CompletedProcess[str]:
        """kubectl with these words."""
        return subprocess.run(
            [str(self.kubectl), *words],
            env={**os.environ, kubectl_double.AT_ONCE: "1"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def get(self, *words: str) -> Any:
        """What ``kubectl get`` answers, out of JSON."""
        done = self.call("get", *words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def plant(self, *faults: Mapping[str, Any]) -> None:
        """These go wrong from now on, and no others (``faults.py``)."""
        assert all(fault["fault"] in NAMES for fault in faults)
        # Whole, under another name, since the server reads it at any time.
        file = self.folder / FILE
        file.with_suffix(".new").write_text(json.dumps(faults))
        file.with_suffix(".new").replace(file)

    def claim(self, name: str) -> Path:
        """Makes a PersistentVolumeClaim. Its folder."""
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        thing = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": spec,
        }
        done = self.call("apply", "-f", "-", stdin=json.dumps(thing))
        assert done.returncode == 0, done.stderr
        folder = self.folder / "claims" / "default" / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder

    def calls(self) -> list[list[str]]:
        """The words of all calls of kubectl so far."""
        file = self.folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def log(self, pod: str) -> str:
        """All that the first container of a pod has said."""
        return self.call("logs", pod).stdout

    def await_end(self, kind: str, name: str, timeout_s: float = 90.0) -> str:
        """The condition with which a workload has ended."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            conditions = self.get(kind, name).get("status", {}).get("conditions", ())
            for known in conditions:
                if known["type"] in ("Complete", "Completed", "Succeeded", "Failed") and known["status"] == "True":
                    return str(known["type"])
            time.sleep(0.3)
        raise AssertionError(f"{kind}/{name} has not ended within {timeout_s} s: {self.call('get', 'pods').stdout}")


@contextlib.contextmanager
def made_cluster(
    nodes: int | Mapping[str, Mapping[str, Any]] = 2,
    *,
    openshift: bool = False,
    image: str | None = None,
    image_has_torch: bool = False,
    dns_denial_s: float = DENIAL_S,
) -> Iterator[Cluster]:
    """With so many nodes, or with these: name -> labels, taints, allocatable. Skips where nothing can run it.

    ``openshift``: it has constraints as OpenShift has, and says which user a pod has to be. ``image``: its pods are
    containers of podman, of this image, into which torch is mounted
    unless ``image_has_torch``. ``dns_denial_s``: how long its DNS remembers that a name did not exist.
    """
    tag = f"kd{os.getpid()}x{next(_NUMBERS)}"
    folder = Path(tempfile.mkdtemp(prefix=f"{tag}-", dir="/tmp"))
    python, packages = python_of_anybody()
    made = {f"node-{number}": {} for number in range(nodes)} if isinstance(nodes, int) else nodes
    config: dict[str, Any] = {
        "tag": tag,
        "nodes": made,
        "python": python,
        "packages": str(packages),
        "namespace": "default",
    }
    config |= {"openshift": openshift, "image": image, "image_has_torch": image_has_torch, "dns_denial_s": dns_denial_s}
    process = None
    try:
        folder.chmod(0o755)
        (folder / server.CONFIG).write_text(json.dumps(config))
        kubectl = folder / "kubectl"
        words = [sys.executable, "-S", "-E", kubectl_double.__file__]
        kubectl.write_text(f'#!/bin/sh\nKUBECTL_DOUBLE_FOLDER={folder} exec {shlex.join(words)} "$@"\n')
        kubectl.chmod(0o755)
        with open(folder / "server.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, server.__file__, str(folder)],
                env={**os.environ, "PYTHONPATH": str(_TESTS)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + _START_S
        while not (folder / server.SOCKET).exists():
            assert process.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() < until, "the double of a cluster does not start"
            time.sleep(0.05)
        yield Cluster(folder=folder, kubectl=kubectl, openshift=openshift)
        assert process.poll() is None, (folder / "server.log").read_text()
    finally:
        if process is not None:
            _end(process)
        if image is not None:
            remove_containers(tag)
        for file in Path("/run/netns").glob(f"{tag}[a-z]*"):
            # Only where the server had no time for it.
            pids = subprocess.run(
                ["ip", "netns", "pids", file.name], capture_output=True, text=True, check=False
            ).stdout
            for pid in pids.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", file.name], capture_output=True, check=False, timeout=20)
        shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(timeout=_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=5)
