"""Warnings of the cluster about the objects of a run, and which of them no waiting will cure. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from seatrial.errors import RequestError
from seatrial.targets.kubernetes.api_json import items_of, name_said, one_line, said, text
from seatrial.targets.kubernetes.manifest.parse import quantity_bytes

_TO_SECONDS = len("2026-01-01T00:00:00")
_NO_CONSTRAINT = "unable to validate against any security context constraint"
_HARMLESS = ("SetPodTemplateRestartPolicy",)
"""training-operator reports it for each healthy job."""
_NEVER = (
    "violates PodSecurity",
    _NO_CONSTRAINT,
    # A quota for limits accepts no pod without them, and a LimitRange none outside of it.
    "must specify",
    "usage per Container is",
    "usage per Pod is",
)
_NODE = re.compile(r'pods "(?![^"]*-launcher-)')
"""A pod that holds ranks, in a refusal of the API server; all of a run are alike."""
_AMOUNTS = re.compile(r"exceeded quota: [^,]*, requested: (?P<requested>.*?), used: .*?, limited: (?P<limited>.*)")


_MOST_JUDGED = 1_000
"""Number of the newest warnings that are judged: one takes up to 0.1 ms, and whoever may create Events makes thousands.
"""


@dataclass(frozen=True, slots=True)
class CreationWarnings:
    """The two warnings about objects of the run that say why there are no pods."""

    newest: str = ""
    """Empty if there is none."""
    final: str = ""
    """The newest one that no waiting will cure; empty if there is none."""


def events_of_run(answer: Any, run: str) -> dict[str, list[Any]]:
    """Return the list of those events in an answer whose objects are named like the ones of the run."""
    return {"items": [item for item in items_of(answer, "items") if _is_named_like(item, run)]}


def creation_warnings(
    answer: Any, run: str, created_at: str, is_ours: Callable[[Any], bool] = lambda event: True, *, pods: int = 1
) -> CreationWarnings:
    """Return the warnings that count about objects of the run that are no pods.

    Args:
        answer: The list of events of the namespace.
        run: Name of the run.
        created_at: ``creationTimestamp`` of the workload; earlier warnings belong to another run of the same name.
        is_ours: Returns whether the object of an event is of the run: the names of others may begin like ours.
        pods: How many pods that hold ranks the run needs at the same time.
    """
    warnings = []
    for item in filter(is_ours, items_of(answer, "items")):
        kind, reason = text(item, "involvedObject", "kind"), text(item, "reason")
        is_creation = reason.startswith("Failed") and "Create" in reason
        if (_is_of(item, run, created_at) and kind != "Pod" and (kind or is_creation)) and reason not in _HARMLESS:
            warnings.append((_time(item), one_line(text(item, "message"))))
    newest_first = [*dict.fromkeys(message for _, message in sorted(warnings) if message)][: -_MOST_JUDGED - 1 : -1]
    final = next((message for message in newest_first if is_final(message, pods)), "")
    return CreationWarnings(newest_first[0] if newest_first else "", final)


def warning_said(warning: str) -> str:
    """Return a warning in quotes, as a part of a sentence, with the option that helps before it."""
    return ("see --openshift: " if _NO_CONSTRAINT in warning else "") + said(warning)


def pod_warnings(answer: Any, run: str, created_at: str) -> Mapping[str, str]:
    """Return the newest warning about each pod of the run, as ``REASON: MESSAGE``, by the name of the pod."""
    found: dict[str, str] = {}
    for item in sorted(items_of(answer, "items"), key=_time):
        is_of_pod = _is_of(item, run, created_at) and text(item, "involvedObject", "kind") == "Pod"
        if is_of_pod and (message := said(text(item, "message"))):
            found[text(item, "involvedObject", "name")] = f"{name_said(text(item, 'reason'))}: {message}"
    return found


def is_final(warning: str, pods: int = 1) -> bool:
    """Return whether the cluster will refuse pods for as long as the request and the cluster stay as they are.

    ``pods``: how many like the one in the warning the run needs at the same time.
    """
    if any(words in warning for words in _NEVER):
        return True
    amounts = _AMOUNTS.search(warning)
    if amounts is None:
        return False
    requested, limited = _quantities(amounts["requested"]), _quantities(amounts["limited"])
    # Otherwise others use the quota now, and may leave it.
    count = pods if _NODE.search(warning) else 1
    return any(name in limited and amount * count > limited[name] for name, amount in requested.items())


def _quantities(listed: str) -> dict[str, Decimal]:
    found = {}
    for part in listed.split(","):
        name, _, amount = part.strip().partition("=")
        try:
            found[name] = Decimal(0) if amount == "0" else quantity_bytes(amount, name)
        except RequestError:
            continue
    return found


def _time(item: Any) -> str:
    return text(item, "lastTimestamp") or text(item, "eventTime") or text(item, "metadata", "creationTimestamp")


def _is_of(item: Any, run: str, created_at: str) -> bool:
    return _is_named_like(item, run) and _time(item)[:_TO_SECONDS] >= created_at[:_TO_SECONDS]


def _is_named_like(item: Any, run: str) -> bool:
    name = text(item, "involvedObject", "name")
    return name == run or name.startswith(f"{run}-")
