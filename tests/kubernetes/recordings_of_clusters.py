"""What a real Kubernetes and the real operators did with our manifests: objects, states and events with their second.

Recorded on 2026-11-22: Kubernetes 1.34.4, containerd 1.6.20, CoreDNS 1.14.7, JobSet 0.12.0, Trainer 2.3.0, mpi-operator
0.8.0, training-operator 1.9.4 and 1.9.3. The recordings are not part of this project: SEATRIAL_TEST_RECORDINGS names
their folder, or they lie beside the project.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest

_BESIDE = Path(__file__).parents[3] / "shared" / "samples" / "kubernetes"
_AT = "2026-11-22T12:{:02d}:{:02d}Z"


@functools.cache
def recording(name: str) -> Any:
    """Skips the test where the recording is not there."""
    file = Path(os.environ.get("SEATRIAL_TEST_RECORDINGS", _BESIDE)) / f"{name}.json"
    if not file.is_file():
        pytest.skip(f"no recording of a real cluster: {file.name} (SEATRIAL_TEST_RECORDINGS names another folder)")
    return json.loads(file.read_text())


def objects(name: str, kind: str) -> list[Any]:
    """Return the objects of one kind as they were first seen."""
    return [thing for thing in recording(name)["objects_when_first_seen"] if thing["kind"] == kind]


def pods_at(name: str, at_s: float) -> dict[str, Any]:
    """Return what ``kubectl get pods -o json`` answered at this second."""
    nodes = {
        event["of"].removeprefix("Pod/"): event["message"].rsplit(" ", 1)[-1]
        for event in recording(name)["events"]
        if event["reason"] == "Scheduled" and event["at_s"] <= at_s
    }
    known: dict[str, Any] = {}
    for state in recording(name)["states"]:
        if state["kind"] != "pods" or state["at_s"] > at_s:
            continue
        if state["event"] == "DELETED":
            known.pop(state["name"], None)
            continue
        thing = next((pod for pod in objects(name, "Pod") if pod["metadata"]["name"] == state["name"]), None)
        if thing is not None:
            deletion = {"deletionTimestamp": state["deletion"]} if state["deletion"] else {}
            spec = {**thing["spec"], "nodeName": nodes.get(state["name"], "")}
            metadata = {**thing["metadata"], **deletion}
            known[state["name"]] = {**thing, "metadata": metadata, "spec": spec, "status": state["status"]}
    return {"items": list(known.values())}


def warnings_at(name: str, at_s: float) -> dict[str, Any]:
    """Return what ``kubectl get events --field-selector type=Warning -o json`` answered at this second."""
    items = []
    for event in recording(name)["events"]:
        if event["type"] == "Warning" and event["at_s"] <= at_s:
            kind, _, of = event["of"].partition("/")
            minute, second = divmod(int(event["at_s"]), 60)
            items.append(
                {
                    "involvedObject": {"kind": kind, "name": of},
                    "reason": event["reason"],
                    "message": event["message"],
                    "lastTimestamp": _AT.format(minute, second),
                }
            )
    return {"items": items}


def workload_at(name: str, kind: str, at_s: float) -> dict[str, Any]:
    """Return the spec.suspend and the status of a workload at this second. ``kind``: plural, as in ``jobs``."""
    found: dict[str, Any] = {}
    for state in recording(name)["states"]:
        if state["kind"] == kind and state["at_s"] <= at_s:
            found = {"spec": {"suspend": state["spec.suspend"]}, "status": state["status"]}
    return found
