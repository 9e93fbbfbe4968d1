"""MPI's kinds without one of the things that their operators bring, on the double of a cluster."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from kubernetes.double.cluster import made_cluster
from kubernetes.driven import SHORT_TRIAL, driven

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun"),
]


@pytest.mark.parametrize("target", ["mpijob", pytest.param("trainjob-mpi", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            {"fault": "unmounted", "volume": "ssh-auth"},
            "id_rsa.pub is not there: the operator has not mounted the key of the run",
        ),
        (
            {"fault": "unmounted", "volume": "ssh-auth", "pods": "*-launcher-*"},
            "id_rsa.pub is not there: the operator has not mounted the key of the run",
        ),
        (
            {"fault": "unmounted", "volume": "mpi-job-config"},
            "hostfile is not there: the operator has not mounted the list of the nodes",
        ),
        ({"fault": "no-service"}, "Could not resolve hostname"),
    ],
)
def test_it_fails_and_says_what_is_missing(target: str, fault: dict[str, Any], words: str, tmp_path: Path) -> None:
    with made_cluster() as cluster:
        cluster.plant(fault)
        ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, target)
    assert ended.code == 3, ended.said
    assert words in ended.said
    assert not ended.blames
