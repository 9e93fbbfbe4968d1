"""Names of nodes as findings use them: the names that the controller knows, and what a host calls itself beside. Pure.

A host that lies about its name must not have another one blamed, so its own word counts only where nobody but the hosts
knows names, and there equal words get a number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.judge.trial import NodeRecord, machine_key
from seatrial.util.text import cleaned

_LONGEST_REQUESTED = 255
"""Characters of a name in the request: one of DNS may have as many, and foreign events have a foreign request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostName:
    """The name of one node."""

    name: str
    calls_itself: str = ""
    """The name that the host gives itself; empty where that is the same."""


def host_names(
    job: Mapping[str, Any],
    nodes: Mapping[int, NodeRecord],
    places_of_nodes: Mapping[int, str],
    slurm_nodes: Mapping[int, str],
) -> dict[int, HostName]:
    """Return the name of each node: of the request where that names nodes, else of Slurm, else of the host.

    Where Slurm started the nodes, one that its layout does not name has its number. Elsewhere the names that the nodes
    have in Slurm, as they say, count where each has one, and none has that of another machine. Equal names of hosts get
    the number of the node.

    Args:
        job: The job of the ``run`` event; ``hosts`` are the names by node rank that the controller knows.
        nodes: What each agent says about its node, by node rank.
        places_of_nodes: The place of each node, as of ``Evidence``.
        slurm_nodes: The name of each node in Slurm's layout, as far as that is known.
    """
    known = job.get("hosts")
    own = {node: cleaned(entry.hostname) for node, entry in nodes.items()}
    if isinstance(known, list) and known and all(isinstance(name, str) and name for name in known):
        return {
            node: HostName(name=name, calls_itself="" if _same(name, own.get(node, "")) else own[node])
            for node, name in enumerate(cleaned(name, _LONGEST_REQUESTED) for name in known)
        }
    of_slurm = {node: cleaned(entry.slurm_name) for node, entry in nodes.items()}
    machine = {
        node: machine_key(own[node], entry.address, places_of_nodes.get(node, "")) for node, entry in nodes.items()
    }
    machines: dict[tuple[str, str, str], int] = {}
    for node in sorted(nodes):
        machines.setdefault(machine[node], node)
    shared = len(machines) < len(nodes)
    number = {key: index if shared else node for index, (key, node) in enumerate(machines.items())}
    if "slurm" in (job.get("target"), job.get("launcher")):
        said = {node: of_slurm[node] or own[node] for node in nodes}
        numbers = {node: HostName(name=f"#{number[machine[node]]}", calls_itself=said[node]) for node in nodes}
        laid_out = {node: cleaned(name) for node, name in slurm_nodes.items()}
        return {node: entry for node, entry in numbers.items() if said[node]} | {
            node: HostName(name=name, calls_itself="" if _same(name, own.get(node, "")) else own[node])
            for node, name in laid_out.items()
        }
    machine_of = {name: machine[node] for node, name in of_slurm.items()}
    if all(name and machine_of[name] == machine[node] for node, name in of_slurm.items()):
        return {
            node: HostName(name=name, calls_itself="" if _same(name, own[node]) else own[node])
            for node, name in of_slurm.items()
        }
    names = Counter(name for name, _, _ in machines)
    return {
        node: HostName(name=f"{own[node]} (node {number[machine[node]]})" if names[own[node]] > 1 else own[node])
        for node in nodes
        if own[node]
    }


def false_names(nodes: Mapping[int, NodeRecord], slurm_nodes: Mapping[int, str]) -> dict[int, str]:
    """Return a sentence about each node that claims another name in Slurm than it has there."""
    return {
        node: f"node {node} says that its name in Slurm is {cleaned(entry.slurm_name)}, where Slurm has"
        f" {cleaned(name)}; what reports as node {node} is not what it says, so nothing of it can be trusted"
        for node, entry in sorted(nodes.items())
        if (name := slurm_nodes.get(node)) and entry.slurm_name not in ("", name)
    }


def _same(name: str, own: str) -> bool:
    """Return whether two names mean one host, as far as a person would say: a domain and capitals do not matter."""
    if not own or name == own:
        return True
    if re.fullmatch(r"[0-9.]+", name) or ":" in name:
        return False
    return name.partition(".")[0].lower() == own.partition(".")[0].lower()
