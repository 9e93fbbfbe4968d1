"""Which pods with the labels of a run belong to it: those whose owners lead, uid by uid, to its workload.

A neighbor that may create pods in the namespace can give them any label, and by mistake those of another run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from seatrial.targets.kubernetes.api_json import get, items_of, text
from seatrial.targets.kubernetes.kubectl import CallResult
from seatrial.targets.kubernetes.permissions import resource_name

_NAME_CHARS = 253
"""No object of the API server has a longer name, but an event may be about one. It is a word for kubectl."""
_MAX_ASKED = 16
"""Owners that are asked for in one call. A run has two at most, but strangers may name more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owner:
    resource: str
    """Name by which kubectl finds it: ``job.batch/NAME``."""
    uid: str


class PodOwners:
    """The owners of the pods of one run, as far as the cluster has told them."""

    def __init__(self, run: str, kinds: tuple[str, ...]) -> None:
        """``kinds``: the kinds between the workload and its pods (``Kind.owners``)."""
        self.readable = True
        """Whether the user may get these kinds. Otherwise an owner counts that is of such a kind and has the run's
        name."""
        self._kinds = kinds
        self._name = re.compile(rf"{re.escape(run)}(?:-[a-z0-9.-]+)?")
        self._workload_uid = ""
        self._owners: dict[_Owner, _Owner | None] = {}
        """An object between -> its owner."""
        self._gone: set[_Owner] = set()
        """What does not exist with this name and uid, or no longer does."""
        self._asked: dict[_Owner, None] = {}
        """The last question, in its order."""

    def take_workload(self, uid: str) -> None:
        """Take note of the uid of the workload that was created."""
        self._workload_uid = uid

    def owned(self, pods: Iterable[Any]) -> list[Any]:
        """Return those of these pods that belong to the workload."""
        return [pod for pod in pods if self._find(pod, gone=False) is True]

    def possible(self, pods: Iterable[Any]) -> list[Any]:
        """Return also those whose owner was not asked for yet, or is gone."""
        return [pod for pod in pods if self._find(pod, gone=True) is not False]

    def foreign(self, pods: Iterable[Any]) -> list[Any]:
        """Return those of these pods that certainly belong to others."""
        return [pod for pod in pods if self._find(pod, gone=True) is False]

    def is_about_run(self, event: Any) -> bool:
        """Return whether the object of an event is the workload, or leads to it. One without a uid has no owner to ask
        for."""
        thing = event_object(event)
        return thing is None or self._find(thing, gone=False) is True

    def question(self, pods: Iterable[Any], others: Iterable[Any] = ()) -> list[str]:
        """Return the resource names of owners that must be asked for, those of the oldest pods first.

        ``others``: objects of events, asked for with what the pods leave. Anybody who may create events names many.
        """
        self._asked = {}
        oldest = sorted(pods, key=lambda pod: text(pod, "metadata", "creationTimestamp"))
        for thing in itertools.chain(oldest, others):
            if len(self._asked) == _MAX_ASKED:
                break
            found = self._find(thing, gone=True)
            if isinstance(found, _Owner):
                self._asked[found] = None
        return list(dict.fromkeys(owner.resource for owner in self._asked))

    def take_answer(self, result: CallResult) -> None:
        """Take the answer to the last question (``kubectl get --ignore-not-found``)."""
        if "(forbidden)" in result.err.lower():
            self.readable = False
        known = {
            _Owner(resource=resource_name(thing), uid=text(thing, "metadata", "uid")): _owner_of(thing)
            for thing in result.documents
        }
        for owner in self._asked:
            if owner in known:
                self._owners[owner] = known[owner]
            elif result.code == 0:
                self._gone.add(owner)
        self._asked = {}

    def _find(self, pod: Any, *, gone: bool) -> bool | _Owner:
        """Return whether a pod belongs to the workload, or the owner whose own owner is not known.

        ``gone``: what to return where an owner no longer exists.
        """
        owner = _owner_of(pod)
        for _ in range(len(self._kinds) + 1):
            if owner is None:
                return False
            if owner.uid == self._workload_uid:
                return True
            kind, _, name = owner.resource.partition("/")
            if kind not in self._kinds or len(name) > _NAME_CHARS or not self._name.fullmatch(name):
                return False
            if owner in self._gone:
                return gone
            if owner not in self._owners:
                return owner if self.readable else True
            owner = self._owners[owner]
        return False


def event_object(event: Any) -> Any:
    """Return what the object of an event owns, as far as its owner is concerned; None where the event has no uid."""
    involved = get(event, "involvedObject")
    if not text(involved, "uid"):
        return None
    # A controller may leave the kind out.
    reference = {"apiVersion": "v1", "kind": "", "name": "", **involved, "controller": True}
    return {"metadata": {"ownerReferences": [reference], "creationTimestamp": text(event, "lastTimestamp")}}


def _owner_of(thing: Any) -> _Owner | None:
    """Return the owner that controls an object; the API server admits only one."""
    for reference in items_of(thing, "metadata", "ownerReferences"):
        if get(reference, "controller") is True and text(reference, "uid"):
            named = {key: text(reference, key) for key in ("apiVersion", "kind")}
            resource = resource_name({**named, "metadata": {"name": text(reference, "name")}})
            return _Owner(resource=resource, uid=text(reference, "uid"))
    return None
