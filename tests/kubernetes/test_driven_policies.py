"""Runs in a namespace whose network policies deny everything, on the double of a cluster."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from kubernetes.double.cluster import Cluster
from kubernetes.driven import SHORT_TRIAL, await_in_file, driven

pytestmark = [pytest.mark.cluster, pytest.mark.nightly, pytest.mark.timeout(150)]


@pytest.fixture
def denying(cluster: Cluster) -> Cluster:
    """A cluster whose default namespace has the policy with which many begin."""
    spec = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    metadata = {"name": "default-deny", "namespace": "default"}
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}
    assert cluster.call("apply", "-f", "-", stdin=json.dumps(policy)).returncode == 0
    return cluster


def test_pods_that_cannot_reach_one_another_are_told(denying: Cluster, tmp_path: Path) -> None:
    def press(process: subprocess.Popen[bytes]) -> None:
        await_in_file(tmp_path / "out.said", "have not joined")
        assert denying.call("delete", "networkpolicy/default-deny").returncode == 0
        process.send_signal(signal.SIGINT)

    ended = driven(denying, tmp_path / "out", SHORT_TRIAL, meanwhile=press)
    assert ended.code == 130, ended.said
    told = r"1 of 2 pods run and have not joined for 20 s, pod trial-1-1-\S+ on node node-\d among them \((.+)\); see"
    found = re.search(told, ended.said)
    assert found, ended.said
    assert "waits for trial-1-0.trial-1" in found[1]
    assert "interrupted by SIGINT" in ended.said


def test_egress_to_dns_and_the_run_suffices(denying: Cluster, tmp_path: Path) -> None:
    def allow(process: subprocess.Popen[bytes]) -> None:
        process.wait(timeout=50)
        assert denying.call("delete", "networkpolicy/default-deny").returncode == 0

    words = (SHORT_TRIAL[0], "--allow-egress", *SHORT_TRIAL[1:])
    ended = driven(denying, tmp_path / "out", words, meanwhile=allow)
    assert ended.code == 0, ended.said


def test_egress_of_the_first_pod_alone_is_closed(cluster: Cluster, tmp_path: Path) -> None:
    """The other pod joins it, and answers pass; only a connection in this direction shows the policy."""
    selector = {"matchLabels": {"batch.kubernetes.io/job-completion-index": "0"}}
    to_dns = {"ports": [{"port": 53, "protocol": "UDP"}]}
    spec = {"podSelector": selector, "policyTypes": ["Egress"], "egress": [to_dns]}
    metadata = {"name": "no-egress", "namespace": "default"}
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}
    assert cluster.call("apply", "-f", "-", stdin=json.dumps(policy)).returncode == 0

    def allow(process: subprocess.Popen[bytes]) -> None:
        process.wait(timeout=50)
        assert cluster.call("delete", "networkpolicy/no-egress").returncode == 0

    words = ("run", "--only=network,inventory,collectives", "--", "smoke")
    ended = driven(cluster, tmp_path / "out", words, meanwhile=allow)
    (finding,) = [finding for finding in ended.report["findings"] if finding["severity"] == "fail"]
    assert (ended.code, finding["check"], finding["culprit"]["kind"]) == (1, "network", "link"), ended.said
    one_way = r"(\S+) cannot connect to (\S+): no answer at \S+; \2 can connect to \1"
    assert re.fullmatch(one_way, finding["what"]), finding["what"]
    assert "every NetworkPolicy" in finding["action"]
    assert "cordon" not in ended.found
    assert "bootstrap, collectives were not started, as network failed" in ended.found
