"""The pod of a one-node Job, run in a container of our image: its user, its capabilities, its read-only root.

podman has no Secrets and no memory volumes in pods: these two are put in by hand.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import yaml
from images.containers import MARKS, image, podman
from kubernetes.workloads import container_of, templates, workload, workload_object

from seatrial.targets.kubernetes.manifest.render import manifest

pytestmark = MARKS


def _pod(name: str, **changes: Any) -> dict[str, Any]:
    made = workload(
        **{
            "run": name,
            "image": image("worker"),
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


def test_a_trial_passes_without_any_right(tmp_path: Path) -> None:
    name = f"t{uuid.uuid4().hex[:10]}"
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(_pod(name)))
    try:
        # The network that kube play makes has a DNS server, which outlives it.
        played = podman("kube", "play", "--network", "podman", str(file))
        assert played.code == 0, played.output
        ended = podman("wait", f"{name}-seatrial", timeout_s=50)
        output = podman("logs", f"{name}-seatrial").output
        seen = "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}} {{.EffectiveCaps}}"
        assert ended.output.strip() == "0", output
        assert "FINAL ACCEPTANCE: PASS" in output
        assert podman("inspect", f"{name}-seatrial", "--format", seen).output.split() == ["10001:10001", "true", "[]"]
    finally:
        podman("kube", "down", str(file))
