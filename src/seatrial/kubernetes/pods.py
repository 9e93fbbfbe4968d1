"""What a pod is doing, in words, out of what the API tells of it. Pure: JSON in; nothing in it is taken for granted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["PodSeen", "complaints", "failure", "first_pod", "pods_of"]

_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_MOST_WORDS = 300
_SECONDS = len("2026-01-01T00:00:00")
_IMAGE = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"),
    *("ImageInspectError", "SignatureValidationFailed"),
)
_NO_CONSTRAINT = "unable to validate against any security context constraint"
_NOT_MADE = (
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"),
    "PostStartHookError",
)
_STOPS = {
    "Evicted": "was evicted",
    "Preempting": "had to make room for another pod",
    "Preempted": "had to make room for another pod",
    "NodeShutdown": "ended with its node, which was shut down",
    "Shutdown": "ended with its node, which was shut down",
    "Terminated": "ended with its node, which was shut down",
    "NodeLost": "was given up with its node",
    "PreemptionByScheduler": "had to make room for another pod",
    "DeletionByTaintManager": "was deleted for a taint of its node",
    "EvictionByEvictionAPI": "was evicted on request (a node that is drained)",
    "DeletionByPodGC": "was deleted, as its node is gone",
    "TerminationByKubelet": "was ended by its node",
}
"""``status.reason``, or the reason of the condition DisruptionTarget: the cluster ended the pod, and not itself."""
_INDEXES = ("batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index")
_REPLICA = "training.kubeflow.org/replica-type"
_COMPONENT = "app.kubernetes.io/component"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """One pod, as it is now."""

    name: str
    uid: str
    node: str
    """Of the cluster; empty: it has none yet."""
    container: str
    """The one that is ours."""
    number: int
    """Which of the nodes of the run; -1: that is not told."""
    is_launcher: bool
    state: Literal["waiting", "running", "ended"]
    """Of our container."""
    ready: bool
    waits: str
    """Why it does not run yet; empty: it does."""
    hopeless: bool
    """What it waits for does not come by itself."""
    exit_code: int | None
    ended: str
    """How it ended; empty: it has not."""
    stopped: str
    """By what the cluster, or somebody, ended it from outside; empty: nobody has."""
    deleted: bool
    """It was told to end: by somebody, or because another pod of the run had failed."""

    @property
    def label(self) -> str:
        """As a person reads it."""
        return f"pod {self.name}" + (f" on node {self.node}" if self.node else "")


def pods_of(answer: Any) -> tuple[PodSeen, ...]:
    """The pods of a list, the oldest first."""
    # A name becomes that of a file.
    items = [item for item in _list(answer, "items") if re.fullmatch(_NAME, _text(item, "metadata", "name"))]
    items.sort(key=lambda item: (_text(item, "metadata", "creationTimestamp"), _text(item, "metadata", "name")))
    return tuple(_pod(item) for item in items)


def first_pod(pods: Sequence[PodSeen], *, under_mpi: bool) -> PodSeen | None:
    """The one whose log tells of the run; of several (all were started again) the newest."""
    found = [pod for pod in pods if (pod.is_launcher if under_mpi else pod.number == 0 and not pod.is_launcher)]
    return found[-1] if found else None


def complaints(answer: Any, run: str, since: str) -> tuple[str, ...]:
    """What the controllers of the cluster say of objects of the run: the messages of its warnings, the newest last.

    ``since``: when its workload was made, as the API tells times; an earlier one may have had the same name.
    """
    found = []
    for item in _list(answer, "items"):
        name = _text(item, "involvedObject", "name")
        when = _text(item, "lastTimestamp") or _text(item, "eventTime") or _text(item, "metadata", "creationTimestamp")
        ours = (name == run or name.startswith(f"{run}-")) and when[:_SECONDS] >= since[:_SECONDS]
        if ours and _text(item, "reason").startswith("Failed"):
            message = _one_line(_text(item, "message"))
            if _NO_CONSTRAINT in message:
                message = f"see --openshift: {message}"
            found.append((when, message, _text(item, "reason")))
    return tuple(dict.fromkeys(message for _, message, reason in sorted(found) if "Create" in reason and message))


def failure(workload: Any) -> str:
    """Why whoever looks after a workload has given it up; empty: they have not."""
    for condition in _list(workload, "status", "conditions"):
        if _text(condition, "type") == "Failed" and _text(condition, "status") == "True":
            told = (_text(condition, "reason"), _one_line(_text(condition, "message")))
            return ": ".join(word for word in told if word) or "no reason"
    return ""


def _pod(item: Any) -> PodSeen:
    ours: Any = next(iter(_list(item, "spec", "containers")), {})
    container = _text(ours, "name")
    statuses = _list(item, "status", "containerStatuses")
    status: Any = next((each for each in statuses if _text(each, "name") == container), {})
    phase = _text(item, "status", "phase")
    ended = _get(status, "state", "terminated")
    state: Literal["waiting", "running", "ended"] = "waiting"
    if phase in ("Succeeded", "Failed") or ended is not None:
        state = "ended"
    elif _get(status, "state", "running") is not None:
        state = "running"
    code = _get(ended, "exitCode")
    waits, hopeless = _waits(item, status) if state == "waiting" else ("", False)
    return PodSeen(
        name=_text(item, "metadata", "name"),
        uid=_text(item, "metadata", "uid"),
        node=_text(item, "spec", "nodeName"),
        container=container,
        number=_number(item),
        is_launcher=_labels(item).get(_COMPONENT) == "launcher",
        state=state,
        ready=_get(status, "ready") is True,
        waits=waits,
        hopeless=hopeless,
        exit_code=code if type(code) is int else None,
        ended=_ended(item, ours, ended) if state == "ended" else "",
        stopped=_stopped(item),
        deleted=bool(_text(item, "metadata", "deletionTimestamp")),
    )


def _number(item: Any) -> int:
    labels = _labels(item)
    told = next((labels[name] for name in _INDEXES if name in labels), None)
    if told is None:
        # A Job of a single pod counts nothing.
        return -1 if _REPLICA in labels else 0
    number = int(told) if told.isascii() and told.isdecimal() and len(told) < 9 else -1
    return number + 1 if labels.get(_REPLICA, "").lower() == "worker" else number


def _labels(item: Any) -> dict[str, str]:
    """Labels and annotations: the index of a Job is a label as of Kubernetes 1.28, and was an annotation before."""
    told = [_get(item, "metadata", "annotations"), _get(item, "metadata", "labels")]
    return {str(key): str(value) for each in told if isinstance(each, Mapping) for key, value in each.items()}


def _waits(item: Any, status: Any) -> tuple[str, bool]:
    """Why our container does not run yet, and whether it will not by itself."""
    for each in [*_list(item, "status", "initContainerStatuses"), status]:
        reason = _text(each, "state", "waiting", "reason")
        message = _one_line(_text(each, "state", "waiting", "message"))
        if reason in _IMAGE:
            return f"its image {_text(each, 'image')} cannot be pulled ({reason}: {message or 'no reason'})", True
        if reason in _NOT_MADE:
            return f"its container cannot be made ({reason}: {message or 'no reason'})", True
        if reason == "CrashLoopBackOff":
            return f"its container {_text(each, 'name')} ends again and again ({message})", True
    for condition in _list(item, "status", "conditions"):
        if _text(condition, "type") == "PodScheduled" and _text(condition, "status") == "False":
            message = _one_line(_text(condition, "message"))
            if _text(condition, "reason") == "SchedulingGated":
                return f"it is held back until a queue lets it in ({message})", False
            return f"no node takes it ({message or 'no reason'})", False
    if not _text(item, "spec", "nodeName"):
        return "it has no node yet", False
    started = [
        each for each in _list(item, "status", "initContainerStatuses") if _get(each, "state", "running") is not None
    ]
    if started:
        return f"its init container {_text(started[0], 'name')} has not ended", False
    return "its image is pulled and its container made", False


def _ended(item: Any, ours: Any, terminated: Any) -> str:
    reason, code = _text(terminated, "reason"), _get(terminated, "exitCode")
    if reason == "OOMKilled":
        limit = _text(ours, "resources", "limits", "memory")
        words = f"of {limit} (--memory)" if limit else "that its node or its namespace sets"
        return f"was killed because it needed more memory than the limit {words}"
    if _text(item, "status", "reason") == "DeadlineExceeded":
        return "ran for longer than its activeDeadlineSeconds allow"
    told = _one_line(_text(item, "status", "message"))
    if terminated is None:
        why = ": ".join(word for word in (_text(item, "status", "reason"), told) if word)
        return f"failed before its container ran ({why or 'no reason'})"
    return f"ended with exit code {code}" + (f" ({reason})" if reason not in ("", "Error", "Completed") else "")


def _stopped(item: Any) -> str:
    reasons = [(_text(item, "status", "reason"), _text(item, "status", "message"))]
    reasons += [
        (_text(condition, "reason"), _text(condition, "message"))
        for condition in _list(item, "status", "conditions")
        if _text(condition, "type") == "DisruptionTarget" and _text(condition, "status") == "True"
    ]
    for reason, message in reasons:
        if reason in _STOPS:
            told = _one_line(message)
            return _STOPS[reason] + (f" ({told})" if told else "")
    return "was deleted" if _text(item, "metadata", "deletionTimestamp") else ""


def _get(thing: Any, *path: str) -> Any:
    for key in path:
        thing = thing.get(key) if isinstance(thing, Mapping) else None
    return thing


def _text(thing: Any, *path: str) -> str:
    found = _get(thing, *path)
    return found if isinstance(found, str) else ""


def _list(thing: Any, *path: str) -> Iterable[Any]:
    found = _get(thing, *path)
    return found if isinstance(found, list) else []


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MOST_WORDS].rstrip(" .")
