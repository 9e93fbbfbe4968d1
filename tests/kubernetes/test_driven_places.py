"""Runs on OpenShift and in the host network, on the double of a cluster."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.double.cluster import Cluster, made_cluster
from kubernetes.double.openshift import FIRST_UID
from kubernetes.driven import HALF_WAY, RIGHTS_SCRIPT, SHORT_TRIAL, await_in_logs, driven, may_write
from passes import passes

pytestmark = pytest.mark.cluster
_PASS = "FINAL ACCEPTANCE: PASS (partial"


@pytest.fixture(scope="module")
def openshift() -> Iterator[Cluster]:
    with made_cluster(openshift=True) as made:
        yield made


def _short(*options: str) -> tuple[str, ...]:
    return (SHORT_TRIAL[0], *options, *SHORT_TRIAL[1:])


def test_an_arbitrary_user_can_do_what_a_run_needs(openshift: Cluster, tmp_path: Path) -> None:
    (openshift.claim("code") / "rights.py").write_text(RIGHTS_SCRIPT)
    words = ("launch", "--openshift=arbitrary-uid", "--pvc=code:/code", "--", "/code/rights.py")
    ended = driven(openshift, tmp_path / "out", words)
    assert ended.code == 0, ended.said
    assert f"uid {FIRST_UID} gid 0 groups [{FIRST_UID}]" in ended.said
    assert "caps 0000000000000000 0000000000000000 escalation 1" in ended.said
    assert may_write(ended.said) == ["/home/seatrial", "/tmp", "/dev/shm"]


@pytest.mark.slow
def test_a_trial_passes_as_an_arbitrary_user(openshift: Cluster, tmp_path: Path) -> None:
    ended = driven(openshift, tmp_path / "out", ("run", "--openshift=arbitrary-uid", "--", "smoke"))
    assert ended.code == 0, ended.said
    assert passes(ended.said), ended.said


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_a_trial_under_mpi_passes_with_custom_scc(tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    constraints: list[str] = []
    secrets: list[str] = []

    def read_constraints(process: subprocess.Popen[bytes]) -> None:
        await_in_logs(cluster, HALF_WAY, timeout_s=70)
        pods = cluster.get("pods", "-n", "ml")["items"]
        constraints.extend(pod["metadata"]["annotations"]["openshift.io/scc"] for pod in pods)
        secrets.extend(secret["name"] for pod in pods for secret in pod["spec"].get("imagePullSecrets", ()))

    words = ("run", "--openshift=custom-scc", "--namespace=ml", "--", "smoke")
    with made_cluster(openshift=True) as cluster:
        ended = driven(cluster, tmp_path / "out", words, "mpijob", meanwhile=read_constraints, end_s=130)
    assert ended.code == 0, ended.said
    assert passes(ended.said), ended.said
    assert constraints == ["ml-trial-1"] * 3
    # The account got it 1.5 s after its creation, and the pods were created after that.
    assert secrets == ["trial-1-dockercfg-x7k2p"] * 3


def test_user_10001_is_refused_without_either_option(openshift: Cluster, tmp_path: Path) -> None:
    ended = driven(openshift, tmp_path / "out", _short("--queue-timeout=4"))
    assert ended.code == 3, ended.said
    assert "unable to validate against any security context constraint" in ended.found
    assert "--openshift" in ended.found


def test_a_constraint_takes_a_cluster_admin(openshift: Cluster, tmp_path: Path) -> None:
    openshift.plant({"fault": "forbidden", "verb": "create", "resource": "securitycontextconstraints"})
    ended = driven(openshift, tmp_path / "out", _short("--openshift=custom-scc", "--namespace=ml"))
    assert ended.code == 2, ended.said
    assert 'cannot create resource "securitycontextconstraints"' in ended.said


def test_custom_scc_is_refused_outside_openshift(tmp_path: Path) -> None:
    with made_cluster() as cluster:
        ended = driven(cluster, tmp_path / "out", _short("--openshift=custom-scc", "--namespace=ml"))
    assert ended.code == 2, ended.said
    assert "this cluster is not OpenShift; leave --openshift out" in ended.said


@pytest.mark.parametrize("target", ["job", pytest.param("jobset", marks=pytest.mark.slow)])
def test_pods_in_the_network_of_one_node_share_it(target: str, tmp_path: Path) -> None:
    with made_cluster(nodes=1) as cluster:
        ended = driven(cluster, tmp_path / "out", _short("--host-network"), target)
    assert ended.code == 0, ended.said
    assert _PASS in ended.said, ended.said


@pytest.mark.nightly
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("nodes", "nproc_per_node"), [(4, 2), (8, 1)])
@pytest.mark.parametrize("target", ["job", "jobset"])
def test_a_trial_passes_with_several_pods_in_the_network_of_a_node(
    target: str, nodes: int, nproc_per_node: int, tmp_path: Path
) -> None:
    """4 x 2 and 8 x 1 on two machines: the pods of a node share its address, and each needs a port of its own."""
    hosts: list[str] = []

    def read_places(process: subprocess.Popen[bytes]) -> None:
        await_in_logs(cluster, HALF_WAY, timeout_s=100)
        hosts.extend(sorted(pod["spec"]["nodeName"] for pod in cluster.get("pods")["items"]))

    with made_cluster() as cluster:
        words = _short("--host-network", f"--nodes={nodes}")
        ended = driven(cluster, tmp_path / "out", words, target, nproc_per_node, read_places, end_s=200)
    assert ended.code == 0, ended.said
    assert _PASS in ended.said, ended.said
    assert hosts == ["node-0"] * (nodes // 2) + ["node-1"] * (nodes // 2)
    assert ended.report["world_size"] == 8


@pytest.mark.parametrize("target", ["pytorchjob", pytest.param("mpijob", marks=pytest.mark.slow)])
def test_pods_that_take_the_same_port_of_a_node_are_refused(target: str, same_cluster: Cluster, tmp_path: Path) -> None:
    refused = driven(same_cluster, tmp_path / "no", _short("--host-network"), target)
    assert refused.code == 2, refused.said
    assert "reserve the same port of their node, so no two fit on one; add --spread required" in refused.said


@pytest.mark.parametrize("target", [pytest.param(name, marks=pytest.mark.nightly) for name in ("pytorchjob", "mpijob")])
def test_pods_that_take_a_port_of_their_node_are_kept_apart(target: str, tmp_path: Path) -> None:
    if target == "mpijob" and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    with made_cluster() as cluster:
        ended = driven(cluster, tmp_path / "out", _short("--host-network", "--spread=required"), target)
    assert ended.code == 0, ended.said
    assert _PASS in ended.said, ended.said
