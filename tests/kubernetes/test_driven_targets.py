"""A trial on each target, on the double of a cluster: the verdict arrives, nothing is left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kubernetes.double.cluster import made_cluster
from kubernetes.driven import SHORT_TRIAL, driven
from kubernetes.runs import TARGETS
from passes import passes

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("target", "nproc_per_node"),
    [
        pytest.param(target, count, marks=() if (target, count) == ("job", 1) else pytest.mark.nightly)
        for target in TARGETS
        for count in (1, 2)
    ],
)
def test_a_trial_is_driven_to_a_pass(target: str, nproc_per_node: int, tmp_path: Path) -> None:
    if "mpi" in target and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    with made_cluster() as cluster:
        ended = driven(cluster, tmp_path / "out", ("run", "--", "smoke"), target, nproc_per_node)
    assert ended.code == 0, ended.said
    assert passes(ended.said), ended.said
    assert ended.report["world_size"] == 2 * nproc_per_node


# A job passes the whole level above; by day a trainjob is driven to the end of a training (test_driven_programs.py).
@pytest.mark.parametrize(
    "target", ["jobset", "pytorchjob", pytest.param("trainjob", marks=pytest.mark.nightly), "trainjob-mpi", "mpijob"]
)
def test_a_short_trial_is_driven_to_a_pass(target: str, tmp_path: Path) -> None:
    if "mpi" in target and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    with made_cluster() as cluster:
        ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, target)
    assert ended.code == 0, ended.said
    assert "FINAL ACCEPTANCE: PASS (partial" in ended.said, ended.said
    assert ended.report["world_size"] == 2
