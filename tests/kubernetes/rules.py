"""Rules that no schema has: each one holds, and fails on a manifest with an error seen in the field."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubernetes.workloads import CASES, case, container_of, templates, workload_object

from seatrial.targets.kubernetes.manifest.workload import Object

Objects = list[Object]
OF = {kind: [name for name, (its, _) in CASES.items() if its == kind] for kind, _ in CASES.values()}
ALL = list(CASES)
MPI = [*OF["mpijob"], "trainjob-mpi"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    name: str
    cases: list[str]
    kept: Callable[[Objects], bool]
    spoil: Callable[[Objects], None]


def pods_of(objects: Objects) -> list[Object]:
    return [template for thing in objects for template in templates(thing)]


def pod_specs(objects: Objects) -> list[Object]:
    return [template["spec"] for template in pods_of(objects)]


def containers_of(objects: Objects) -> list[Object]:
    return [container_of(template) for template in pods_of(objects)]


def spec_of(objects: Objects) -> Object:
    spec = workload_object(objects)["spec"]
    assert isinstance(spec, dict)
    return spec


def env_of(container: Object) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def of_kind(objects: Objects, kind: str) -> list[Object]:
    return [thing for thing in objects if thing["kind"] == kind]


def node_pods(objects: Objects) -> list[Object]:
    """Pods that hold ranks."""
    return [pod for pod in pods_of(objects) if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "node"]


def replicas_of(objects: Objects) -> dict[str, Object]:
    spec = spec_of(objects)
    found = spec.get("pytorchReplicaSpecs") or spec["mpiReplicaSpecs"]
    assert isinstance(found, dict)
    return found


def set_to(path: str, value: Any) -> Callable[[Objects], None]:
    """Spoil: a field of the workload's spec."""

    def spoil(objects: Objects) -> None:
        node: Any = spec_of(objects)
        *parts, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in parts:
            node = node[part]
        node[last] = value

    return spoil


def each(where: Callable[[Objects], list[Object]], change: Callable[[Object], Any]) -> Callable[[Objects], None]:
    """Spoil: each pod, its spec or its container."""

    def spoil(objects: Objects) -> None:
        for thing in where(objects):
            change(thing)

    return spoil


def launcher_of(objects: Objects) -> Object:
    (found,) = (
        container_of(pod)
        for pod in pods_of(objects)
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "launcher"
    )
    return found


def policy_is_right(objects: Objects) -> bool:
    if any(spec.get("hostNetwork") for spec in pod_specs(objects)):
        return not of_kind(objects, "NetworkPolicy")
    (policy,) = of_kind(objects, "NetworkPolicy")
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    return all(chosen.items() <= pod["metadata"]["labels"].items() for pod in pods_of(objects)) and (
        policy["spec"]["ingress"] == [{"from": [{"podSelector": policy["spec"]["podSelector"]}]}]
    )


def service_finds_pods(objects: Objects) -> bool:
    job = workload_object(objects)
    spec = job["spec"]["template"]["spec"]
    (service,) = of_kind(objects, "Service")
    (container,) = containers_of(objects)
    return (
        spec["subdomain"] == service["metadata"]["name"]
        and service["spec"]["clusterIP"] == "None"
        and service["spec"]["publishNotReadyAddresses"] is True
        and service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
        and env_of(container)["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{spec['subdomain']}"
    )


def jobs_in(spec: Object) -> list[Object]:
    return [job["template"]["spec"] for job in spec["replicatedJobs"]]


def runtime_of(objects: Objects) -> Object:
    (runtime,) = of_kind(objects, "TrainingRuntime")
    spec = runtime["spec"]
    assert isinstance(spec, dict)
    return spec


def jobset_of(objects: Objects) -> Object:
    return runtime_of(objects)["template"]["spec"] if of_kind(objects, "TrainingRuntime") else spec_of(objects)


def begin_of(container: Object) -> int:
    """Where the command of a container begins, after the program that compares its files; 0 where there is none."""
    command = container["command"]
    return 7 if command[:2] == ["python3", "-c"] and "hashlib.sha256" in command[2] else 0


def program_of(container: Object) -> list[str]:
    return list(container["command"][begin_of(container) :])


def shells_of(objects: Objects) -> list[str]:
    commands = [program_of(container) for container in containers_of(objects)]
    return [command[2] for command in commands if command[:2] == ["/bin/sh", "-c"]]


def sshd_config(objects: Objects) -> str:
    (code,) = of_kind(objects, "ConfigMap")
    return str(code["data"]["sshd_config"])


def spoil_sshd(objects: Objects) -> None:
    (code,) = of_kind(objects, "ConfigMap")
    code["data"]["sshd_config"] = sshd_config(objects).replace("Port 2222", "Port 22")


def drop(name: str) -> Callable[[Object], None]:
    def change(container: Object) -> None:
        container["env"] = [entry for entry in container["env"] if entry["name"] != name]

    return change


def written(container: Object) -> set[str]:
    return {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}


def see(rule: Rule) -> None:
    """The rule is kept in each of its cases, and not where they are spoilt."""
    assert rule.cases
    for name in rule.cases:
        objects = copy.deepcopy(case(name))
        assert rule.kept(objects), name
        rule.spoil(objects)
        assert not rule.kept(objects), name
