"""Requests that are refused, each by one sentence that names the option."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.workloads import container_of, templates, workload

from seatrial.errors import RequestError
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.kinds.trainjob import PATCHES
from seatrial.targets.kubernetes.manifest import parse
from seatrial.targets.kubernetes.manifest.render import manifest, merged
from seatrial.targets.kubernetes.manifest.validation import validate_workload
from seatrial.targets.kubernetes.manifest.workload import Object, Patch, Toleration

_PATCHES = {version: Patch(workload={"spec": {field: []}}) for version, field in PATCHES.items()}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "Trial"}, "--name 'Trial'"),
        ({"run": "1st"}, "--name"),
        ({"run": "trial-"}, "--name"),
        ({"run": "a.b"}, "--name"),
        ({"run": "x\n"}, "--name"),
        ({"run": ""}, "--name"),
        ({"namespace": "My_Space"}, "--namespace"),
        ({"image": "image with spaces"}, "--image"),
        ({"image": ""}, "--image"),
        ({"nodes": 0}, "--nodes 0"),
        ({"nodes": -1}, "--nodes -1"),
        ({"nproc_per_node": 0}, "--nproc-per-node 0"),
        ({"nproc_per_node": 9}, "--gpus-per-node is only 8"),
        ({"gpus_per_node": 0}, "--gpu-resource none"),
        ({"gpu_resource": None}, "--gpu-resource none: leave one of them out"),
        ({"ttl_s": -1}, "--ttl -1"),
        ({"shm_size": "-1Gi"}, "--shm-size"),
        ({"shm_size": "64Gi", "resources": {"memory": "64Gi"}}, "counts against --memory"),
        ({"openshift": "custom-scc"}, "requires --namespace"),
        ({"openshift": "custom-scc", "namespace": "ml", "service_account": "me"}, "--service-account me"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_refuses_it(kind: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        validate_workload(kind, workload(**changes))


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("pytorchjob", {"host_network": True}, "--spread required, let pods share nodes with --on job or --on jobset,"),
        ("mpijob", {"host_network": True, "spread": "none"}, "--spread required"),
        ("trainjob", {"host_network": True}, "--spread required"),
        ("job", {"max_restarts": 1}, "use --on jobset"),
        ("pytorchjob", {"max_restarts": 1}, "use --on jobset"),
        ("trainjob", {"ttl_s": 60}, "--ttl"),
        ("mpijob", {"ttl_s": 60}, "--ttl 60: mpi-operator deletes only the launcher"),
        ("trainjob", {"kind_options": {"mpirun": "/opt/mpi/bin/mpirun"}}, "add --runtime mpi"),
        ("trainjob", {"patch": _PATCHES["2.0"]}, r"spec.podSpecOverrides .* Trainer 2.0, .* has spec.runtimePatches"),
        (
            "trainjob",
            {"patch": _PATCHES["2.2+"], "kind_options": {"trainer_version": "2.1"}},
            "2.1, which has spec.podTemplateOverrides",
        ),
        ("mpijob", {"openshift": "arbitrary-uid"}, "/etc/passwd"),
        ("trainjob", {"openshift": "arbitrary-uid", "kind_options": {"runtime": "mpi"}}, "/etc/passwd"),
    ],
)
def test_one_kind_refuses_it(kind: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        validate_workload(kind, workload(**changes))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("job", {"host_network": True}),
        ("jobset", {"max_restarts": 3}),
        ("pytorchjob", {"host_network": True, "spread": "required"}),
        ("pytorchjob", {"host_network": True, "nodes": 1}),
        ("trainjob", {"openshift": "arbitrary-uid"}),
        *(
            ("trainjob", {"patch": patch, "kind_options": {"trainer_version": version}})
            for version, patch in _PATCHES.items()
        ),
        ("mpijob", {"openshift": "custom-scc", "namespace": "ml"}),
        ("mpijob", {"kind_options": {"mpi": "intel"}}),
        ("job", {"gpu_resource": None, "gpus_per_node": 0}),
    ],
)
def test_one_kind_accepts_it(kind: str, changes: dict[str, Any]) -> None:
    validate_workload(kind, workload(**changes))


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_name_of_a_pod_is_the_limit(kind: str) -> None:
    longest = KINDS[kind].longest_name(workload(run="x", nodes=100))
    length = 63 - len(longest) + 1
    validate_workload(kind, workload(run="x" * length, nodes=100))
    with pytest.raises(RequestError, match="64 characters; the limit is 63"):
        validate_workload(kind, workload(run="x" * (length + 1), nodes=100))


def bomb(level: str, levels: int = 9) -> str:
    """Return a patch that is small, and large with its aliases written out."""
    lines = ["pod:", "  a0: &a0 {x: 1}"]
    for number in range(levels):
        alias = f"*a{number}"
        nine = alias if "k0" in level else ", ".join([alias] * 9)
        lines.append(f"  a{number + 1}: &a{number + 1} {level.format(nine)}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("call", "text", "words"),
    [
        (parse.gpu_resource, "intel.com/gpu", "--gpu-resource"),
        (parse.gpu_resource, "gpu", "--gpu-resource"),
        (parse.gpu_resource, "nvidia.com/", "--gpu-resource"),
        (lambda text: parse.tolerations([text]), "gpu=true:Never", "--toleration"),
        (lambda text: parse.tolerations([text]), "=x", "--toleration"),
        (lambda text: parse.selector([text], "--node-selector"), "launch", "--node-selector 'launch'"),
        (lambda text: parse.selector([text], "--all-nodes"), "a=1,a=2", "cannot be both 1 and 2"),
        (lambda text: parse.claims([text]), "data", "--pvc"),
        (lambda text: parse.claims([text]), "data:relative", "--pvc"),
        (lambda text: parse.claims([text]), "data:/a/../b", "--pvc"),
        (lambda text: parse.claims([text]), "data:/dev/shm", "is already in use"),
        (lambda text: parse.claims([text]), "data:/home", "/home/seatrial is already in use"),
        (lambda text: parse.claims([text]), "data:/opt/seatrial/x", "is already in use"),
        (lambda text: parse.claims([text, "more:/data/in"]), "data:/data", "/data is already in use"),
        (lambda text: parse.rdma([text]), "rdma/hca=0", "--rdma"),
        (lambda text: parse.rdma([text]), "efa=1", "--rdma"),
        (lambda text: parse.quantity_bytes(text, "--memory"), "64GiB", "--memory '64GiB'"),
        (lambda text: parse.quantity_bytes(text, "--memory"), "0", "above 0"),
        (lambda text: parse.object_name(text, "--pull-secret"), "Regcred", "--pull-secret"),
        (lambda text: parse.group_ids([int(text)]), "0", "--supplemental-group 0"),
        (lambda text: parse.environment({text: "x"}), "HF_TOKEN", "put it into a Secret"),
        (lambda text: parse.environment({text: "x"}), "AWS_SECRET_ACCESS_KEY", "put it into a Secret"),
        (lambda text: parse.environment({text: "x"}), "db_password", "put it into a Secret"),
        (lambda text: parse.environment({text: "x"}), "PET_NNODES", "the launcher sets this variable"),
        (lambda text: parse.environment({text: "x"}), "OMPI_MCA_btl", "the launcher sets this variable"),
        (lambda text: parse.environment({text: "x"}), "RANK", "the launcher sets this variable"),
        (lambda text: parse.parse_patch(text.encode(), "p"), "- 1", "expected a mapping"),
        (lambda text: parse.parse_patch(text.encode(), "p"), "spec: {}", "unknown key 'spec'"),
        (lambda text: parse.parse_patch(text.encode(), "p"), "pod: 3", "pod is not a mapping"),
        (lambda text: parse.parse_patch(text.encode(), "p"), "workload: {spec: 1}", "workload.spec is not a mapping"),
        (lambda text: parse.parse_patch(text.encode(), "p"), "pod: {spec: [x]}", "pod.spec is not a mapping"),
        (lambda text: parse.parse_patch(text.encode(), "p"), "pod: {a: [", "not YAML, line 1"),
        (lambda text: parse.parse_patch(text.encode(), "p"), "pod: !!python/object/apply:os.system [id]", "not YAML"),
        (lambda text: parse.parse_patch(text.encode(), "p"), "pod: {a: 2026-11-21}", "has no form in JSON"),
        (lambda text: parse.parse_patch(text.encode(), "p"), "pod: {1: a}", "is not a string"),
        (lambda text: parse.parse_patch(text.encode(), "p"), "pod: {a: .nan}", "has no form in JSON"),
        (lambda text: parse.parse_patch(text.encode(), "p"), "pod: &a {b: *a}", "nested too deeply"),
        (lambda text: parse.parse_patch(text.encode(), "p"), "pod: {a: !!bool maybe}", "p is not YAML: .*maybe"),
        (lambda text: parse.parse_patch(text.encode(), "p"), "pod: {a: !!timestamp now}", "p is not YAML: "),
        (
            lambda text: parse.parse_patch(text.encode(), "p"),
            "pod: {a: 1}\npod: {b: 2}",
            "line 2: the key pod is given",
        ),
        (lambda text: parse.read_patch(Path(text)), "/nowhere/patch.yaml", "cannot be read"),
    ],
)
def test_an_invalid_value_is_refused(call: Callable[[str], Any], text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        call(text)


def test_valid_values_are_accepted() -> None:
    assert parse.gpu_resource("none") is None
    assert parse.gpu_resource("nvidia.com/mig-1g.10gb") == "nvidia.com/mig-1g.10gb"
    assert parse.tolerations(["a", "b=c", "d:NoExecute", "e=f:NoSchedule", "g="]) == (
        Toleration(key="a"),
        Toleration(key="b", value="c"),
        Toleration(key="d", effect="NoExecute"),
        Toleration(key="e", value="f", effect="NoSchedule"),
        Toleration(key="g", value=""),
    )
    assert parse.selector(["a=b", "c==d,e=f"], "--node-selector") == {"a": "b", "c": "d", "e": "f"}
    assert parse.quantity_bytes("500m", "--cpu") * 2 == 1
    assert parse.quantity_bytes("1.5Gi", "--memory") == 3 << 29
    assert [claim.path for claim in parse.claims(["a:/data", "b:/home/seatrial/reports"])] == [
        "/data",
        "/home/seatrial/reports",
    ]
    assert parse.environment({"NCCL_DEBUG": "INFO", "TOKENIZERS_PARALLELISM": "false", "MONKEY": "1", "KEYBOARD": "2"})


@pytest.mark.parametrize(
    ("patch", "labels"),
    [
        ({}, {"a": "1", "b": {"c": "2"}}),
        ({"a": "3"}, {"a": "3", "b": {"c": "2"}}),
        ({"a": None}, {"b": {"c": "2"}}),
        ({"b": {"d": "4"}}, {"a": "1", "b": {"c": "2", "d": "4"}}),
        ({"b": ["x"]}, {"a": "1", "b": ["x"]}),
        ({"new": {"e": {"f": None}}}, {"a": "1", "b": {"c": "2"}, "new": {"e": {}}}),
    ],
)
def test_a_patch_is_a_json_merge_patch(patch: Object, labels: Object) -> None:
    assert merged({"a": "1", "b": {"c": "2"}}, patch) == labels


@given(st.text(max_size=40))
def test_no_patch_ends_in_a_traceback(text: str) -> None:
    with contextlib.suppress(RequestError):
        parse.parse_patch(text.encode(errors="replace"), "p")


@pytest.mark.parametrize("kind", KINDS)
def test_kubernetes_expands_no_text_of_the_user(kind: str) -> None:
    tricky = "$(HOME) $$ ${HOME} `id` \"'"
    objects = manifest(kind, workload(env={"NOTE": tricky}, arguments=("train", tricky)))
    containers = [container_of(pod) for thing in objects for pod in templates(thing)]
    words = [word for container in containers for word in container["command"]]
    values = [entry.get("value") for container in containers for entry in container["env"]]
    assert tricky.replace("$", "$$") in words
    assert tricky.replace("$", "$$") in values
    assert tricky not in [*words, *values]


def test_a_patch_may_have_aliases() -> None:
    patch = parse.parse_patch(b"pod: &a {x: 1}\ncontainer: {y: *a, z: {<<: *a, w: 2}}", "p")
    assert patch.container == {"y": {"x": 1}, "z": {"x": 1, "w": 2}}


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (bomb("[{}]"), "more than 100,000 values; leave aliases out"),
        (bomb("{{k0: {0}, k1: {0}, k2: {0}}}", 12), "more than 100,000 values"),
        (bomb("{{<<: [{}]}}"), "more than 100,000 values"),
        ("pod: {a: " + ":".join(["1"] * 100_000) + "}", "a number has 199999 characters; put it in quotes"),
        ("pod: {a: " + "[" * 50_000, "is not YAML"),
        ("pod: &a {b: [*a, *a]}", "nested too deeply"),
    ],
    ids=["lists", "mappings", "merges", "number", "depth", "itself"],
)
def test_a_bomb_is_refused_at_once(patch: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        parse.parse_patch(patch.encode(), "p")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "patch",
    [
        "workload: {kind: Pod}",
        "workload: {metadata: {name: other}}",
        "workload: {metadata: {namespace: kube-system}}",
        "workload: {metadata: {labels: {app.kubernetes.io/instance: other}}}",
        "workload: {metadata: null}",
        "workload: {metadata: {annotations: [1]}}",
        "workload: 3",
        "pod: {metadata: {labels: {app.kubernetes.io/instance: other}}}",
        "pod: {metadata: {labels: null}}",
    ],
)
def test_a_patch_moves_nothing_out_of_our_sight(kind: str, patch: str) -> None:
    """The run is found, protected by a policy and deleted by these."""
    with pytest.raises(RequestError, match=r"--patch"):
        manifest(kind, workload(patch=parse.parse_patch(patch.encode(), "p")))


_OTHER = "metadata: {labels: {app.kubernetes.io/instance: other}}"


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("job", f"workload: {{spec: {{template: {{{_OTHER}}}}}}}"),
        ("job", "workload: {spec: {template: {metadata: {labels: null}}}}"),
        ("job", "workload: {spec: null}"),
        ("jobset", "workload: {spec: {replicatedJobs: []}}"),
        ("mpijob", f"workload: {{spec: {{mpiReplicaSpecs: {{Worker: {{template: {{{_OTHER}}}}}}}}}}}"),
        ("pytorchjob", f"workload: {{spec: {{pytorchReplicaSpecs: {{Master: {{template: {{{_OTHER}}}}}}}}}}}"),
        ("trainjob", "runtime: {spec: {template: {spec: {replicatedJobs: [{name: node}]}}}}"),
    ],
)
def test_a_patch_of_an_object_moves_none_of_its_pods_out_of_our_sight(kind: str, patch: str) -> None:
    with pytest.raises(RequestError, match=r"--patch"):
        manifest(kind, workload(patch=parse.parse_patch(patch.encode(), "p")))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["env", "arguments", "patch"])
def test_text_that_is_no_utf_8_is_refused(kind: str, where: str) -> None:
    values: dict[str, Any] = {
        "env": {"NOTE": "\udcff"},
        "arguments": ("train", "\udcff"),
        "patch": parse.parse_patch(b'pod: {spec: {"\\ud800": 1}}', "p"),
    }
    with pytest.raises(RequestError, match=r"no UTF-8 text"):
        manifest(kind, workload(**{where: values[where]}))
