"""Questions to the cluster before anything is created: whether it accepts the objects, and which nodes it has."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seatrial.errors import PermissionDeniedError, RequestError, SeatrialError
from seatrial.targets.kubernetes.api_json import get, items_of, text
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.kubectl import CallResult, Kubectl
from seatrial.targets.kubernetes.manifest.workload import Object
from seatrial.targets.kubernetes.refusals import refusal

_MAX_NAMED = 4
_LEVELS = ("privileged", "baseline", "restricted")
"""The levels of Pod Security, the strictest last."""
_ENFORCE = "pod-security.kubernetes.io/enforce"


def require_permission(kubectl: Kubectl, target: str, objects: Sequence[Object]) -> None:
    """Have the cluster validate the objects, the workload last, without creating them.

    Raises RequestError for a refusal and for a missing permission, SeatrialError when the cluster does not answer.
    """
    workload = objects[-1]
    # A dry run creates no objects, so a workload that needs them first would be refused.
    validated = objects[:-1] if KINDS[target].needs_objects_first else objects
    result = kubectl.call("create", "--dry-run=server", "-f", "-", "-o", "name", stdin_bytes=list_document(validated))
    resource = resource_name(workload)
    existing = kubectl.call("get", *map(resource_name, reversed(objects)), "--ignore-not-found", "-o", "name")
    if existing.code == 0 and (taken := existing.out.split()):
        _refuse_taken(kubectl, workload["metadata"]["name"], taken, resource)
    for answer in (result, existing):
        if answer.code != 0:
            raise refusal(target, kubectl, answer)
    _require_admission(kubectl, target, result)
    plural = resource.partition("/")[0].replace(".", "s.", 1)
    needed = [("list", "pods"), ("get", "pods", "--subresource=log"), ("delete", plural)]
    calls = [kubectl.start("auth", "can-i", *words) for words in needed]
    for words, result in zip(needed, [call.wait() for call in calls], strict=True):
        _require_allowed(kubectl, target, words, result)


def _refuse_taken(kubectl: Kubectl, name: str, taken: Sequence[str], workload: str) -> None:
    """Raise RequestError for names that are in use. Only an earlier workload is the user's to delete by our advice."""
    advice = ""
    if workload in taken:
        advice = f"delete it ({kubectl.command_line('delete', workload)}) if it is an earlier run, or "
    first = workload if workload in taken else taken[0]
    more = f" (and {len(taken) - 1} more objects)" if len(taken) > 1 else ""
    raise RequestError(f"--name {name}: {first} already exists{more}; {advice}choose another name.")


def _require_admission(kubectl: Kubectl, target: str, result: CallResult) -> None:
    """Raise RequestError if Pod Security will refuse the pods, as far as a dry run says so.

    It warns of a Job by the level ``warn`` of the namespace, which may be stricter than the level that it enforces.
    """
    for warning in result.warnings:
        violated = re.search(r'would violate PodSecurity "(baseline|restricted)', warning)
        if violated and _LEVELS.index(_enforced_level(kubectl)) >= _LEVELS.index(violated[1]):
            raise refusal(target, kubectl, replace(result, err=warning))


def _enforced_level(kubectl: Kubectl) -> str:
    """Return the level of Pod Security that the namespace enforces; the strictest if it cannot be read."""
    if kubectl.namespace is None:
        return _LEVELS[-1]
    result = kubectl.call("get", "namespace", kubectl.namespace, "-o", "json")
    labels = next((thing["metadata"].get("labels") for thing in result.documents), None)
    level = labels.get(_ENFORCE) if isinstance(labels, dict) else None
    return level if level in _LEVELS else _LEVELS[-1]


def _require_allowed(kubectl: Kubectl, target: str, words: Sequence[str], result: CallResult) -> None:
    answer = (result.out.strip().splitlines() or [""])[-1]
    if result.code == 0 and answer.startswith("yes"):
        return
    if not answer.startswith("no"):
        raise refusal(target, kubectl, result)
    what = f"{words[0]} {words[1]}" + ("/log" if len(words) > 2 else "")
    raise PermissionDeniedError(
        f"you may not {what} in {kubectl.namespace or 'the namespace of your context'}, which --on {target} needs to"
        " follow the run and to clean up; request the permission, or add --dry-run and apply the printed manifests."
    )


def chosen_nodes(kubectl: Kubectl, selector: str, least: int | None) -> tuple[int, tuple[str, ...]]:
    """Return the number of nodes with these labels that accept pods, and the others, each with its reason.

    ``least``: how many nodes must accept pods; None: all. Raises RequestError when there are fewer, or none at all.
    """
    answer = kubectl.call("get", "nodes", "-l", selector, "-o", "json")
    if answer.code != 0 and "forbidden" in answer.complaint.lower():
        raise PermissionDeniedError(
            f"--all-nodes {selector}: you may not list nodes ({answer.complaint}); request the permission, or give the"
            " number with --nodes."
        )
    document = answer.json if answer.code == 0 else kubectl.json("get", "nodes", "-l", selector)
    items = get(document, "items")
    if not isinstance(items, list):
        raise SeatrialError(f"{kubectl.command_line('get', 'nodes', '-l', selector)} did not print a list of nodes.")
    states = {name: _unfit(item) for item in items if (name := text(item, "metadata", "name"))}
    unfit = tuple(f"{name}: {why}" for name, why in sorted(states.items()) if why)
    fit = len(states) - len(unfit)
    if not states:
        raise RequestError(f"--all-nodes {selector}: no node of the cluster has these labels.")
    if unfit and (least is None or fit < least):
        named = ", ".join(unfit[:_MAX_NAMED]) + ("" if len(unfit) <= _MAX_NAMED else ", ...")
        advice = f"--min-hosts {least} asks for more" if least else f"to leave them out, add --min-hosts {fit}"
        raise RequestError(
            f"--all-nodes {selector}: {len(unfit)} of {len(states)} nodes accept no pods ({named}); {advice}."
        )
    return fit, unfit


def _unfit(item: Any) -> str:
    if get(item, "spec", "unschedulable"):
        return "it is cordoned"
    ready = [
        text(entry, "status") for entry in items_of(item, "status", "conditions") if text(entry, "type") == "Ready"
    ]
    return "it is not ready" if ready and ready[0] != "True" else ""


def spec_fields(kubectl: Kubectl, definition: str) -> tuple[list[str], str]:
    """Return the fields in the spec of a custom resource, and the complaint of kubectl if it cannot be read.

    ``definition``: name of its CustomResourceDefinition.
    """
    result = kubectl.call("get", "customresourcedefinition", definition, "-o", "json")
    known: list[str] = []
    with contextlib.suppress(LookupError, TypeError):
        for version in result.json["spec"]["versions"]:
            known += version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return known, result.complaint if result.code != 0 else ""


def resource_name(thing: Object) -> str:
    """Return the name that kubectl gives to an object: ``job.batch/NAME``."""
    group = thing["apiVersion"].rpartition("/")[0]
    return f"{thing['kind'].lower()}{group and f'.{group}'}/{thing['metadata']['name']}"


def list_document(objects: Sequence[Object]) -> bytes:
    """Return the objects as one JSON document."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}).encode()
