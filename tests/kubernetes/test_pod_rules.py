"""Rules for the pods and objects of every kind."""

from __future__ import annotations

import json

import pytest
from kubernetes.rules import (
    ALL,
    OF,
    Objects,
    Rule,
    containers_of,
    each,
    env_of,
    of_kind,
    pod_specs,
    pods_of,
    policy_is_right,
    see,
    written,
)
from kubernetes.workloads import container_of

from seatrial.targets.kubernetes.manifest.workload import Object

_RULES = [
    Rule(
        name="a pod that has ended is not started again",
        cases=[*OF["job"], *OF["jobset"], *OF["trainjob"]],
        kept=lambda objects: {spec["restartPolicy"] for spec in pod_specs(objects)} == {"Never"},
        spoil=each(pod_specs, lambda spec: spec.update(restartPolicy="OnFailure")),
    ),
    Rule(
        name="shared memory is not the 64 MiB that a container gets",
        cases=ALL,
        kept=lambda objects: all(
            {"name": "shm", "mountPath": "/dev/shm"} in container_of(pod)["volumeMounts"]
            and any(volume.get("emptyDir", {}).get("medium") == "Memory" for volume in pod["spec"]["volumes"])
            for pod in pods_of(objects)
        ),
        spoil=each(pod_specs, lambda spec: spec.update(volumes=spec["volumes"][:2])),
    ),
    Rule(
        name="a toleration without a value has operator Exists",
        cases=["job", "jobset", "pytorchjob", "trainjob", "mpijob"],
        kept=lambda objects: all(
            toleration["operator"] == ("Equal" if "value" in toleration else "Exists")
            for spec in pod_specs(objects)
            for toleration in spec["tolerations"]
        ),
        spoil=each(pod_specs, lambda spec: spec["tolerations"][0].update(operator="Equal")),
    ),
    Rule(
        name="no proxy of a service mesh stands between ranks",
        cases=ALL,
        kept=lambda objects: all(
            pod["metadata"][part]["sidecar.istio.io/inject"] == "false"
            and pod["metadata"]["labels"]["istio.io/dataplane-mode"] == "none"
            and pod["metadata"]["annotations"].get("linkerd.io/inject") == "disabled"
            for pod in pods_of(objects)
            for part in ("labels", "annotations")
        ),
        spoil=each(pods_of, lambda pod: pod["metadata"].update(annotations={"sidecar.istio.io/inject": "true"})),
    ),
    Rule(
        name="no group of the files of a claim is changed at each mount",
        cases=[name for name in ALL if not name.endswith("arbitrary-uid")],
        kept=lambda objects: all(
            spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch" for spec in pod_specs(objects)
        ),
        spoil=each(
            pod_specs,
            lambda spec: (
                spec["securityContext"].pop("fsGroupChangePolicy")
                and spec.update(securityContext={**spec["securityContext"], "fsGroupChangePolicy": "Always"})
            ),
        ),
    ),
    Rule(
        name="no Service of the namespace sets MASTER_PORT",
        cases=ALL,
        kept=lambda objects: all(spec["enableServiceLinks"] is False for spec in pod_specs(objects)),
        spoil=each(pod_specs, lambda spec: spec.pop("enableServiceLinks") or spec.update(enableServiceLinks=None)),
    ),
    Rule(
        name="no root, no capability, no escalation, nothing written but what is made for it, no token of the API",
        cases=ALL,
        kept=lambda objects: all(
            spec["securityContext"]["runAsNonRoot"]
            and spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            and spec["automountServiceAccountToken"] is False
            and spec["containers"][0]["securityContext"]
            == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            for spec in pod_specs(objects)
        ),
        spoil=each(containers_of, lambda container: container["securityContext"].pop("capabilities")),
    ),
    Rule(
        name="whatever is written to can be written to",
        cases=ALL,
        kept=lambda objects: all(
            {env_of(container)["HOME"], "/tmp", "/dev/shm", container["workingDir"]} <= written(container)
            and all(
                env_of(container)[name].startswith(f"{env_of(container)['HOME']}/")
                for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")
            )
            for container in containers_of(objects)
        ),
        spoil=each(containers_of, lambda container: container["volumeMounts"].pop(0)),
    ),
    Rule(
        name="the token is in a Secret alone, and so is the key of ssh",
        cases=ALL,
        kept=lambda objects: (
            [json.dumps(objects).count(f"not-a-real-{what}") for what in ("token", "key")]
            == [1, len(of_kind(objects, "Secret")[0]["stringData"]) - 1]
            and of_kind(objects, "Secret")[0]["stringData"]["token"] == "not-a-real-token"
        ),
        spoil=each(containers_of, lambda container: container["command"].append("--token=not-a-real-token")),
    ),
    Rule(
        name="every object and every pod bears the name of the run",
        cases=ALL,
        kept=lambda objects: (
            {thing["metadata"]["labels"]["app.kubernetes.io/instance"] for thing in [*objects, *pods_of(objects)]}
            == {"trial-1"}
        ),
        spoil=lambda objects: objects[0]["metadata"]["labels"].update({"app.kubernetes.io/instance": "trial"}),
    ),
    Rule(
        name="only pods of the run reach them",
        cases=ALL,
        kept=policy_is_right,
        spoil=lambda objects: _spoil_policy(objects),
    ),
    Rule(
        name="a trial has an end",
        cases=ALL,
        kept=lambda objects: all(spec.get("activeDeadlineSeconds", 0) > 600 for spec in pod_specs(objects)),
        spoil=each(pod_specs, lambda spec: spec.pop("activeDeadlineSeconds")),
    ),
    Rule(
        name="the bundle cannot change during a run",
        cases=["job", "jobset", "pytorchjob", "trainjob", "mpijob"],
        kept=lambda objects: (
            all(thing["immutable"] is True for thing in of_kind(objects, "ConfigMap") + of_kind(objects, "Secret"))
            and all(
                [thing["metadata"]["name"] for thing in of_kind(objects, "ConfigMap")] == maps_seen(spec)
                for spec in pod_specs(objects)
            )
        ),
        spoil=lambda objects: of_kind(objects, "ConfigMap")[0]["metadata"].update(name="trial-1"),
    ),
]


def maps_seen(spec: Object) -> list[str]:
    """The ConfigMaps that a pod sees, in the folder of the code."""
    (code,) = (volume for volume in spec["volumes"] if volume["name"] == "code")
    return [source["configMap"]["name"] for source in code["projected"]["sources"]]


def _spoil_policy(objects: Objects) -> None:
    for policy in of_kind(objects, "NetworkPolicy"):
        policy["spec"]["ingress"] = [{}]
    if not of_kind(objects, "NetworkPolicy"):
        for spec in pod_specs(objects):
            spec.pop("hostNetwork", None)
        objects.insert(0, {"kind": "NetworkPolicy", "spec": {"podSelector": {"matchLabels": {"a": "b"}}}})


@pytest.mark.parametrize("rule", _RULES, ids=lambda rule: rule.name)
def test_rule_is_kept_and_the_wrong_way_is_found(rule: Rule) -> None:
    see(rule)
