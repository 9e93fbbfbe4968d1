"""Workloads as the command makes them, with a double of the bundle, and cases that cover the options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from seatrial.targets.kubernetes.manifest.render import manifest
from seatrial.targets.kubernetes.manifest.workload import Claim, Object, Patch, Toleration, Workload

_TWO_BY_EIGHT = Workload(
    run="trial-1",
    namespace=None,
    image="registry.example.com/ml/train:2.13",
    nodes=2,
    nproc_per_node=8,
    arguments=("run", "quick", "--device", "cuda", "--nproc-per-node", "8"),
    token="not-a-real-token",
    bundle=b"a double of the bundle\n",
    gpu_resource="nvidia.com/gpu",
    gpus_per_node=8,
    tolerations=(Toleration(key="nvidia.com/gpu"),),
    deadline_s=600.0,
)


def workload(**changes: Any) -> Workload:
    """Two nodes of eight devices, but for the changes."""
    return dataclasses.replace(_TWO_BY_EIGHT, **changes)


def _everything() -> Workload:
    return workload(
        namespace="ml",
        env={"NCCL_DEBUG": "INFO", "NOTE": "$(HOME) 'quoted' \"twice\" on 1e3"},
        resources={"cpu": "16", "memory": "64Gi", "rdma/hca_shared_devices_a": "1"},
        shm_size="16Gi",
        tolerations=(Toleration(key="gpu", value="true", effect="NoSchedule"), Toleration(key="nvidia.com/gpu")),
        node_selector={"launch": "Karpenter"},
        spread="required",
        host_network=True,
        claims=(Claim(name="data", path="/data"),),
        pull_secrets=("registry",),
        service_account="trainer",
        supplemental_groups=(5000,),
        ttl_s=3600,
        files={"plan.json": b'{"level":"quick"}'},
        patch=Patch(
            pod={"metadata": {"annotations": {"team": "ml"}}, "spec": {"priorityClassName": "high"}},
            container={"resources": {"limits": {"hugepages-2Mi": "1Gi"}, "requests": {"hugepages-2Mi": "1Gi"}}},
            workload={"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "gpu"}}},
        ),
    )


_CPU: dict[str, Any] = {
    "gpu_resource": None,
    "gpus_per_node": 0,
    "tolerations": (),
    "nproc_per_node": 2,
    "arguments": ("run", "smoke", "--device", "cpu", "--nproc-per-node", "2"),
}

_KEY: dict[str, Any] = {"ssh_key": "not-a-real-key\n"}

CASES: dict[str, tuple[str, Callable[[], Workload]]] = {
    "job": ("job", workload),
    "job-one-node": ("job", lambda: workload(nodes=1, nproc_per_node=4, gpus_per_node=4)),
    "job-cpu": ("job", lambda: workload(**_CPU)),
    "job-everything": ("job", _everything),
    "job-image-has-seatrial": ("job", lambda: workload(bundle=None)),
    "job-arbitrary-uid": ("job", lambda: workload(openshift="arbitrary-uid")),
    "jobset": ("jobset", lambda: workload(max_restarts=2)),
    "jobset-everything": ("jobset", _everything),
    "pytorchjob": ("pytorchjob", workload),
    "pytorchjob-one-node": ("pytorchjob", lambda: workload(nodes=1)),
    "pytorchjob-everything": ("pytorchjob", _everything),
    "trainjob": ("trainjob", workload),
    "trainjob-mpi": ("trainjob", lambda: workload(**_KEY, kind_options={"runtime": "mpi"})),
    "trainjob-everything": ("trainjob", lambda: dataclasses.replace(_everything(), ttl_s=None)),
    "mpijob": ("mpijob", lambda: workload(**_KEY)),
    "mpijob-mpich": ("mpijob", lambda: workload(**_KEY, kind_options={"mpi": "mpich"})),
    "mpijob-intel": ("mpijob", lambda: workload(**_KEY, kind_options={"mpi": "intel"})),
    "mpijob-custom-scc": ("mpijob", lambda: workload(**_KEY, openshift="custom-scc", namespace="ml")),
    "mpijob-everything": ("mpijob", lambda: dataclasses.replace(_everything(), ttl_s=None, **_KEY)),
}
"""Name of the golden file -> kind and workload."""


def case(name: str) -> list[Object]:
    """The objects of that case."""
    kind, make = CASES[name]
    return manifest(kind, make())


def workload_object(objects: list[Object]) -> Object:
    """The Job, JobSet and so on among them."""
    return objects[-1]


def container_of(template: Object) -> Object:
    """The one container of a pod."""
    (container,) = template["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def templates(node: Any) -> Iterator[Object]:
    """Of pods, wherever they are in an object."""
    if isinstance(node, dict) and isinstance(node.get("spec"), dict) and "containers" in node["spec"]:
        yield node
    elif isinstance(node, dict | list):
        for part in node.values() if isinstance(node, dict) else node:
            yield from templates(part)
