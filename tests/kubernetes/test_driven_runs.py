"""Trials with a fault in the middle, on the double of a cluster."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kubernetes.double.cluster import Cluster
from kubernetes.driven import HALF_WAY, HAVE_MET, HELD, SHORT_TRIAL, await_in_logs, driven, plant_after, stop

pytestmark = pytest.mark.cluster


@pytest.mark.timeout(240)  # on two cores that others use, too, the ranks alone take more than 30 s to start
def test_a_pod_that_is_evicted_blames_nobody(cluster: Cluster, tmp_path: Path) -> None:
    # Not before: process 1 of a container that is not ready for SIGTERM never gets it, and ends a minute later.
    fault = {"fault": "evicted", "pods": "trial-1-1-*", "late_s": 4.0}
    evicted = plant_after(cluster, HALF_WAY, fault, timeout_s=120.0)
    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, meanwhile=evicted, env=HELD, end_s=200.0)
    assert ended.code == 130, ended.said
    assert "was evicted" in ended.said
    assert not ended.blames


@pytest.mark.nightly
def test_a_pod_evicted_before_the_first_runs_ends_the_run(cluster: Cluster, tmp_path: Path) -> None:
    cluster.plant({"fault": "evicted", "pods": "trial-1-1-*"}, {"fault": "image-pull", "pods": "trial-1-0-*"})
    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL)
    assert ended.code == 130, ended.said
    assert "was evicted" in ended.said
    assert not ended.blames


@pytest.mark.nightly
def test_a_pod_out_of_memory_before_the_first_runs_is_named(cluster: Cluster, tmp_path: Path) -> None:
    cluster.plant({"fault": "oom-killed", "pods": "trial-1-1-*"}, {"fault": "image-pull", "pods": "trial-1-0-*"})
    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL)
    assert ended.code == 1, ended.said
    (blamed,) = ended.blames
    assert re.search(r"node node-[01] was lost: pod trial-1-1-\S+ on node node-[01] was killed because", blamed), blamed
    assert "not a PASS" not in ended.said


@pytest.mark.parametrize(
    ("target", "pods"),
    [
        ("job", "trial-1-1-*"),
        pytest.param("job", "trial-1-0-*", marks=pytest.mark.nightly),
        pytest.param("jobset", "*-node-0-0-*", marks=pytest.mark.nightly),
        pytest.param("pytorchjob", "*-master-0", marks=pytest.mark.nightly),
        pytest.param("mpijob", "*-worker-0", marks=pytest.mark.nightly),
        pytest.param("mpijob", "*-worker-1", marks=pytest.mark.nightly),
        pytest.param("mpijob", "*-launcher-*", marks=pytest.mark.nightly),
        pytest.param("jobset", "*-node-0-1-*", marks=pytest.mark.nightly),
        pytest.param("pytorchjob", "*-worker-0", marks=pytest.mark.nightly),
    ],
)
def test_a_pod_out_of_memory_is_a_lost_node(target: str, pods: str, cluster: Cluster, tmp_path: Path) -> None:
    if target == "mpijob" and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    meanwhile = plant_after(cluster, HAVE_MET, {"fault": "oom-killed", "pods": pods})
    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, target, meanwhile=meanwhile, env=HELD)
    assert ended.code == 1, ended.said
    (blamed,) = ended.blames
    # The launcher of MPI has no node rank of its own, and shares its node with a worker here.
    assert re.search(r"node node-[01] (\(node 2\) )?was lost", blamed), blamed
    assert "needed more memory than the limit" in ended.found
    assert "lines cut or changed" not in ended.said


@pytest.mark.nightly
def test_a_first_pod_whose_node_is_silent_ends_the_run(cluster: Cluster, tmp_path: Path) -> None:
    """The recording kubelet-stop-job: a trial of at most 60 s waited for 180 s without a word."""

    def silence(process: subprocess.Popen[bytes]) -> None:
        await_in_logs(cluster, HALF_WAY)
        (first,) = [pod for pod in cluster.get("pods")["items"] if pod["metadata"]["name"].startswith("trial-1-0-")]
        cluster.plant({"fault": "node-silent", "nodes": first["spec"]["nodeName"]})
        until = time.monotonic() + 30
        said = tmp_path / "out.said"
        while "NodeNotReady" not in said.read_text():
            assert time.monotonic() < until
            time.sleep(0.2)
        # The kubelet comes back, so that its pods can be deleted: after the 10 s that the run waits for it, counted
        # from one list of pods to another.
        time.sleep(20)
        cluster.plant()

    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, meanwhile=silence, env=HELD)
    assert ended.code == 3, ended.said
    assert "its node no longer reports to the cluster (NodeNotReady)" in ended.found


def test_ctrl_c_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, "jobset", meanwhile=stop(cluster, HALF_WAY), env=HELD)
    assert ended.code == 130, ended.said


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("job", "FailedCreatePodSandBox"),
        pytest.param("pytorchjob", "its init container init-pytorch has not ended", marks=pytest.mark.nightly),
    ],
)
def test_ctrl_c_ends_pods_that_wait(target: str, said: str, cluster: Cluster, tmp_path: Path) -> None:
    """They have a minute, and the whole command of a test has less."""
    cluster.plant({"fault": "no-sandbox", "pods": "trial-1-1-*"}, {"fault": "no-service", "owner": "trial-1"})

    def press(process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + 30
        while said not in (tmp_path / "out.said").read_text():
            assert time.monotonic() < until
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)

    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, target, meanwhile=press)
    assert ended.code == 130, ended.said


# By day a pod is evicted (above).
@pytest.mark.nightly
@pytest.mark.parametrize("pods", ["trial-1-0-*", "trial-1-1-*"])
def test_a_pod_that_somebody_deletes_interrupts_the_run(pods: str, cluster: Cluster, tmp_path: Path) -> None:
    deleted = plant_after(cluster, HALF_WAY, {"fault": "deleted", "pods": pods})
    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, meanwhile=deleted, env=HELD)
    assert ended.code == 130, ended.said
    assert "was deleted" in ended.said
    assert not ended.blames


@pytest.mark.nightly
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
    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL)
    assert ended.code == 0, ended.said
    assert "FINAL ACCEPTANCE: PASS (partial" in ended.said, ended.said
    streams = [path for call in cluster.calls() for path in call if "/pods/trial-1-0-" in path and "follow=" in path]
    assert len(streams) > 2
    assert any("sinceTime=" in path for path in streams)


@pytest.mark.slow
def test_a_server_that_is_silent_for_a_while_does_no_harm(cluster: Cluster, tmp_path: Path) -> None:
    def silence(process: subprocess.Popen[bytes]) -> None:
        await_in_logs(cluster, HALF_WAY)
        cluster.plant({"fault": "api-silent"})
        time.sleep(23)
        cluster.plant()

    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, meanwhile=silence)
    assert ended.code == 0, ended.said
    assert re.search(r"API server has listed no pods for \d+ s \(.*\); still trying", ended.said), ended.said
    assert "PASS (partial" in ended.said
