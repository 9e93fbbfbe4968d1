"""The pod of a one-node Job, run in a container of our image: its user, its capabilities, its read-only root.

The image is named by SEATRIAL_TEST_WORKER_IMAGE (deploy/images, target worker). podman has no Secrets and no memory
volumes in pods: these two are put in by hand.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.workloads import container_of, templates, workload, workload_object

from seatrial.kubernetes.manifest import manifest

pytestmark = [pytest.mark.podman, pytest.mark.slow]
_IMAGE = os.environ.get("SEATRIAL_TEST_WORKER_IMAGE", "")


def _pod(name: str, **changes: Any) -> dict[str, Any]:
    made = workload(
        **{
            "run": name,
            "image": _IMAGE,
            "nodes": 1,
            "nproc_per_node": 2,
            "gpu_resource": None,
            "gpus_per_node": 0,
            "tolerations": (),
            "bundle": None,
            "arguments": ("run", "--device=cpu", "--nproc-per-node=2", "--only=inventory,collectives", "--", "smoke"),
            **changes,
        }
    )
    (template,) = templates(workload_object(manifest("job", made)))
    container = container_of(template)
    container["imagePullPolicy"] = "Never"
    container["env"] = [entry for entry in container["env"] if "valueFrom" not in entry]
    for volume in template["spec"]["volumes"]:
        volume["emptyDir"] = {}
        volume["name"] = f"{name}-{volume['name']}"
    for mount in container["volumeMounts"]:
        mount["name"] = f"{name}-{mount['name']}"
    template["metadata"]["name"] = name
    return {"apiVersion": "v1", "kind": "Pod", **template}


def _podman(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["podman", *words], capture_output=True, text=True, timeout=55, check=False)


@pytest.mark.skipif(not _IMAGE, reason="SEATRIAL_TEST_WORKER_IMAGE names no image")
def test_a_trial_passes_without_any_right(tmp_path: Path) -> None:
    name = f"t{uuid.uuid4().hex[:10]}"
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(_pod(name)))
    try:
        played = _podman("kube", "play", str(file))
        assert played.returncode == 0, played.stderr
        ended = _podman("wait", f"{name}-seatrial")
        output = _podman("logs", f"{name}-seatrial").stdout
        seen = "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}} {{.EffectiveCaps}}"
        assert ended.stdout.strip() == "0", output
        assert "FINAL ACCEPTANCE: PASS" in output
        assert _podman("inspect", f"{name}-seatrial", "--format", seen).stdout.split() == ["10001:10001", "true", "[]"]
    finally:
        _podman("kube", "down", str(file))
