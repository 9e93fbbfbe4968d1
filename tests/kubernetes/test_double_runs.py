"""Each target on the double of a cluster: trials pass, trainings agree, variables of the operator are needed."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest
from by_day import by_day
from kubernetes.double.cluster import Cluster
from kubernetes.double.recorded import OPERATOR_VARIABLES
from kubernetes.driven import SHORT_TRIAL
from kubernetes.runs import (
    TARGETS,
    TRAINING,
    await_said,
    digest_here,
    digest_in,
    end_of,
    first_pod,
    report_by_hand,
    run_in,
    start_in,
)
from passes import passes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]
_WHOLE = ("run", "--", "smoke")
_NEEDS_MPIRUN = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")


_LACKED_BY_DAY = (("job", "JOB_COMPLETION_INDEX"), ("pytorchjob", "MASTER_ADDR"))
"""One of Kubernetes itself, and one of an operator."""


def _targets(*by_day: str) -> list[object]:
    """All targets; those that are not named wait for the night."""
    marks = {name: [_NEEDS_MPIRUN] * ("mpi" in name) + [pytest.mark.nightly] * (name not in by_day) for name in TARGETS}
    return [pytest.param(name, marks=marks[name]) for name in TARGETS]


# The other targets, and these with one process a pod, pass where they are driven (test_driven_targets.py).
@pytest.mark.parametrize(
    ("words", "nproc_per_node"),
    by_day([(SHORT_TRIAL, 2), (_WHOLE, 1), (_WHOLE, 2)]),
    ids=["short-2", "1", "2"],
)
@pytest.mark.parametrize("target", _targets("job"))
def test_a_trial_passes(
    target: str, words: tuple[str, ...], nproc_per_node: int, cluster: Cluster, tmp_path: Path
) -> None:
    """Applied by hand, with the command for the report as the manifest names it."""
    manifest = start_in(cluster, words, target, nproc_per_node)
    end, log = end_of(cluster, target)
    assert end != "Failed", log
    assert passes(log) if words == _WHOLE else "FINAL ACCEPTANCE: PASS (partial" in log, log
    assert f"{2 * nproc_per_node} processes as" in log
    report = report_by_hand(cluster, manifest, tmp_path)
    assert (report["acceptance"]["status"], report["world_size"]) == ("PASS", 2 * nproc_per_node)


# By day that of a trainjob is driven (test_driven_programs.py).
@pytest.mark.parametrize("target", _targets())
def test_a_training_has_the_same_parameters_as_locally(target: str, cluster: Cluster) -> None:
    end, log = run_in(cluster, TRAINING, target)
    assert end != "Failed", log
    assert digest_in(log) == digest_here()


@pytest.mark.parametrize(
    ("target", "variable"),
    [
        pytest.param(target, name, marks=() if (target, name) in _LACKED_BY_DAY else pytest.mark.nightly)
        for target, names in OPERATOR_VARIABLES.items()
        for name in names
    ],
)
def test_a_missing_variable_of_the_operator_fails(target: str, variable: str, cluster: Cluster) -> None:
    cluster.plant({"fault": "without", "variable": variable})
    end, log = run_in(cluster, ("run", "--only=inventory", "--", "smoke"), target)
    assert end == "Failed"
    assert "FINAL ACCEPTANCE: PASS" not in log
    word = {"RANK": "SEATRIAL_NODE_RANK", "PET_NODE_RANK": "SEATRIAL_NODE_RANK"}.get(variable, variable)
    word = "SEATRIAL_NODE_RANK" if variable == "JOB_COMPLETION_INDEX" else word.removeprefix("PET_")
    assert word in log


# By day ranks meet so without pods (worker/test_rendezvous.py).
@pytest.mark.nightly
@pytest.mark.parametrize("init", ["tcp://trial-1-master-0:23457", "file:///shared/meet"])
def test_a_training_uses_the_given_rendezvous(init: str, cluster: Cluster) -> None:
    cluster.claim("shared")
    end, log = run_in(cluster, ("train", f"--init={init}", "--pvc=shared:/shared", *TRAINING[1:]), "pytorchjob")
    assert end != "Failed", log


# By day in containers of podman (test_podman_pods_run.py), and on OpenShift (test_driven_places.py).
@pytest.mark.nightly
def test_a_container_has_no_more_rights_than_its_manifest_says(cluster: Cluster) -> None:
    script = cluster.claim("code") / "look.py"
    script.write_text(
        "import os, socket\n"
        "told = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)\n"
        "print('uid', os.getuid(), 'gid', os.getgid(), 'groups', os.getgroups())\n"
        "print('caps', told['CapEff'], told['CapBnd'], 'escalation', told['NoNewPrivs'])\n"
        "for place in ('/opt/seatrial', '/etc', '/usr', '/home/seatrial', '/tmp', '/dev/shm'):\n"
        "    print(place, os.access(place, os.W_OK))\n"
        "print('name', socket.gethostname(), socket.gethostbyname('trial-1'))\n"
        "print('first', os.path.exists('/proc/1') and open('/proc/1/cmdline').read().split('\\0')[1])\n"
    )
    end, log = run_in(cluster, ("launch", "--pvc=code:/code", "--", "/code/look.py"), "job")
    assert end != "Failed", log
    assert "uid 10001 gid 10001 groups [10001]" in log
    assert "caps 0000000000000000 0000000000000000 escalation 1" in log
    writable = dict(re.findall(r"^(?:\[.*\] ?)?(/[a-z/]+) (True|False)$", log, re.MULTILINE))
    assert [place for place, can in writable.items() if can == "True"] == ["/home/seatrial", "/tmp", "/dev/shm"]
    assert len(writable) == 6
    address = cluster.get("pod", first_pod(cluster))["status"]["podIP"]
    assert f"name trial-1-0 {address}" in log or "name trial-1-1" in log


@pytest.mark.nightly
def test_a_deleted_workload_leaves_nothing_that_runs(cluster: Cluster) -> None:
    start_in(cluster, ("run", "--", "smoke"), "jobset")
    await_said(cluster, "ranks are ready")
    assert cluster.call("delete", "jobset/trial-1").returncode == 0
    until = time.monotonic() + 20
    while cluster.get("pods")["items"]:
        assert time.monotonic() < until
        time.sleep(0.2)
    assert cluster.get("jobs,services")["items"] == []
