"""Volumes of pods in the double of a cluster, as folders with the contents, owners and modes that a kubelet gives them.

Not done as a kubelet does it: an emptyDir of the disk has no limit, one in memory belongs to one container, and a claim
is a plain folder of the cluster.
"""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path

from kubernetes.double.store import Object, Store


class NotYetError(Exception):
    """A kubelet waits for this, and says why: (reason of the container, message)."""


def make_volume(store: Store, pod: Object, volume: Object, folder: Path, claims: Path, *, owner: bool) -> Path:
    """The folder of a volume. ``owner``: give it to the group of the pod's files, which takes root.

    Raises NotYetError for what is not there.
    """
    namespace, name = pod["metadata"]["namespace"], str(volume["name"])
    place = folder / name
    if "persistentVolumeClaim" in volume:
        claim = str(volume["persistentVolumeClaim"]["claimName"])
        if store.get("PersistentVolumeClaim", namespace, claim) is None:
            raise NotYetError("Unschedulable", f'persistentvolumeclaim "{claim}" not found')
        place = claims / str(namespace) / claim
    place.mkdir(parents=True, exist_ok=True)
    group = pod["spec"].get("securityContext", {}).get("fsGroup")
    if "emptyDir" in volume or "persistentVolumeClaim" in volume:
        place.chmod(0o777)
        if owner and group is not None:
            os.chown(place, -1, group)
            place.chmod(0o2777)
        return place
    for path, content, mode in _files(store, namespace, volume):
        file = place / path
        file.write_bytes(content)
        if owner and group is not None:
            os.chown(file, -1, group)
            mode |= 0o440
        file.chmod(mode)
    return place


def _files(store: Store, namespace: str, volume: Object) -> list[tuple[str, bytes, int]]:
    if "projected" in volume:
        parts = ({"name": volume["name"], **source} for source in volume["projected"]["sources"])
        return [file for part in parts for file in _files(store, namespace, part)]
    kind, told = ("Secret", volume["secret"]) if "secret" in volume else ("ConfigMap", volume["configMap"])
    name = told["secretName"] if kind == "Secret" else told["name"]
    thing = store.get(kind, namespace, name)
    if thing is None:
        what = f'MountVolume.SetUp failed for volume "{volume["name"]}" : {kind.lower()} "{name}" not found'
        raise NotYetError("ContainerCreating", what)
    contents = contents_of(thing)
    mode = told.get("defaultMode", 0o644)
    if "items" not in told:
        return [(key, content, mode) for key, content in contents.items()]
    return [(item["path"], contents[item["key"]], item.get("mode", mode)) for item in told["items"]]


def contents_of(thing: Object) -> dict[str, bytes]:
    """Of a ConfigMap or a Secret, by key."""
    coded = thing.get("data", {}) if thing["kind"] == "Secret" else thing.get("binaryData", {})
    plain = {} if thing["kind"] == "Secret" else thing.get("data", {})
    decoded = {key: base64.b64decode(content) for key, content in coded.items()}
    return {**decoded, **{key: text.encode() for key, text in plain.items()}}


def memory_bytes(volume: Object) -> int | None:
    """The size of an emptyDir in memory; None for all other volumes."""
    told = volume.get("emptyDir", {})
    if told.get("medium") != "Memory":
        return None
    return quantity_bytes(told.get("sizeLimit", "1Gi"))


def quantity_bytes(quantity: str | None) -> int | None:
    """Of memory, as manifests tell it."""
    if quantity is None:
        return None
    match = re.fullmatch(r"([0-9]+)(Ki|Mi|Gi|Ti)?", quantity)
    assert match, quantity
    return int(match[1]) << 10 * ("", "Ki", "Mi", "Gi", "Ti").index(match[2] or "")


def environment(
    store: Store, pod: Object, container: Object, first: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Command and environment: later variables win, known ones are put in for ``$(NAME)``.

    ``first``: what the kubelet and the image bring. Raises NotYetError for what is not there.
    """
    environ = dict(first)
    for entry in container.get("env", ()):
        if "valueFrom" in entry:
            value = _value(store, pod, entry["valueFrom"])
            if value is None:
                continue
        else:
            value = _expanded(entry.get("value", ""), environ)
        environ[entry["name"]] = value
    words = [*container.get("command", ()), *container.get("args", ())]
    return [_expanded(word, environ) for word in words], environ


def _value(store: Store, pod: Object, source: Object) -> str | None:
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    kind = "Secret" if "secretKeyRef" in source else "ConfigMap"
    told = source["secretKeyRef" if kind == "Secret" else "configMapKeyRef"]
    thing = store.get(kind, pod["metadata"]["namespace"], told["name"])
    contents = {} if thing is None else contents_of(thing)
    if told["key"] in contents:
        return contents[told["key"]].decode()
    if told.get("optional"):
        return None
    if thing is None:
        raise NotYetError("CreateContainerConfigError", f'{kind.lower()} "{told["name"]}" not found')
    place = f"{pod['metadata']['namespace']}/{told['name']}"
    raise NotYetError("CreateContainerConfigError", f"couldn't find key {told['key']} in {kind} {place}")


def _field(pod: Object, path: str) -> str:
    match = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if match:
        return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
    node: object = pod
    for part in path.split("."):
        node = node.get(part, "") if isinstance(node, dict) else ""
    return str(node)


def _expanded(text: str, environ: dict[str, str]) -> str:
    def put_in(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environ.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)", put_in, text)
