"""Answers of the double of kubectl, without a process and without a running pod."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes.double.api import Api
from kubernetes.double.arguments import RefusedError
from kubernetes.double.faults import FILE, Faults
from kubernetes.double.pods import World
from kubernetes.double.store import Store
from kubernetes.schemas import find_schemas
from kubernetes.workloads import workload

from seatrial.targets.kubernetes.manifest.render import manifest
from seatrial.targets.kubernetes.manifest.yaml_text import to_yaml

Kubectl = Callable[..., str]
"""Words -> standard output. Raises RefusedError."""


@pytest.fixture
def kubectl(tmp_path: Path) -> Kubectl:
    world = World(store=Store(), faults=Faults(tmp_path))
    world.store.add({"kind": "Namespace", "metadata": {"name": "default"}}, "")
    api = Api(world, tmp_path, threading.Lock(), "default")

    def call(*words: str, stdin: str = "") -> str:
        return "".join(text for stream, text in api.answer(words, stdin) if stream == "out")

    return call


def _plant(folder: Path, **fault: Any) -> None:
    (folder / FILE).write_text(json.dumps([fault]))


def _text(kind: str = "jobset", **changes: Any) -> str:
    return to_yaml(manifest(kind, workload(**changes)))


def test_applied_objects_exist_until_they_are_deleted(kubectl: Kubectl) -> None:
    said = kubectl("apply", "-f", "-", stdin=_text()).splitlines()
    assert said[0] == "secret/trial-1 created"
    assert said[-1] == "jobset.jobset.x-k8s.io/trial-1 created"
    jobset = json.loads(kubectl("get", "jobset", "trial-1", "-o", "json"))
    assert jobset["metadata"]["uid"]
    assert kubectl("apply", "-f", "-", stdin=_text()).splitlines()[0] == "secret/trial-1 unchanged"
    kubectl("delete", "jobset/trial-1", "--wait=false")
    with pytest.raises(RefusedError, match=r'\(NotFound\): jobsets.jobset.x-k8s.io "trial-1" not found'):
        kubectl("get", "jobset", "trial-1")
    assert kubectl("delete", "jobset/trial-1", "--ignore-not-found") == ""


def test_a_server_side_dry_run_makes_nothing(kubectl: Kubectl) -> None:
    said = kubectl("apply", "--dry-run=server", "-f", "-", "-o", "name", stdin=_text())
    assert said.splitlines()[-1] == "jobset.jobset.x-k8s.io/trial-1"
    assert json.loads(kubectl("get", "jobsets,secrets", "-o", "json"))["items"] == []


def test_owners_can_be_added_to_what_is_there(kubectl: Kubectl) -> None:
    objects = manifest("jobset", workload())
    made = json.loads(kubectl("apply", "-f", "-", "-o", "json", stdin=to_yaml(objects)))["items"]
    owner = {
        "apiVersion": made[-1]["apiVersion"],
        "kind": "JobSet",
        "name": "trial-1",
        "uid": made[-1]["metadata"]["uid"],
    }
    for thing in objects[:-1]:
        thing["metadata"]["ownerReferences"] = [owner]
    said = kubectl("apply", "-f", "-", stdin=to_yaml(objects[:-1])).splitlines()
    assert said[0] == "secret/trial-1 configured"
    secret = json.loads(kubectl("get", "secret", "trial-1", "-o", "json"))
    assert secret["metadata"]["ownerReferences"] == [owner]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            {"fault": "crd-absent", "kind": "JobSet"},
            'no matches for kind "JobSet" in version "jobset.x-k8s.io/v1alpha2"',
        ),
        (
            {"fault": "forbidden", "verb": "create", "resource": "jobsets"},
            r"\(Forbidden\): jobsets.jobset.x-k8s.io is forb",
        ),
        ({"fault": "namespace-absent", "namespace": "default"}, r'\(NotFound\): .*namespaces "default" not found'),
    ],
)
def test_planted_refusals(fault: dict[str, str], text: str, kubectl: Kubectl, tmp_path: Path) -> None:
    _plant(tmp_path, **fault)
    with pytest.raises(RefusedError, match=text):
        kubectl("apply", "--dry-run=server", "-f", "-", stdin=_text())


def test_a_namespace_must_be_created(kubectl: Kubectl) -> None:
    with pytest.raises(RefusedError, match='namespaces "ml" not found'):
        kubectl("--namespace", "ml", "apply", "-f", "-", stdin=_text(namespace="ml"))


@pytest.mark.skipif(find_schemas() is None, reason="the operators' schemas are not there")
def test_an_unknown_field_is_refused(kubectl: Kubectl) -> None:
    wrong = _text().replace("successPolicy", "sucessPolicy")
    with pytest.raises(RefusedError, match=r"strict decoding error.*sucessPolicy"):
        kubectl("apply", "-f", "-", stdin=wrong)


def test_a_trainjob_needs_its_runtime_first(kubectl: Kubectl) -> None:
    job = to_yaml(manifest("trainjob", workload())[-1:])
    with pytest.raises(RefusedError, match="denied the request"):
        kubectl("apply", "--dry-run=server", "-f", "-", stdin=job)
    # The webhook's cache does not know the runtime of the same call yet.
    with pytest.raises(RefusedError, match="must be created before"):
        kubectl("apply", "-f", "-", stdin=_text("trainjob"))
    time.sleep(0.4)
    assert "trainjob.trainer.kubeflow.org/trial-1 created" in kubectl("apply", "-f", "-", stdin=_text("trainjob"))


def test_one_can_ask_what_one_may(kubectl: Kubectl, tmp_path: Path) -> None:
    assert kubectl("auth", "can-i", "create", "jobs.batch") == "yes\n"
    _plant(tmp_path, fault="forbidden", verb="create", resource="jobs")
    with pytest.raises(RefusedError):
        kubectl("auth", "can-i", "create", "jobs.batch")
    assert kubectl("auth", "can-i", "get", "pods", "--subresource=log") == "yes\n"


@pytest.mark.parametrize("words", [("get", "pods", "--watch"), ("rollout", "status"), ("get", "pods", "-o", "yaml")])
def test_the_double_refuses_unknown_calls(words: tuple[str, ...], kubectl: Kubectl) -> None:
    with pytest.raises(RefusedError):
        kubectl(*words)


def test_a_list_by_its_path_is_that_of_the_api_server(kubectl: Kubectl) -> None:
    """kubectl prints a list of objects with their kinds, and without what it takes for noise."""
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a"}, "type": "Warning"}
    kubectl("apply", "-f", "-", stdin=to_yaml([event, {**event, "metadata": {"name": "b"}, "type": "Normal"}]))
    answer = json.loads(kubectl("get", "--raw", "/api/v1/namespaces/default/events?fieldSelector=type%3DWarning"))
    (item,) = answer["items"]
    assert answer["kind"] == "EventList"
    assert {"kind", "apiVersion"}.isdisjoint(item)
    assert item["metadata"]["managedFields"]
    with pytest.raises(RefusedError, match="could not find the requested resource"):
        kubectl("get", "--raw", "/api/v1/events")
    for query in ("", "?container=seatrial&sinceTime=2026"):
        with pytest.raises(RefusedError, match="BadRequest"):
            kubectl("get", "--raw", f"/api/v1/namespaces/default/pods/p/log{query}")
