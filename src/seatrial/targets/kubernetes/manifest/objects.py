"""The objects besides the workload: bundle, token, the Service that names the pods, and the NetworkPolicy."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
from collections.abc import Mapping
from itertools import pairwise

from seatrial import start
from seatrial.errors import RequestError
from seatrial.targets.kubernetes.manifest.workload import Object, Workload

BUNDLE = "seatrial.pyz"
START = "start.py"
SSH_KEY = "ssh-privatekey"
"""Where the key of ssh is in the Secret of the run."""
_PART_BYTES = 190_000
"""Size of a part of the bundle in one ConfigMap, which becomes 253,739 bytes in the annotation below."""
_MAX_ANNOTATION_BYTES = 256 * 1024
"""The limit of Kubernetes for all annotations of an object; a plain ``kubectl apply`` copies the object into one."""
_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"


def labels(workload: Workload) -> Object:
    """Return the labels of every object and every pod of the run, which select all of it for deletion."""
    return {
        "app.kubernetes.io/name": "seatrial",
        "app.kubernetes.io/instance": workload.run,
        "app.kubernetes.io/managed-by": "seatrial",
    }


def metadata(workload: Workload, name: str | None = None) -> Object:
    """Return the metadata of an object of the run. ``name``: default, the name of the run."""
    namespace = {} if workload.namespace is None else {"namespace": workload.namespace}
    return {"name": name or workload.run, **namespace, "labels": labels(workload)}


def part_names(workload: Workload) -> list[str]:
    """Return the names of the parts of the bundle, in the order in which they are joined."""
    return [
        name for contents in _contents(workload) for name, content in contents.items() if isinstance(content, bytes)
    ]


def _contents(workload: Workload) -> list[Mapping[str, str | bytes]]:
    """Return the contents of each ConfigMap: the first holds all texts, and each one a part of the bundle."""
    texts = {name: content.decode() for name, content in workload.files.items()}
    if workload.bundle is None:
        return [texts] if texts else []
    texts = {START: _start_script(), **texts}
    # Base64 makes four characters of three bytes; a text takes its size in JSON.
    first_bytes = max(_PART_BYTES - len(json.dumps(texts)) * 3 // 4, 0)
    ends = [*range(first_bytes, len(workload.bundle), _PART_BYTES), len(workload.bundle)]
    parts = [workload.bundle[begin:end] for begin, end in pairwise([0, *ends])]
    named = [{f"{BUNDLE}.{number}": part} for number, part in enumerate(parts, start=1)]
    return [{**texts, **named[0]}, *named[1:]]


def _start_script() -> str:
    return inspect.getsource(start)


def code_digest(contents: Mapping[str, str | bytes]) -> str:
    """Return the SHA-256 of names and contents, as a pod computes it before it uses the files (``pod.py``)."""
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        plain = content if isinstance(content, bytes) else content.encode()
        digest.update(f"{name} {len(plain)}\n".encode() + plain)
    return digest.hexdigest()


def code_contents(workload: Workload) -> dict[str, str | bytes]:
    """Return what the pods see in the folder of all ConfigMaps: name -> content."""
    return {name: content for contents in _contents(workload) for name, content in contents.items()}


def _code_name(workload: Workload, contents: Mapping[str, str | bytes]) -> str:
    return f"{workload.run}-{code_digest(contents)[:8]}"


def code_volume(workload: Workload) -> Object | None:
    """Return the volume that shows all ConfigMaps as one folder; None if there are none."""
    maps = [{"name": _code_name(workload, contents)} for contents in _contents(workload)]
    return {"projected": {"sources": [{"configMap": reference} for reference in maps]}} if maps else None


def code_maps(workload: Workload) -> list[Object]:
    """Return the ConfigMaps with the bundle and the files, each named with a digest of its contents.

    Raises RequestError for a ConfigMap that is too large for a plain ``kubectl apply``.
    """
    return [_code_map(workload, contents) for contents in _contents(workload)]


def _code_map(workload: Workload, contents: Mapping[str, str | bytes]) -> Object:
    name = _code_name(workload, contents)
    texts = {key: content for key, content in contents.items() if isinstance(content, str)}
    parts = {key: base64.b64encode(content).decode() for key, content in contents.items() if isinstance(content, bytes)}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(workload, name),
        "immutable": True,
        **({"data": texts} if texts else {}),
        **({"binaryData": parts} if parts else {}),
    }
    size = len(_ANNOTATION) + len(json.dumps(config_map, separators=(",", ":")))
    if size > _MAX_ANNOTATION_BYTES:
        raise RequestError(
            f"the ConfigMap {name} would need an annotation of {size:,} bytes, and Kubernetes allows"
            f" {_MAX_ANNOTATION_BYTES:,}; use a shorter plan file."
        )
    return config_map


def token_secret(workload: Workload) -> Object:
    """Return the Secret with the token by which the pods of the run authenticate one another, and under MPI the key of
    their ssh."""
    key = {SSH_KEY: workload.ssh_key} if workload.ssh_key else {}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(workload),
        "immutable": True,
        "type": "Opaque",
        "stringData": {"token": workload.token, **key},
    }


def service(workload: Workload, selector: Object) -> Object:
    """Return the headless Service that gives each pod a name, even before it is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(workload),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector},
    }


def network_policy(workload: Workload) -> list[Object]:
    """Return the policy that only pods of the run reach pods of the run; none with the host network, which has none."""
    if workload.host_network:
        return []
    pods = {"matchLabels": labels(workload)}
    spec: Object = {
        "podSelector": pods,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": pods}]}],
    }
    if workload.allow_egress:
        spec["policyTypes"] = ["Ingress", "Egress"]
        names = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
        spec["egress"] = [{"to": [{"podSelector": pods}]}, {"ports": names}]
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(workload),
            "spec": spec,
        }
    ]
