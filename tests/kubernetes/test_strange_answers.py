"""Answers of an API server with other types than it has: no field is taken for granted, and none ends a request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kubernetes.kubectl_script_double import scripted
from kubernetes.workloads import workload

from seatrial.targets.kubernetes.applied_objects import AppliedObjects
from seatrial.targets.kubernetes.kubectl import Kubectl
from seatrial.targets.kubernetes.manifest.render import manifest
from seatrial.targets.kubernetes.permissions import chosen_nodes
from seatrial.targets.kubernetes.warnings_of_run import pod_warnings


@pytest.mark.parametrize(
    "strange",
    [
        *({"metadata": None}, {"metadata": {"name": None}}, {"metadata": "gpu-0"}, "gpu-0", None),
        *({"status": {"conditions": ["Ready"]}}, {"status": {"conditions": "Ready"}}, {"status": [1]}, {"spec": "gpu"}),
    ],
)
def test_nodes(strange: object, tmp_path: Path) -> None:
    named = {"metadata": {"name": "gpu-0"}}
    item = {**named, **strange} if isinstance(strange, dict) else strange
    (tmp_path / "nodes").write_text(json.dumps({"items": [item, {"metadata": {"name": "gpu-1"}}]}))
    kubectl = Kubectl(program=scripted(tmp_path, ("*", f"cat {tmp_path}/nodes")), namespace="ml")
    is_named = isinstance(item, dict) and item["metadata"] == named["metadata"]
    assert chosen_nodes(kubectl, "pool=a", None) == (1 + is_named, ())


def test_created_objects(tmp_path: Path) -> None:
    strange = """sed 's/"metadata": {/"metadata": {"creationTimestamp": null, /g'"""
    kubectl = Kubectl(program=scripted(tmp_path, ("*'create -f -'*", strange), ("*", "exit 0")), namespace="ml")
    objects = AppliedObjects(kubectl, "job", manifest("job", workload(namespace="ml")))
    objects.apply()
    assert objects.created_at == ""
    event = {"involvedObject": {"name": "trial-1-0", "kind": "Pod"}, "lastTimestamp": "2026", "message": "slow"}
    assert pod_warnings({"items": [event]}, "trial-1", objects.created_at)
