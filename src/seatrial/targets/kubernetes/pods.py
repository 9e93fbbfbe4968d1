"""The state of a pod, read from the JSON of the API server. Pure; no field of that JSON is taken for granted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

from seatrial.targets.kubernetes.api_json import get, items_of, name_said, one_line, said, text
from seatrial.targets.kubernetes.kind import Kind

_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_INDEX_IN_NAME = re.compile(r"-([0-9]+)-[a-z0-9]+$")
"""The index of a pod of an Indexed Job, which its name has too: ``JOB-INDEX-RANDOM``."""
_TO_SECONDS = len("2026-01-01T00:00:00")
_IMAGE = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"),
    *("ImageInspectError", "SignatureValidationFailed"),
)
_FINAL = ("Succeeded", "Failed")
_SIGNALED = 128
"""Higher exit codes stand for a signal."""
_NOT_CREATED = (
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"),
    "PostStartHookError",
)
_STOPS = {
    "Evicted": "was evicted",
    "Preempting": "was preempted by another pod",
    "Preempted": "was preempted by another pod",
    "NodeShutdown": "ended because its node was shut down",
    "Shutdown": "ended because its node was shut down",
    "Terminated": "ended because its node was shut down",
    "NodeLost": "was lost with its node",
    "PreemptionByScheduler": "was preempted by another pod",
    "DeletionByTaintManager": "was deleted because of a taint of its node",
    "EvictionByEvictionAPI": "was evicted on request (its node is being drained)",
    "DeletionByPodGC": "was deleted because its node is gone",
    "TerminationByKubelet": "was stopped by its node",
    "DeadlineExceeded": "ran longer than its activeDeadlineSeconds",
}
"""``status.reason``, or the reason of the condition DisruptionTarget, of a pod that the cluster stopped."""
_ADMITTED_AGAIN = ("NodeAffinity", "UnexpectedAdmissionError")
"""``status.reason`` of a pod that its kubelet refused. One that restarts asks itself again about pods that run
(kubernetes/kubernetes #123980, #118559)."""
_ANNOUNCED = ("Evicted", "Preempting")
"""The events of a kubelet that stops a pod."""
DELETED = "was deleted"
_OUT_OF_MEMORY = "OOMKilled"
_ENDED_BY_REQUEST = (3, 130, 143)
"""Exit codes of our processes after SIGTERM: of an agent that has joined, of a conductor and a training, and of all
others before they are one."""
_MOST_GRACE_S = 1 << 63
"""The API server has no larger number."""
_COMPONENT = "app.kubernetes.io/component"
_NO_REASON = "no reason given"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStatus:
    """One pod at the time of the call."""

    name: str
    namespace: str
    uid: str
    node: str
    """Name of its node in the cluster; empty while it is not scheduled."""
    container: str
    """Name of the container that runs seatrial."""
    number: int
    """Node rank; -1 if no label of the pod gives one."""
    is_launcher: bool
    state: Literal["waiting", "running", "ended"]
    """State of our container."""
    ready: bool
    """Whether its readiness probe succeeds."""
    waits_for: str
    """Why it does not run yet, as a clause; empty unless it is waiting."""
    hopeless: bool
    """Whether it keeps waiting until somebody changes the request or the cluster."""
    exit_code: int | None
    end: str
    """How it ended, as a predicate (``ended with exit code 1``); empty while it has not ended."""
    stop: str
    """How it was stopped from outside, as a predicate (``was evicted``); empty if it was not."""
    deleted: bool
    """Whether its deletion was requested: by a person, or because another pod of the run failed."""
    deletion_asked_at: float | None = None
    """When its deletion was requested, in seconds since the epoch; None where it was not, or that is not known."""
    ended_at: str = ""
    """When its container ended, as the API writes times; empty where that is not known."""
    node_gone: bool = False
    """Whether its node no longer reports to the cluster, although the container was running."""
    out_of_memory: bool = False
    """Whether the cluster says that its container was killed because it needed more memory than its limit."""
    is_final: bool = False
    """Whether its phase is final. A kubelet tells the phase, and why it stopped a pod, after the end of all containers
    (``mergePodStatus`` of its status manager)."""
    start: int = 0
    """How often all pods had been started again when it was created."""

    @property
    def killed(self) -> bool:
        """Whether a signal or the limit of its memory ended it, and nobody who stopped the pod or asked it to end."""
        code = self.exit_code or 0
        return code > _SIGNALED and code not in _ENDED_BY_REQUEST and not self.stop

    @property
    def never_ran(self) -> bool:
        """Whether it failed before its container ran, as one that its kubelet refuses; ``end`` says why."""
        return self.state == "ended" and self.exit_code is None and not self.stop

    @property
    def is_explained(self) -> bool:
        """Whether the cluster has told all that it ever tells of the pod's end."""
        return self.is_final or self.stop not in ("", DELETED)

    @property
    def label(self) -> str:
        """The pod and its node, for messages."""
        return f"pod {self.name}" + (f" on node {self.node}" if self.node else "")


def pods_of(answer: Any, kind: Kind) -> tuple[PodStatus, ...]:
    """Return the pods of a list, the oldest first. ``kind``: the kind of workload that created them."""
    # The name of a pod becomes the name of a file.
    items = [item for item in items_of(answer, "items") if re.fullmatch(_NAME, text(item, "metadata", "name"))]
    items.sort(key=lambda item: (text(item, "metadata", "creationTimestamp"), text(item, "metadata", "name")))
    return tuple(_pod(item, kind) for item in items)


def first_pod(pods: Sequence[PodStatus], *, nodes: int, under_mpi: bool) -> PodStatus | None:
    """Return the pod whose log has the events of the run, or None. After a restart of all pods it is the newest one.

    The only node of a run is its first, whether its pod has a number or not.
    """
    if under_mpi:
        candidates = [pod for pod in pods if pod.is_launcher]
    else:
        candidates = [pod for pod in pods if not pod.is_launcher and (pod.number == 0 or nodes == 1)]
    return candidates[-1] if candidates else None


def first_pod_labels(kind: Kind, *, nodes: int, under_mpi: bool) -> dict[str, str]:
    """Return the labels that no other pod of a run has than the first one (``first_pod``)."""
    if under_mpi:
        return {_COMPONENT: "launcher"}
    roles = [role for role, before in kind.nodes_before.items() if before == 0]
    role = {kind.role_label: roles[0]} if kind.role_label and roles else {}
    return {**role, kind.index_label: "0"} if nodes > 1 else {}


def stops_announced(events: Any) -> dict[str, str]:
    """Return how kubelets say that they stop pods, by the uid of each pod.

    They write the event before they kill the pod, and a pod that somebody deletes meanwhile may disappear before its
    status tells the reason.
    """
    return {
        text(event, "involvedObject", "uid"): _stopped(text(event, "reason"), text(event, "message"))
        for event in items_of(events, "items")
        if text(event, "reason") in _ANNOUNCED and text(event, "involvedObject", "uid")
    }


def suspended(workload: Any) -> bool:
    """Return whether nobody may create the pods of a workload yet; a queue such as Kueue suspends it until it is its
    turn."""
    if get(workload, "spec", "suspend") is True or get(workload, "spec", "runPolicy", "suspend") is True:
        return True
    return any(
        text(condition, "type") == "Suspended" and text(condition, "status") == "True"
        for condition in items_of(workload, "status", "conditions")
    )


def is_taken_up(workload: Any) -> bool:
    """Return whether a controller has looked at a workload; each of them first writes a status."""
    return bool(get(workload, "status"))


def is_over(workload: Any) -> bool:
    """Return whether the controller of a workload has marked it as completed or failed: it starts no pod again."""
    return any(
        text(condition, "type") in ("Completed", "Failed") and text(condition, "status") == "True"
        for condition in items_of(workload, "status", "conditions")
    )


def workload_failure(workload: Any) -> str:
    """Return why the controller of a workload has marked it as failed; empty if it has not."""
    for condition in items_of(workload, "status", "conditions"):
        if text(condition, "type") == "Failed" and text(condition, "status") == "True":
            texts = (name_said(text(condition, "reason")), said(text(condition, "message")))
            return ": ".join(text for text in texts if text) or _NO_REASON
    return ""


def _pod(item: Any, kind: Kind) -> PodStatus:
    containers = list(items_of(item, "spec", "containers"))
    ours: Any = next((entry for entry in containers if text(entry, "name") == kind.container), None)
    ours = ours if ours is not None else next(iter(containers), {})
    container = text(ours, "name")
    statuses = items_of(item, "status", "containerStatuses")
    status: Any = next((entry for entry in statuses if text(entry, "name") == container), {})
    phase = text(item, "status", "phase")
    terminated = get(status, "state", "terminated")
    state: Literal["waiting", "running", "ended"] = "waiting"
    if phase in _FINAL or terminated is not None:
        state = "ended"
    elif get(status, "state", "running") is not None:
        state = "running"
    code = get(terminated, "exitCode")
    waits_for, hopeless = _waits_for(item, status) if state == "waiting" else ("", False)
    return PodStatus(
        name=text(item, "metadata", "name"),
        namespace=text(item, "metadata", "namespace"),
        uid=text(item, "metadata", "uid"),
        node=text(item, "spec", "nodeName"),
        container=container,
        number=_number(item, kind),
        is_launcher=_is_launcher(item),
        state=state,
        ready=get(status, "ready") is True,
        waits_for=waits_for,
        hopeless=hopeless,
        exit_code=code if type(code) is int else None,
        end=_end(item, ours, terminated) if state == "ended" else "",
        out_of_memory=state == "ended" and text(terminated, "reason") == _OUT_OF_MEMORY,
        stop=_stop(item, terminated),
        deleted=bool(text(item, "metadata", "deletionTimestamp")),
        deletion_asked_at=_deletion_asked_at(item),
        ended_at=text(terminated, "finishedAt"),
        node_gone=state == "running" and _is_node_gone(item),
        is_final=phase in _FINAL,
        start=_index(_labels(item).get(kind.restart_label, "")) or 0,
    )


def _is_node_gone(item: Any) -> bool:
    """Return whether the node controller has marked the pod.

    It changes only the condition Ready; the kubelet, which would also change ContainersReady, is silent. Where a
    readiness gate is not set the kubelet itself does so.
    """
    conditions = {text(entry, "type"): entry for entry in items_of(item, "status", "conditions")}
    ready, containers = conditions.get("Ready"), conditions.get("ContainersReady")
    is_marked = text(ready, "status") == "False" and text(containers, "status") == "True"
    return is_marked and text(ready, "reason") != "ReadinessGatesNotReady"


def _number(item: Any, kind: Kind) -> int:
    labels = _labels(item)
    index = labels.get(kind.index_label, "")
    named = _INDEX_IN_NAME.search(text(item, "metadata", "name"))
    if index and named and not text(item, "metadata", "labels", kind.index_label):
        # A kubelet may change the annotations of its pods, but neither their labels nor their names.
        index = named[1]
    number = _index(index)
    if number is None:
        return -1
    role = "" if kind.role_label is None else labels.get(kind.role_label, "").lower()
    return number + kind.nodes_before.get(role, 0)


def _index(digits: str) -> int | None:
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 9 else None


def _is_launcher(item: Any) -> bool:
    return _labels(item).get(_COMPONENT) == "launcher"


def _labels(item: Any) -> dict[str, str]:
    """Return labels and annotations: the index of a Job is a label since Kubernetes 1.28, an annotation before."""
    sources = [get(item, "metadata", "annotations"), get(item, "metadata", "labels")]
    return {str(key): str(value) for source in sources if isinstance(source, Mapping) for key, value in source.items()}


def _waits_for(item: Any, status: Any) -> tuple[str, bool]:
    """Return why our container does not run yet, and whether that is hopeless."""
    for container in [*items_of(item, "status", "initContainerStatuses"), status]:
        reason = text(container, "state", "waiting", "reason")
        message = said(text(container, "state", "waiting", "message"), _NO_REASON)
        if reason in _IMAGE:
            image = name_said(text(container, "image"))
            return f"its image {image} cannot be pulled ({reason}: {message})", True
        if reason in _NOT_CREATED:
            return f"its container cannot be created ({reason}: {message})", True
        if reason == "CrashLoopBackOff":
            return f"its container {name_said(text(container, 'name'))} keeps crashing ({message})", True
    # The words of the scheduler; on a node its kubelet writes what it likes.
    is_placed = bool(text(item, "spec", "nodeName"))
    for condition in () if is_placed else items_of(item, "status", "conditions"):
        if text(condition, "type") == "PodScheduled" and text(condition, "status") == "False":
            message = one_line(text(condition, "message"))
            if text(condition, "reason") == "SchedulingGated":
                return f"it is waiting for a queue to admit it ({message})", False
            return f"no node accepts it ({message or _NO_REASON})", False
    if not is_placed:
        return "it is not scheduled to a node yet", False
    init_containers = [
        container
        for container in items_of(item, "status", "initContainerStatuses")
        if get(container, "state", "running") is not None
    ]
    if init_containers:
        return f"its init container {name_said(text(init_containers[0], 'name'))} has not ended", False
    return "its image is being pulled or its container created", False


def _end(item: Any, ours: Any, terminated: Any) -> str:
    reason, code = name_said(text(terminated, "reason")), get(terminated, "exitCode")
    if reason == _OUT_OF_MEMORY:
        limit = text(ours, "resources", "limits", "memory")
        option = "which launchers of MPI have" if _is_launcher(item) else "--memory"
        origin = f"of {limit} ({option})" if limit else "set by its node or its namespace"
        return f"was killed because it needed more memory than the limit {origin}"
    if terminated is not None and reason in _NOT_CREATED:
        return f"could not run its container ({reason}: {said(text(terminated, 'message'), _NO_REASON)})"
    if terminated is None:
        texts = (name_said(text(item, "status", "reason")), said(text(item, "status", "message")), _init_failure(item))
        why = ": ".join(part for part in texts if part)
        return f"failed before its container ran ({why or _NO_REASON})"
    return f"ended with exit code {code}" + (f" ({reason})" if reason not in ("", "Error", "Completed") else "")


def _init_failure(item: Any) -> str:
    for container in items_of(item, "status", "initContainerStatuses"):
        code = get(container, "state", "terminated", "exitCode")
        if code not in (0, None):
            return f"its init container {name_said(text(container, 'name'))} ended with exit code {code}"
    return ""


def _stop(item: Any, terminated: Any) -> str:
    reasons = [(text(item, "status", "reason"), text(item, "status", "message"))]
    reasons += [
        (text(condition, "reason"), text(condition, "message"))
        for condition in items_of(item, "status", "conditions")
        if text(condition, "type") == "DisruptionTarget" and text(condition, "status") == "True"
    ]
    for reason, message in reasons:
        detail = said(message)
        if reason in _STOPS:
            return _stopped(reason, message)
        if reason in _ADMITTED_AGAIN and terminated is not None:
            return f"was refused by its kubelet while it ran ({reason}{f': {detail}' if detail else ''})"
    return DELETED if _was_deleted(item, terminated) else ""


def _stopped(reason: str, message: str) -> str:
    detail = said(message)
    return _STOPS[reason] + (f" ({detail})" if detail else "")


def _was_deleted(item: Any, terminated: Any) -> bool:
    """Return whether a deletion ended the pod, or will. Operators also delete pods that have ended by themselves."""
    when = text(item, "metadata", "deletionTimestamp")
    if not when:
        return False
    if terminated is None:
        return True
    if get(terminated, "exitCode") == 0 or text(terminated, "reason") == _OUT_OF_MEMORY:
        return False
    if get(terminated, "exitCode") in _ENDED_BY_REQUEST:
        # Its node, whose clock may be behind that of the API server, need not have ended it after the request.
        return True
    asked_at, ended_at = _deletion_asked_at(item), seconds_of(text(terminated, "finishedAt"))
    return asked_at is None or ended_at is None or ended_at >= asked_at


def _deletion_asked_at(item: Any) -> float | None:
    # The timestamp is that of the request and the grace together.
    until = seconds_of(text(item, "metadata", "deletionTimestamp"))
    grace_s = get(item, "metadata", "deletionGracePeriodSeconds")
    is_number = type(grace_s) is int and 0 <= grace_s < _MOST_GRACE_S
    return None if until is None else until - (grace_s if is_number else 0)


def seconds_of(timestamp: str) -> float | None:
    """Return the seconds since the epoch of a timestamp of the API (2026-01-01T00:00:00Z); None if it is none."""
    try:
        return datetime.fromisoformat(timestamp[:_TO_SECONDS]).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
