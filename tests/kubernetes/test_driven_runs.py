"""Trials that the controller drives itself, on the double of a cluster, while something goes wrong half-way."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from kubernetes.double.cluster import Cluster
from kubernetes.driven import HALF_WAY, HELD, SHORT_TRIAL, await_in_logs, driven, plant_after, stop
from passes import passes

pytestmark = pytest.mark.cluster


def test_a_pod_that_is_evicted_blames_nobody(cluster: Cluster, tmp_path: Path) -> None:
    # Not before: process 1 of a container that is not ready for SIGTERM never gets it, and ends a minute later.
    evicted = plant_after(cluster, HALF_WAY, {"fault": "evicted", "pods": "trial-1-1-*"})
    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, meanwhile=evicted, env=HELD)
    assert ended.code == 130, ended.said
    assert "was evicted" in ended.said
    assert not ended.blames


def test_a_pod_that_is_evicted_before_the_first_one_runs_ends_the_run(cluster: Cluster, tmp_path: Path) -> None:
    cluster.plant({"fault": "evicted", "pods": "trial-1-1-*"}, {"fault": "image-pull", "pods": "trial-1-0-*"})
    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL)
    assert ended.code == 130, ended.said
    assert "was evicted" in ended.said
    assert not ended.blames


def test_the_first_pod_out_of_memory_is_told_and_nobody_blamed(cluster: Cluster, tmp_path: Path) -> None:
    cluster.plant({"fault": "oom-killed", "pods": "trial-1-0-*", "after_log": HALF_WAY})
    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, env=HELD)
    assert ended.code == 3, ended.said
    assert "needed more memory than the limit" in ended.found
    assert not ended.blames


def test_ctrl_c_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, "jobset", meanwhile=stop(cluster, HALF_WAY), env=HELD)
    assert ended.code == 130, ended.said


@pytest.mark.parametrize("pods", ["trial-1-0-*", "trial-1-1-*"])
def test_a_pod_that_somebody_deletes_interrupts_the_run(pods: str, cluster: Cluster, tmp_path: Path) -> None:
    deleted = plant_after(cluster, HALF_WAY, {"fault": "deleted", "pods": pods})
    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, meanwhile=deleted, env=HELD)
    assert ended.code == 130, ended.said
    assert "was deleted" in ended.said
    assert not ended.blames


def test_a_workload_that_somebody_deletes_interrupts_the_run(cluster: Cluster, tmp_path: Path) -> None:
    def delete(process: subprocess.Popen[bytes]) -> None:
        await_in_logs(cluster, HALF_WAY)
        assert cluster.call("delete", "jobset/trial-1", "--wait=false").returncode == 0

    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, "jobset", meanwhile=delete, env=HELD)
    assert ended.code == 130, ended.said
    assert "was deleted" in ended.said
    assert not ended.blames


def test_a_log_that_breaks_again_and_again_is_read_without_loss(cluster: Cluster, tmp_path: Path) -> None:
    cluster.plant({"fault": "logs-break", "seconds": 0.5})
    ended = driven(cluster, tmp_path / "out", ("run", "--", "smoke"))
    assert ended.code == 0, ended.said
    assert passes(ended.said), ended.said
    streams = [call for call in cluster.calls() if "--follow" in call and "trial-1-0-" in call[1]]
    assert len(streams) > 2
    assert any(word.startswith("--since-time=") for call in streams for word in call)


@pytest.mark.slow
def test_a_server_that_is_silent_for_a_while_harms_nobody(cluster: Cluster, tmp_path: Path) -> None:
    def silence(process: subprocess.Popen[bytes]) -> None:
        await_in_logs(cluster, HALF_WAY)
        cluster.plant({"fault": "api-silent"})
        time.sleep(23)
        cluster.plant()

    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, meanwhile=silence)
    assert ended.code == 0, ended.said
    assert "API server has said nothing for 20 s; still asking" in ended.said
    assert "PASS (partial" in ended.said
