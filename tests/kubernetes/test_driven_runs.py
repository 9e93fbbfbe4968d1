"""Runs that the controller drives itself, on the double of a cluster, while something goes wrong half-way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes.double.cluster import Cluster, made_cluster

import seatrial

pytestmark = [pytest.mark.hosts, pytest.mark.slow]
_SOURCE = Path(seatrial.__file__).parents[1]
_TYPED = ("--gpu-resource=none", "--nodes=2", "--nproc-per-node=1", "--image=example/train:1", "--python=python3")
_HALF_WAY = "inventory, at most"
"""What the first pod says when all ranks are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended, and the report that it left."""

    code: int
    errors: str
    report: dict[str, Any]
    folder: Path

    def found(self) -> str:
        return " | ".join(finding["what"] for finding in self.report["findings"])


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with made_cluster(nodes=2) as made:
        yield made


def driven(cluster: Cluster, out: Path, *words: str, half_way: Callable[[int], object] | None = None) -> Ended:
    """A trial; ``half_way`` is called then with the process. Nothing of it is left in the cluster."""
    typed = ["run", "smoke", "--only=inventory,collectives", *_TYPED, *words]
    said = out.with_suffix(".said")
    with open(said, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "seatrial", *typed, f"--kubectl={cluster.kubectl}", f"--out={out}"],
            env={**os.environ, "PYTHONPATH": str(_SOURCE)},
            stdout=file,
            stderr=file,
        )
    try:
        if half_way is not None:
            until = time.monotonic() + 30
            while not any(_HALF_WAY in log.read_text() for log in cluster.folder.glob("pods/*/*.log")):
                assert time.monotonic() < until
                time.sleep(0.1)
            half_way(process.pid)
        process.wait(timeout=50)
    finally:
        process.kill()
        process.wait()
    errors = said.read_text()
    left = cluster.call("get", "pods,jobs,jobsets,secrets,configmaps,services,networkpolicies", "-o", "name")
    assert left.stdout == "", left.stdout
    (folder,) = {file.resolve().parent for file in out.glob("*/controller.events")}
    report = json.loads((folder / "report.json").read_text())
    return Ended(code=process.returncode, errors=errors, report=report, folder=folder)


def test_a_pod_that_is_evicted_blames_nobody(cluster: Cluster, tmp_path: Path) -> None:
    # Not before: a process that is the first of its container and not ready for SIGTERM never gets it, as Linux has it,
    # and ends a minute later (terminationGracePeriodSeconds).
    evict = {"fault": "evicted", "pods": "*-1-*"}
    found = driven(cluster, tmp_path / "out", "--on=job", half_way=lambda _: cluster.plant(evict))
    assert found.code == 130, found.errors
    assert "was evicted" in found.errors
    assert all(finding["severity"] != "fail" for finding in found.report["findings"])


def test_a_pod_that_is_evicted_before_the_first_one_runs_ends_the_run(cluster: Cluster, tmp_path: Path) -> None:
    cluster.plant({"fault": "evicted", "pods": "*-1-*"}, {"fault": "image-pull", "pods": "*-0-*"})
    found = driven(cluster, tmp_path / "out", "--on=job")
    assert found.code == 130, found.errors
    assert "was evicted" in found.errors
    assert all(finding["severity"] != "fail" for finding in found.report["findings"])


def test_the_first_pod_out_of_memory_is_told_and_nobody_blamed(cluster: Cluster, tmp_path: Path) -> None:
    cluster.plant({"fault": "oom-killed", "pods": "*-0-*", "after_log": _HALF_WAY})
    found = driven(cluster, tmp_path / "out", "--on=job")
    assert found.code == 3, found.errors
    assert "needed more memory than the limit" in found.found()
    assert all(finding["severity"] != "fail" for finding in found.report["findings"])


def test_ctrl_c_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    found = driven(cluster, tmp_path / "out", "--on=jobset", half_way=lambda pid: os.kill(pid, signal.SIGINT))
    assert found.code == 130, found.errors
