"""All objects of a run, with the patches of the user."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from seatrial.errors import RequestError
from seatrial.targets.kubernetes.kind import Kind
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.manifest.objects import code_maps, network_policy, token_secret
from seatrial.targets.kubernetes.manifest.openshift import custom_scc
from seatrial.targets.kubernetes.manifest.pod import COMPONENT
from seatrial.targets.kubernetes.manifest.workload import Object, Patch, Workload


def manifest(kind: str, workload: Workload) -> list[Object]:
    """Return all objects in the order in which they are created; the workload is the last one.

    ``kind``: name of the kind, as after ``--on``.
    """
    kind_of_workload = KINDS[kind]
    workload = kind_of_workload.with_defaults(workload)
    workload = replace(workload, files={**workload.files, **kind_of_workload.files(workload)})
    rendered = kind_of_workload.render(workload)
    objects = [
        *custom_scc(workload),
        token_secret(workload),
        *code_maps(workload),
        *network_policy(workload),
        *(
            _patched(
                thing,
                workload.patch,
                workload.patch.workload if thing is rendered[-1] else _of_runtime(thing, kind_of_workload, workload),
            )
            for thing in rendered
        ),
    ]
    for thing in objects:
        _require_text(thing, thing["kind"])
    return objects


def _of_runtime(thing: Object, kind: Kind, workload: Workload) -> Mapping[str, Any]:
    """Return the patch of an object before the workload: the one for runtimes if the operator brings its kind."""
    is_runtime = kind.operator is not None and thing["kind"] in kind.operator.api_kinds
    return workload.patch.runtime if is_runtime else {}


def _patched(thing: Object, patch: Patch, own: Mapping[str, Any]) -> Object:
    """Return the object with the patches of its pods, then with its ``own``."""
    patched: Object = copy.deepcopy(thing)
    for template in _templates(patched):
        has_ranks = template["metadata"]["labels"][COMPONENT] == "node"
        if has_ranks:
            container = template["spec"]["containers"][0]
            template["spec"]["containers"][0] = merged(container, patch.container)
        pod = merged(template, patch.pod if has_ranks else _without_devices(patch.pod))
        _require_kept(template, pod, "pod")
        template.update(pod)
    result: Object = merged(patched, own)
    _require_kept(patched, result, thing["kind"])
    _require_pods_kept(patched, result)
    return result


def _without_devices(patch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the patch for pods without ranks. The claims of a pod are allocated even if no container uses them, and
    the launcher of MPI would take GPUs that a node of the run waits for (KEP-4381)."""
    spec = patch.get("spec")
    if not isinstance(spec, Mapping):
        return patch
    return {**patch, "spec": {key: value for key, value in spec.items() if key != "resourceClaims"}}


def _require_kept(before: Object, after: Any, words: str) -> None:
    """Raise RequestError for a patch that changes by what seatrial finds, protects and deletes an object."""
    after = after if isinstance(after, Mapping) else {}
    own, changed = before["metadata"], after.get("metadata")
    labels = changed.get("labels") if isinstance(changed, Mapping) else None
    kept = (
        isinstance(changed, Mapping)
        and isinstance(labels, Mapping)
        and all(before.get(key) == after.get(key) for key in ("apiVersion", "kind"))
        and all(own.get(key) == changed.get(key) for key in ("name", "namespace", "generateName"))
        and own["labels"].items() <= labels.items()
        and isinstance(changed.get("annotations", {}), Mapping)
    )
    if not kept:
        raise RequestError(
            f"--patch: it changes the kind, the name, the namespace or a label that seatrial gives the {words}, which"
            " is found by them; leave that out (--name and --namespace set the first two)."
        )


def _require_pods_kept(before: Any, after: Any) -> None:
    """Raise RequestError for a patch of an object that changes by what its pods are found, or removes them."""
    if _is_template(before):
        _require_kept(before, after, "pod")
    elif isinstance(before, dict):
        for key, part in before.items():
            _require_pods_kept(part, after.get(key) if isinstance(after, Mapping) else None)
    elif isinstance(before, list):
        others = after if isinstance(after, list) else []
        for number, part in enumerate(before):
            _require_pods_kept(part, others[number] if number < len(others) else None)


def _require_text(value: Any, path: str) -> None:
    """Raise RequestError for text that no YAML can hold: bytes of a command line that are not UTF-8."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            _require_text(key, path)
            _require_text(part, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for part in value:
            _require_text(part, path)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError(f"{path} of the manifest is no UTF-8 text: {value[:80]!a}; write it in UTF-8.") from None


def _templates(node: Any) -> Iterator[Object]:
    """Yield the pod templates, at any depth of the object."""
    if _is_template(node):
        yield node
        return
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _templates(part)


def _is_template(node: Any) -> bool:
    return isinstance(node, dict) and isinstance(node.get("spec"), dict) and "containers" in node["spec"]


def merged(target: Any, patch: Any) -> Any:
    """Return the target with a JSON merge patch (RFC 7386): mappings merge, null removes, all else is replaced."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
