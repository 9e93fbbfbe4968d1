"""Network policies of a namespace, on the double of a cluster: closed egress is named, with the remedy."""

from __future__ import annotations

import pytest
from kubernetes.double.cluster import Cluster
from kubernetes.runs import run_in

from seatrial.targets.kubernetes.manifest.yaml_text import to_yaml

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

_FIRST = {"batch.kubernetes.io/job-completion-index": "0"}


def _deny(cluster: Cluster, kind: str, labels: dict[str, str]) -> None:
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "deny"},
        "spec": {"podSelector": {"matchLabels": labels} if labels else {}, "policyTypes": [kind]},
    }
    done = cluster.call("apply", "-f", "-", stdin=to_yaml([policy]))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kind", "labels", "option", "said"),
    [
        ("Ingress", {}, (), ""),  # ours allows it, and policies add up
        ("Egress", {}, ("--allow-egress",), ""),
        ("Egress", _FIRST, (), "node-0 cannot connect to node-1: no answer at 10.78.0."),
        ("Egress", {}, (), "node 1 did not join within 20 s; look at the output of its agent"),
    ],
)
def test_what_a_policy_closes_is_named(
    kind: str, labels: dict[str, str], option: tuple[str, ...], said: str, cluster: Cluster
) -> None:
    _deny(cluster, kind, labels)
    end, log = run_in(cluster, ("run", *option, "--only=network", "--", "smoke"), "job")
    assert ("FINAL ACCEPTANCE: PASS" in log) is not bool(said), log
    assert (end == "Failed") is bool(said), log
    assert said in log
    assert ("NetworkPolicy" in log) is bool(said)
