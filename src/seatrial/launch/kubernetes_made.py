"""The objects of one run in the cluster: made all together, owned by the workload, and deleted, whatever happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from seatrial.kubernetes.pods import PodSeen, pods_of
from seatrial.kubernetes.refusals import refusal
from seatrial.kubernetes.workload import Object
from seatrial.launch.kubectl import Kubectl
from seatrial.launch.kubernetes_access import as_list, resource_of

__all__ = ["Made", "selector_of"]

_DELETE_TRIES = 3
_GONE_S = 75.0
"""A pod may take the minute between SIGTERM and SIGKILL (``kubernetes/pod.py``), and the cluster some seconds more."""
_ENDED_GONE_S = 10.0
"""Pods that have ended hold nothing; who collects them may take its time."""
_LOOK_S = 1.0


def selector_of(run: str) -> str:
    """The labels of all that belongs to the run, as kubectl's ``-l`` takes them."""
    return f"app.kubernetes.io/name=seatrial,app.kubernetes.io/instance={run}"


class Made:
    """What was made of these objects; the workload is the last one."""

    def __init__(self, kubectl: Kubectl, target: str, objects: Sequence[Object]) -> None:
        self.workload = resource_of(objects[-1])
        self.run: str = objects[-1]["metadata"]["name"]
        self.since = ""
        """When the workload was made, as the cluster's clock has it."""
        self._kubectl, self._target, self._objects = kubectl, target, objects
        self._tried = False

    def apply(self) -> None:
        """Make them. Raises SeatrialError for what the cluster refuses; some may have been made by then."""
        self._tried = True
        answer = self._kubectl.ask("apply", "-f", "-", "-o", "json", feed=as_list(self._objects))
        if answer.code != 0:
            raise refusal(self._target, self._kubectl.namespace, answer.complaint)
        told = answer.json if isinstance(answer.json, dict) else {}
        made = told.get("items", [told])
        workload: Object = next((item["metadata"] for item in made if resource_of(item) == self.workload), {})
        uid, self.since = workload.get("uid"), workload.get("creationTimestamp", "")
        owner = self._objects[-1]
        owned = [thing for thing in self._objects[:-1] if thing["kind"] != "SecurityContextConstraints"]
        if uid is not None and owned:
            # Whoever deletes the workload deletes all. Where that may not be said, the names are deleted one by one.
            self._kubectl.ask("apply", "-f", "-", "-o", "name", feed=as_list([_owned(it, owner, uid) for it in owned]))

    def delete(self, *, patient: Callable[[], bool]) -> list[str]:
        """Delete them, and wait until no pod is left; returns what is still there and how to get rid of it.

        ``patient``: whether the user still is.
        """
        if not self._tried:
            return []
        # The workload first: what its pods need stays for as long as they do.
        resources = [resource_of(thing) for thing in reversed(self._objects)]
        for _ in range(_DELETE_TRIES):
            answer = self._kubectl.ask("delete", "--ignore-not-found", "--wait=false", *resources)
            if answer.code == 0:
                break
        else:
            return [f"what was made is still there ({answer.complaint}); type {self.by_hand()}"]
        began = time.monotonic()
        while True:
            pods = self.pods()
            after_s = time.monotonic() - began
            if pods is not None and (not pods or (after_s > _ENDED_GONE_S and not _living(pods))):
                return []
            if after_s > _GONE_S or not patient():
                left = ", ".join(pod.label for pod in _living(pods or ())[:4]) or "what was made"
                return [f"{left} may still be there, and was told to end; look with {self.look()}"]
            time.sleep(_LOOK_S)

    def pods(self) -> tuple[PodSeen, ...] | None:
        """Those of the run; None: nobody answers."""
        answer = self._kubectl.ask("get", "pods", "-l", selector_of(self.run), "-o", "json")
        return pods_of(answer.json) if answer.code == 0 else None

    def look(self) -> str:
        """For a person who wants to see them."""
        return self._kubectl.shown("get", f"{self.workload.partition('/')[0]},pods", "-l", selector_of(self.run))

    def by_hand(self) -> str:
        """For a person who is to delete them."""
        return self._kubectl.shown("delete", *(resource_of(thing) for thing in reversed(self._objects)))


def _owned(thing: Object, owner: Object, uid: str) -> Object:
    reference = {name: owner[name] for name in ("apiVersion", "kind")}
    references = [{**reference, "name": owner["metadata"]["name"], "uid": uid}]
    return {**thing, "metadata": {**thing["metadata"], "ownerReferences": references}}


def _living(pods: Sequence[PodSeen]) -> list[PodSeen]:
    return [pod for pod in pods if pod.state != "ended"]
