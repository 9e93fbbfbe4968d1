"""The objects of the double of a cluster, by kind, namespace and name, with their owners."""

from __future__ import annotations

import base64
import copy
import random
import string
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from kubernetes.double.resources import RESOURCES, Resource

Object = dict[str, Any]
_BY_KIND = {resource.kind: resource for resource in RESOURCES}


def now() -> str:
    """As the API writes times."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def random_suffix() -> str:
    """Of generated names."""
    return "".join(random.choices(string.ascii_lowercase + string.digits, k=5))


def _controlled_by(owner: Object) -> list[Object]:
    """The ownerReferences of what a controller makes for an object."""
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


class Store:
    """All objects. Whoever uses it holds the lock of the cluster."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._version = 1
        self.held: set[str] = set()
        """The uids of pods that have containers; the kubelet must end these first."""

    def add(self, thing: Object, namespace: str, owner: Object | None = None) -> Object:
        """Keeps a copy, with what the API adds, and returns it."""
        made = copy.deepcopy(thing)
        resource = _BY_KIND[made["kind"]]
        metadata = made.setdefault("metadata", {})
        if resource.namespaced:
            metadata["namespace"] = namespace
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", now())
        if owner is not None:
            metadata["ownerReferences"] = _controlled_by(owner)
        if made["kind"] == "Secret" and "stringData" in made:
            plain = {name: base64.b64encode(text.encode()).decode() for name, text in made.pop("stringData").items()}
            made["data"] = {**made.get("data", {}), **plain}
        self.touch(made)
        self._objects[self._key(resource, metadata)] = made
        return made

    @staticmethod
    def _key(resource: Resource, metadata: Object) -> tuple[str, str, str]:
        return resource.kind, metadata.get("namespace", "") if resource.namespaced else "", metadata["name"]

    def touch(self, thing: Object) -> None:
        """It was changed."""
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        return self._objects.get((kind, namespace if _BY_KIND[kind].namespaced else "", name))

    def each(self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> list[Object]:
        """All of a kind, of one namespace or of all, that bear these labels."""
        return [
            thing
            for (its, place, _), thing in list(self._objects.items())
            if its == kind
            and namespace in (None, place)
            and (labels or {}).items() <= thing["metadata"].get("labels", {}).items()
        ]

    def owned(self, owner: Object, kind: str) -> list[Object]:
        """What an object controls."""
        uid = owner["metadata"]["uid"]
        return [thing for thing in self.each(kind) if uid in _owners(thing)]

    def drop(self, thing: Object) -> None:
        """Deletes it. A pod goes when the kubelet has ended what runs in it."""
        metadata = thing["metadata"]
        if metadata["uid"] in self.held:
            if "deletionTimestamp" not in metadata:
                metadata["deletionTimestamp"] = now()
                self.touch(thing)
            return
        self.forget(thing)

    def forget(self, thing: Object) -> None:
        """It is gone, from this moment on."""
        self._objects.pop(self._key(_BY_KIND[thing["kind"]], thing["metadata"]), None)

    def collect_garbage(self) -> None:
        """Deletes what had owners, none of which is left."""
        uids = {thing["metadata"]["uid"] for thing in self._objects.values()}
        for thing in list(self._objects.values()):
            owners = _owners(thing)
            if owners and not owners & uids:
                self.drop(thing)

    def event(self, about: Object, kind: str, reason: str, message: str) -> None:
        """``kind``: Normal or Warning. What was said already is counted."""
        metadata = about["metadata"]
        for event in self.each("Event", metadata.get("namespace", "")):
            if event["involvedObject"]["uid"] == metadata["uid"] and event["reason"] == reason:
                event["count"] += 1
                event["message"] = message
                event["lastTimestamp"] = now()
                return
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}"},
            "involvedObject": {
                "kind": about["kind"],
                "apiVersion": about["apiVersion"],
                "name": metadata["name"],
                "namespace": metadata.get("namespace", ""),
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now(),
            "lastTimestamp": now(),
        }
        self.add(event, metadata.get("namespace", "default"))

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._objects.values()))


def _owners(thing: Object) -> set[str]:
    return {reference["uid"] for reference in thing["metadata"].get("ownerReferences", ())}


def condition(thing: Object, kind: str, status: bool, reason: str, message: str = "") -> None:
    """Sets a condition of an object's status."""
    conditions = thing.setdefault("status", {}).setdefault("conditions", [])
    word = "True" if status else "False"
    for known in conditions:
        if known["type"] == kind:
            if (known["status"], known["reason"], known["message"]) != (word, reason, message):
                known.update(status=word, reason=reason, message=message, lastTransitionTime=now())
            return
    conditions.append({"type": kind, "status": word, "reason": reason, "message": message, "lastTransitionTime": now()})
