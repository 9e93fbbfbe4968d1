"""The objects of one run in the cluster: created, owned by the workload, and deleted again; no others are touched."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from seatrial.errors import SeatrialError
from seatrial.targets.kubernetes.api_json import text
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.kubectl import Kubectl
from seatrial.targets.kubernetes.manifest.workload import Object
from seatrial.targets.kubernetes.permissions import list_document, resource_name
from seatrial.targets.kubernetes.pod_owners import PodOwners
from seatrial.targets.kubernetes.pods import PodStatus, pods_of, suspended
from seatrial.targets.kubernetes.refusals import is_not_yet_known, refusal

_ATTEMPT = "seatrial/attempt"
"""Annotation with a random text, by which objects are recognized although the answer to their creation was lost."""
_DELETE_ATTEMPTS = 3
_DELETED_S = 75.0
"""A pod may take the minute between SIGTERM and SIGKILL (``manifest/pod.py``), and the cluster some seconds more."""
_ENDED_DELETED_S = 10.0
"""Pods that have ended hold no resources, so their removal by the garbage collector needs no longer wait."""
_WAITING_DELETED_S = 5.0
"""Pods whose container never ran have nothing to end. Their kubelet may keep them for the whole grace all the same: an
init container that is a shell ignores SIGTERM, and a sandbox is tried to the end (61 to 76 s on a real cluster)."""
_MAX_CALLS = 16
"""Pods that are deleted at the same time. A kubectl takes some 50 MB of memory."""
_POLL_S = 1.0
_KNOWN_S = 30.0
"""The webhook of Trainer reads a cache that learned of a new TrainingRuntime after 300 ms on GKE (NVIDIA/aicr #1669);
this is a hundred times as long."""
_PULL_SECRET_S = 10.0
"""OpenShift gives a new account the pull secret of its registry within seconds, and none where it has no registry."""
_AWAITED = ("Secret", "ConfigMap")
"""The kinds of objects that are created last, in this order: no container starts before all of them exist, and so none
before the NetworkPolicy does. A run without a bundle has no ConfigMap."""
_ACCOUNT_KINDS = ("SecurityContextConstraints", "ServiceAccount", "Role", "RoleBinding")


def run_selector(run: str) -> str:
    """Return the labels of everything that belongs to the run, as kubectl's ``-l`` takes them."""
    return f"app.kubernetes.io/name=seatrial,app.kubernetes.io/instance={run}"


class AppliedObjects:
    """The objects of one attempt; the workload is the last one."""

    def __init__(self, kubectl: Kubectl, target: str, objects: Sequence[Object]) -> None:
        self.workload = resource_name(objects[-1])
        """Resource name of the workload, such as ``job.batch/NAME``."""
        self.run: str = objects[-1]["metadata"]["name"]
        self.created_at = ""
        """``creationTimestamp`` of the workload, by the clock of the cluster; empty before it is created."""
        self.namespace = kubectl.namespace or ""
        """Where the API server has put them; empty before it tells, in a context that names none."""
        self.owners = PodOwners(self.run, KINDS[target].owners)
        """What tells pods of the run from others with its labels."""
        self._kubectl, self._target = kubectl, target
        self._attempt = secrets.token_hex(16)
        self._objects = [_annotated(thing, self._attempt) for thing in objects]
        self._uids: dict[str, str] = {}
        """Resource name -> uid of each object that was created."""
        self._answer_lost = False
        """Whether objects may exist that are not among ``_uids``."""

    def apply(self) -> None:
        """Create all objects. Raises SeatrialError for a refusal; some objects may exist by then.

        The owner of an object can be named when it is created, but not later without the right to patch it. So the
        workload comes first; its containers start when the others exist.
        """
        *others, workload = self._objects
        kind = KINDS[self._target]
        needed = kind.operator.api_kinds if kind.operator is not None and kind.needs_objects_first else ()
        # A ServiceAccount must exist before the pods, and so must what lets it use its constraint.
        first = [thing for thing in others if thing["kind"] in (*needed, *_ACCOUNT_KINDS)]
        if first:
            self._create(first)
        for thing in first:
            if thing["kind"] == "ServiceAccount":
                self._await_pull_secret(resource_name(thing))
        self._create_workload(workload)
        later = [thing for thing in others if thing not in first and thing["kind"] not in _AWAITED]
        awaited = [thing for kind in _AWAITED for thing in others if thing["kind"] == kind]
        uid = self._uids.get(self.workload)
        # Where one is refused kubectl goes on with the others of a call: containers would run without the policy.
        for part in filter(None, (later, awaited)):
            self._create(part if uid is None else [_with_owner(thing, workload, uid) for thing in part])
        for thing in first if uid is not None else ():
            if thing["kind"] != "SecurityContextConstraints":
                # Without the right to patch, `delete` still names the object.
                # With its uid the API server changes no later object of the same name.
                its_uid = self._uids.get(resource_name(thing), "")
                patch = {"metadata": {"uid": its_uid, "ownerReferences": [_owner(workload, uid or "")]}}
                self._kubectl.call("patch", resource_name(thing), "--type=merge", "-p", json.dumps(patch), "-o", "name")

    def _await_pull_secret(self, account: str) -> None:
        """Wait until a new account can pull from the registry of OpenShift: a pod that is created before never can
        (openshift/origin #20225)."""
        deadline = time.monotonic() + _PULL_SECRET_S
        while time.monotonic() < deadline:
            result = self._kubectl.call("get", account, "-o", "json")
            if result.code != 0 or any(thing.get("imagePullSecrets") for thing in result.documents):
                return
            time.sleep(_POLL_S)

    def _create_workload(self, workload: Object) -> None:
        deadline = time.monotonic() + _KNOWN_S
        while True:
            try:
                self._create([workload])
            except Exception as error:
                if not is_not_yet_known(str(error)) or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
            else:
                return

    def _create(self, objects: Sequence[Object]) -> None:
        result = self._kubectl.call("create", "-f", "-", "-o", "json", stdin_bytes=list_document(objects))
        for thing in result.documents:
            name = resource_name(thing)
            self._uids[name] = str(thing["metadata"].get("uid", ""))
            self.namespace = text(thing, "metadata", "namespace") or self.namespace
            if name == self.workload:
                self.owners.take_workload(self._uids[name])
                self.created_at = text(thing, "metadata", "creationTimestamp")
        wanted = {resource_name(thing) for thing in objects}
        self._answer_lost = self._answer_lost or not wanted <= self._uids.keys()
        if result.code != 0:
            raise refusal(self._target, self._kubectl, result)

    def is_ours(self, thing: Any) -> bool:
        """Return whether this object of the API server was created here, and not by somebody under the same name."""
        metadata = thing.get("metadata") if isinstance(thing, dict) else None
        if not isinstance(metadata, dict):
            return False
        annotations = metadata.get("annotations")
        marked = isinstance(annotations, dict) and annotations.get(_ATTEMPT) == self._attempt
        return metadata.get("uid") in self._uids.values() or (self._answer_lost and marked)

    def delete_workload(self) -> None:
        """Request the deletion of the workload, and with it of its pods."""
        self._delete([self.workload])

    def delete(self, *, keep_waiting: Callable[[], bool]) -> list[str]:
        """Delete what was created and wait until no pod is left.

        ``keep_waiting``: returns False when the user no longer wants to wait. Returns what may be left, with the
        command that removes it, also where this machine cannot ask for it.
        """
        if not (self._uids or self._answer_lost):
            return []
        try:
            return self._delete_all(keep_waiting)
        except (OSError, SeatrialError) as error:
            return [f"objects of this run may still exist ({error}); run {self.delete_command()}"]

    def _delete_all(self, keep_waiting: Callable[[], bool]) -> list[str]:
        # The workload first: its pods need the other objects for as long as they run.
        names = [resource_name(thing) for thing in reversed(self._objects)]
        for _ in range(_DELETE_ATTEMPTS):
            complaint = self._delete(names)
            if not complaint:
                break
        else:
            return [f"the objects of this run could not be deleted ({complaint}); run {self.delete_command()}"]
        started_at, hurried = time.monotonic(), False
        while True:
            pods, owned = self._remaining_pods()
            elapsed_s = time.monotonic() - started_at
            if pods is not None and (not pods or (elapsed_s > _ENDED_DELETED_S and not _alive(pods))):
                return []
            waiting = [pod for pod in _alive(pods or ()) if pod.state == "waiting"]
            if waiting and not hurried:
                hurried = True
                # Without the right to delete pods the wait ends all the same, and the cluster removes them in its time.
                self._hurry([owned[pod.uid] for pod in waiting if pod.uid in owned], keep_waiting)
                started_at = time.monotonic()
            only_waiting = bool(waiting) and len(waiting) == len(_alive(pods or ()))
            is_late = elapsed_s > (_WAITING_DELETED_S if only_waiting else _DELETED_S)
            if is_late or not keep_waiting():
                remaining = ", ".join(pod.label for pod in _alive(pods or ())[:4]) or "the objects of this run"
                return [f"{remaining} may still exist although deletion was requested; check with {self.get_command()}"]
            time.sleep(_POLL_S)

    def _hurry(self, pods: Sequence[Object], keep_waiting: Callable[[], bool]) -> None:
        """Delete pods with a grace of a second, a few at once: each deletion is a process with open files."""
        deadline = time.monotonic() + _DELETED_S
        for first in range(0, len(pods), _MAX_CALLS):
            if time.monotonic() > deadline or not keep_waiting():
                return
            for call in [self._kubectl.start_deletion(pod, grace_s=1) for pod in pods[first : first + _MAX_CALLS]]:
                call.wait()

    def _delete(self, names: Sequence[str]) -> str:
        """Request the deletion of those of these objects that were created here. Returns the complaint of kubectl."""
        names = names if self._answer_lost else [name for name in names if name in self._uids]
        if not names:
            return ""
        result = self._kubectl.call("get", *names, "--ignore-not-found", "-o", "json")
        if result.code == 0:
            ours = {resource_name(thing): thing for thing in result.documents if self.is_ours(thing)}
            if self.workload in ours:
                self.owners.take_workload(text(ours[self.workload], "metadata", "uid"))
                self.namespace = text(ours[self.workload], "metadata", "namespace")
            if not ours:
                return ""
            return self._delete_these([ours[name] for name in names if name in ours])
        return result.complaint

    def _delete_these(self, things: Sequence[Object]) -> str:
        """Request the deletion of objects, of the first one before the others. Returns a complaint of kubectl; that an
        object is gone already, as its owner is, is none."""
        complaints = []
        for part in (things[:1], things[1:]):
            calls = [(thing, self._kubectl.start_deletion(thing)) for thing in part]
            ended = [(thing, call.wait()) for thing, call in calls]
            complaints += [
                result.complaint
                for thing, result in ended
                if result.code != 0 and f'"{thing["metadata"]["name"]}" not found' not in result.complaint
            ]
        return next(iter(complaints), "")

    def _remaining_pods(self) -> tuple[tuple[PodStatus, ...] | None, dict[str, Object]]:
        """Return the pods that may be of the run (None when the API server does not answer), and by uid the objects of
        those that certainly are: when a workload is deleted, its Jobs may be gone before their pods."""
        kind = KINDS[self._target]
        result = self._kubectl.call(*self.pods_question())
        items = result.items
        if result.code != 0 or items is None:
            return None, {}
        for _ in kind.owners:
            if names := self.owners.question(items):
                self.owners.take_answer(self._kubectl.call("get", *names, "--ignore-not-found", "-o", "json"))
        pod = {"apiVersion": "v1", "kind": "Pod"}
        owned = {text(item, "metadata", "uid"): {**item, **pod} for item in self.owners.owned(items)}
        return pods_of({"items": self.owners.possible(items)}, kind), owned

    def pods_question(self) -> tuple[str, ...]:
        """Return the words with which kubectl lists all pods with the labels of the run."""
        return self._kubectl.raw(self.namespace, "pods", labelSelector=run_selector(self.run))

    def is_suspended(self) -> bool:
        """Return whether the workload is suspended; False when the API server does not answer."""
        result = self._kubectl.call("get", self.workload, "--ignore-not-found", "-o", "json")
        return result.code == 0 and suspended(result.json)

    def get_command(self) -> str:
        """Return the command with which a person lists the workload and its pods."""
        resources = f"{self.workload.partition('/')[0]},pods"
        return self._kubectl.command_line("get", resources, *self._selected)

    def delete_command(self) -> str:
        """Return the command with which a person deletes the objects that were created here, as far as that is known.
        Somebody else may have one with the name of another."""
        names = [name for name in map(resource_name, reversed(self._objects)) if name in self._uids]
        return self._kubectl.command_line("delete", *(names or (self.workload.partition("/")[0], *self._selected)))

    @property
    def _selected(self) -> tuple[str, str]:
        return "-l", run_selector(self.run)


def _annotated(thing: Object, attempt: str) -> Object:
    metadata = thing["metadata"]
    annotations = {**metadata.get("annotations", {}), _ATTEMPT: attempt}
    return {**thing, "metadata": {**metadata, "annotations": annotations}}


def _owner(workload: Object, uid: str) -> Object:
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "name": workload["metadata"]["name"],
        "uid": uid,
    }


def _with_owner(thing: Object, workload: Object, uid: str) -> Object:
    return {**thing, "metadata": {**thing["metadata"], "ownerReferences": [_owner(workload, uid)]}}


def _alive(pods: Sequence[PodStatus]) -> list[PodStatus]:
    return [pod for pod in pods if pod.state != "ended"]
