"""All objects of a workload."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from seatrial.kubernetes import job, jobset, mpijob, pytorchjob, trainjob
from seatrial.kubernetes.objects import code_maps, network_policy, token_secret
from seatrial.kubernetes.openshift import custom_scc
from seatrial.kubernetes.pod import COMPONENT
from seatrial.kubernetes.workload import Object, Patch, Workload

__all__ = ["KINDS", "Kind", "manifest", "merged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of workload."""

    render: Callable[[Workload], list[Object]]
    """The objects of this kind; the workload itself is the last one."""
    longest_name: Callable[[Workload], str]
    """Of what the cluster makes of the run's name."""
    files: Callable[[Workload], Mapping[str, bytes]] = lambda workload: {}
    """What its pods need beside the file that travels."""
    takes_host_ports: bool = False
    """Its pods name a port, so in the network of the host no two fit on one node."""


KINDS: Mapping[str, Kind] = {
    "job": Kind(render=job.render, longest_name=job.longest_name),
    "jobset": Kind(render=jobset.render, longest_name=jobset.longest_name),
    "pytorchjob": Kind(render=pytorchjob.render, longest_name=pytorchjob.longest_name, takes_host_ports=True),
    "trainjob": Kind(
        render=trainjob.render, longest_name=trainjob.longest_name, files=trainjob.files, takes_host_ports=True
    ),
    "mpijob": Kind(render=mpijob.render, longest_name=mpijob.longest_name, files=mpijob.files, takes_host_ports=True),
}
"""By the word after ``--on``. A new kind is one new file and its line here."""


def manifest(kind: str, workload: Workload) -> list[Object]:
    """All objects in the order in which they are to be made; the workload is the last one."""
    kept = KINDS[kind]
    workload = replace(workload, files={**workload.files, **kept.files(workload)})
    own = kept.render(workload)
    return [
        *custom_scc(workload),
        token_secret(workload),
        *code_maps(workload),
        *network_policy(workload),
        *(_patched(thing, workload.patch, is_workload=thing is own[-1]) for thing in own),
    ]


def _patched(thing: Object, patch: Patch, *, is_workload: bool) -> Object:
    made = copy.deepcopy(thing)
    for template in _templates(made):
        if template["metadata"]["labels"][COMPONENT] == "node":
            container = template["spec"]["containers"][0]
            template["spec"]["containers"][0] = merged(container, patch.container)
        template.update(merged(template, patch.pod))
    return merged(made, patch.workload) if is_workload else made


def _templates(node: Any) -> Iterator[Object]:
    """Of pods, wherever they are in the object."""
    if isinstance(node, dict):
        if isinstance(node.get("spec"), dict) and "containers" in node["spec"]:
            yield node
            return
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _templates(part)


def merged(target: Any, patch: Any) -> Any:
    """As RFC 7386 says: mappings are merged, null takes a key out, everything else is replaced."""
    if not isinstance(patch, Mapping):
        return patch
    made = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key), value)
    return made
