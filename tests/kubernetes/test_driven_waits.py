"""Runs whose pods do not all start, on the double of a cluster: the reason is printed, and the wait ends."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from kubernetes.double.cluster import Cluster
from kubernetes.driven import SHORT_TRIAL, driven

pytestmark = pytest.mark.cluster
_SOON = (SHORT_TRIAL[0], "--queue-timeout=6", *SHORT_TRIAL[1:])


@pytest.mark.parametrize(
    ("target", "fault", "words"),
    [
        (
            "job",
            {"fault": "image-pull", "pods": "trial-1-1-*"},
            "1 of 2 pods wait: its image registry.example.com/train:1 cannot be pulled",
        ),
        pytest.param(
            "jobset",
            {"fault": "unschedulable", "pods": "*-1-?????"},
            "1 of 2 pods wait: no node accepts it (0/2 nodes are available: 2 Insufficient nvidia.com/gpu)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "pytorchjob",
            {"fault": "quota", "pods": "*-worker-*"},
            "forbidden: exceeded quota: compute-quota",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "job", {"fault": "quota"}, '2 of 2 pods cannot be created: "Error creating: pods', marks=pytest.mark.slow
        ),
        (
            "mpijob",
            {"fault": "never-ready", "pods": "*-worker-1"},
            "the launcher is not created because pod trial-1-worker-1 on node node-1 is not ready: its sshd does not",
        ),
    ],
)
def test_it_gives_up_with_the_reason(
    target: str, fault: dict[str, Any], words: str, same_cluster: Cluster, tmp_path: Path
) -> None:
    if target == "mpijob" and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    same_cluster.plant(fault)
    ended = driven(same_cluster, tmp_path / "out", _SOON, target)
    assert ended.code == 3, ended.said
    assert "not all pods have started within 6 s (--queue-timeout)" in ended.found
    assert words in ended.found
    assert not ended.blames


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"fault": "no-sandbox", "pods": "trial-1-1-*"}, "FailedCreatePodSandBox: .*failed to find plugin 'bridge'"),
        (
            {"fault": "pod-security"},
            "2 of 2 pods will never be created: .*violates PodSecurity",
        ),
        (
            {"fault": "limit-range"},
            "2 of 2 pods will never be created: .*maximum memory usage per Container is 32Gi",
        ),
    ],
)
def test_a_warning_of_the_cluster_is_told(
    fault: dict[str, Any], words: str, same_cluster: Cluster, tmp_path: Path
) -> None:
    same_cluster.plant(fault)
    ended = driven(same_cluster, tmp_path / "out", _SOON, "job")
    assert ended.code == 3, ended.said
    assert re.search(words, ended.said), ended.said
    assert not ended.blames


@pytest.mark.slow
def test_min_hosts_leaves_out_the_missing_pod(same_cluster: Cluster, tmp_path: Path) -> None:
    same_cluster.plant({"fault": "unschedulable", "pods": "trial-1-1-*"})
    ended = driven(same_cluster, tmp_path / "out", (_SOON[0], "--min-hosts=1", *_SOON[1:]), nproc_per_node=2)
    assert ended.code == 0, ended.said
    assert "FINAL ACCEPTANCE: PASS (partial" in ended.said
    assert ended.report["world_size"] == 2
    assert "left out: trial-1-1-" in ended.said


def _quota(cluster: Cluster, **hard: str) -> None:
    spec = {"hard": {name.replace("__", "."): amount for name, amount in hard.items()}}
    metadata = {"name": "team", "namespace": "default"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec}
    done = cluster.call("apply", "-f", "-", stdin=json.dumps(quota))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("hard", "words"),
    [
        (
            {"limits__cpu": "3"},
            "exceeded quota: team, requested: limits.cpu=2, used: limits.cpu=2, limited: limits.cpu=3",
        ),
        pytest.param(
            {"limits__memory": "64Gi"},
            "failed quota: team: must specify limits.memory for: seatrial",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_quota_that_the_run_exceeds_by_itself_ends_it(
    hard: dict[str, str], words: str, cluster: Cluster, tmp_path: Path
) -> None:
    """Without the quota the run would wait for --queue-timeout, a day."""
    _quota(cluster, **hard)
    ended = driven(cluster, tmp_path / "out", (SHORT_TRIAL[0], "--cpu=2", *SHORT_TRIAL[1:]))
    assert ended.code == 3, ended.said
    assert "pods will never be created" in ended.found
    assert words in ended.found
    assert not ended.blames
