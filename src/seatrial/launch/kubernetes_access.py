"""What is found out of the cluster before anything is made: whether it would take it, and how many nodes there are."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from seatrial.errors import RequestError, SeatrialError
from seatrial.kubernetes.refusals import refusal
from seatrial.kubernetes.trainjob import PATCHES
from seatrial.kubernetes.workload import Object
from seatrial.launch.kubectl import Answer, Kubectl

__all__ = ["as_list", "chosen_nodes", "resource_of", "see_that_it_may", "trainer_version"]

_MOST_NAMED = 4
_TRAINJOBS = "trainjobs.trainer.kubeflow.org"


def see_that_it_may(kubectl: Kubectl, target: str, objects: Sequence[Object]) -> None:
    """Have the cluster try the objects, the workload last, without making them.

    Raises RequestError for what it refuses and for rights that are missing, SeatrialError when it does not answer.
    """
    workload = objects[-1]
    # A TrainJob is refused as long as its runtime is only tried.
    tried = objects[:-1] if target == "trainjob" else objects
    answer = kubectl.ask("apply", "--dry-run=server", "-f", "-", "-o", "name", feed=as_list(tried))
    if answer.code != 0:
        raise refusal(target, kubectl.namespace, answer.complaint)
    resource = resource_of(workload)
    there = kubectl.ask("get", resource, "--ignore-not-found", "-o", "name")
    if there.code != 0:
        raise refusal(target, kubectl.namespace, there.complaint)
    if there.out.strip():
        raise RequestError(
            f"--name {workload['metadata']['name']}: {resource} is there already; delete it"
            f" ({kubectl.shown('delete', resource)}), or take another name."
        )
    plural = resource.partition("/")[0].replace(".", "s.", 1)
    needed = [("list", "pods"), ("get", "pods", "--subresource=log"), ("delete", plural)]
    asked = [kubectl.begin("auth", "can-i", *words) for words in needed]
    for words, answer in zip(needed, [each.wait() for each in asked], strict=True):
        _see_that_one_may(kubectl, target, words, answer)


def _see_that_one_may(kubectl: Kubectl, target: str, words: Sequence[str], answer: Answer) -> None:
    told = answer.out.strip().splitlines()[-1:] or [""]
    if answer.code == 0 and told[0].startswith("yes"):
        return
    if not told[0].startswith("no"):
        raise refusal(target, kubectl.namespace, answer.complaint)
    what = f"{words[0]} {words[1]}" + ("/log" if len(words) > 2 else "")
    raise RequestError(
        f"you may not {what} in {kubectl.namespace or 'the namespace of your context'}, which --on {target} needs to"
        " follow the run and to clean up; ask for the right, or add --dry-run and apply what is printed."
    )


def chosen_nodes(kubectl: Kubectl, selector: str, least: int | None) -> tuple[int, tuple[str, ...]]:
    """How many nodes with these labels can take a pod, and those that cannot, each with the reason.

    Raises RequestError when there are none, or some cannot and fewer than ``least`` can (None: all must).
    """
    told = kubectl.json("get", "nodes", "-l", selector)
    items = told.get("items") if isinstance(told, dict) else None
    if not isinstance(items, list):
        raise SeatrialError(f"{kubectl.shown('get', 'nodes', '-l', selector)}: its answer is no list of nodes.")
    states = {str(item.get("metadata", {}).get("name")): _unfit(item) for item in items if isinstance(item, dict)}
    unfit = tuple(f"{name}: {why}" for name, why in sorted(states.items()) if why)
    fit = len(states) - len(unfit)
    if not states:
        raise RequestError(f"--all-nodes {selector}: no node of the cluster has these labels.")
    if unfit and (least is None or fit < least):
        named = ", ".join(unfit[:_MOST_NAMED]) + ("" if len(unfit) <= _MOST_NAMED else ", ...")
        least_words = f"--min-hosts {least} asks for more" if least else f"go on without: --min-hosts {fit}"
        raise RequestError(
            f"--all-nodes {selector}: {len(unfit)} of {len(states)} nodes can take no pod ({named}); {least_words}."
        )
    return fit, unfit


def _unfit(item: dict[str, Any]) -> str:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    if spec.get("unschedulable"):
        return "it is cordoned"
    ready = [entry.get("status") for entry in status.get("conditions") or () if entry.get("type") == "Ready"]
    return "it is not ready" if ready and ready[0] != "True" else ""


def trainer_version(kubectl: Kubectl) -> str:
    """Which release of Kubeflow Trainer the cluster has, by the fields of its TrainJob. Raises RequestError."""
    answer = kubectl.ask("get", "customresourcedefinition", _TRAINJOBS, "-o", "json")
    known: list[Any] = []
    with contextlib.suppress(LookupError, TypeError):
        for version in answer.json["spec"]["versions"]:
            known += version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for release, field in reversed(tuple(PATCHES.items())):
        if field in known:
            return release
    why = answer.complaint if answer.code != 0 else "its TrainJob has no patches that we know"
    raise RequestError(f"--patch: which Kubeflow Trainer this is cannot be read ({why}); say --trainer-version.")


def resource_of(thing: Object) -> str:
    """As kubectl names one object: ``job.batch/NAME``."""
    group = thing["apiVersion"].rpartition("/")[0]
    return f"{thing['kind'].lower()}{group and f'.{group}'}/{thing['metadata']['name']}"


def as_list(objects: Sequence[Object]) -> bytes:
    """The objects as one document."""
    import json

    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}).encode()
