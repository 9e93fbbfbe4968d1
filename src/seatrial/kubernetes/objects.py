"""The objects beside the workload: the code, the secret, the Service that gives pods names, and who may reach them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping

from seatrial.errors import RequestError
from seatrial.kubernetes.workload import Object, Workload
from seatrial.packed import MORE

__all__ = ["BUNDLE", "code_maps", "code_volume", "labels", "metadata", "network_policy", "service", "token_secret"]

BUNDLE = "seatrial.pyz"
_MOST_ANNOTATION_BYTES = 256 * 1024
"""Kubernetes takes so much in all annotations of an object, and plain ``kubectl apply`` keeps the object in one."""
_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"


def labels(workload: Workload) -> Object:
    """On every object and every pod: delete what has them, and nothing of the run is left."""
    return {
        "app.kubernetes.io/name": "seatrial",
        "app.kubernetes.io/instance": workload.run,
        "app.kubernetes.io/managed-by": "seatrial",
    }


def metadata(workload: Workload, name: str | None = None) -> Object:
    """Of an object of this run."""
    place = {} if workload.namespace is None else {"namespace": workload.namespace}
    return {"name": name or workload.run, **place, "labels": labels(workload)}


def _contents(workload: Workload) -> list[Mapping[str, bytes]]:
    """What each ConfigMap holds: the second one has what the first has no room for."""
    code = {} if workload.bundle is None else {BUNDLE: workload.bundle}
    more = {} if workload.more is None else {f"{BUNDLE}{MORE}": workload.more}
    return [files for files in ({**code, **workload.files}, more) if files]


def _code_name(workload: Workload, contents: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return f"{workload.run}-{digest.hexdigest()[:8]}"


def code_volume(workload: Workload) -> Object | None:
    """Where the ConfigMaps are seen as one folder; None where there is nothing to bring along."""
    maps = [{"name": _code_name(workload, contents)} for contents in _contents(workload)]
    if len(maps) > 1:
        return {"projected": {"sources": [{"configMap": each} for each in maps]}}
    return {"configMap": maps[0]} if maps else None


def code_maps(workload: Workload) -> list[Object]:
    """The file that travels and what goes with it, each named with a digest of what is in it.

    Raises RequestError for more than ``kubectl apply`` takes.
    """
    return [_code_map(workload, contents) for contents in _contents(workload)]


def _code_map(workload: Workload, contents: Mapping[str, bytes]) -> Object:
    name = _code_name(workload, contents)
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(workload, name),
        "immutable": True,
        "binaryData": {key: base64.b64encode(content).decode() for key, content in contents.items()},
    }
    size = len(_ANNOTATION) + len(json.dumps(made, separators=(",", ":")))
    if size > _MOST_ANNOTATION_BYTES:
        raise RequestError(
            f"the ConfigMap {name} would be kept in an annotation of {size:,} bytes, and Kubernetes takes"
            f" {_MOST_ANNOTATION_BYTES:,}; use a shorter plan, or an image that has seatrial (--image-has-seatrial)."
        )
    return made


def token_secret(workload: Workload) -> Object:
    """What the pods know one another by."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(workload),
        "immutable": True,
        "type": "Opaque",
        "stringData": {"token": workload.token},
    }


def service(workload: Workload, selector: Object) -> Object:
    """Headless: a name for each of the pods, from before they are ready on."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(workload),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector},
    }


def network_policy(workload: Workload) -> list[Object]:
    """Only pods of the run reach pods of the run. None in the network of the hosts, which policies do not cover."""
    if workload.host_network:
        return []
    own = {"matchLabels": labels(workload)}
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(workload),
            "spec": {
                "podSelector": own,
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": own}]}],
            },
        }
    ]
