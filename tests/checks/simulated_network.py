"""Facts of the network check as agents report them, from a simulated network: which pairs are open, and how not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from seatrial.checks.network.params import Params
from seatrial.checks.network.schedule import targets, to_ranges
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Fact

Failure = tuple[str, int | None] | str | None
"""How a connection fails, and for large packets which size passes; None: it works."""


def network_evidence(
    count: int,
    failure: Callable[[int, int], Failure] = lambda source, target: None,
    *,
    name_failure: Callable[[int, int], str | None] = lambda source, target: None,
    addresses: Sequence[str] = (),
    names: Sequence[str | None] = (),
    because: str = "route",
    hostnames: Sequence[str] = (),
    silent: Sequence[int] = (),
    deaf: Sequence[int] = (),
    machines: Sequence[str] = (),
    max_nodes: int = 4096,
    environment: str = "none",
    by_ssh: bool = False,
) -> Evidence:
    """Return what the agents report. Each stops as ours do: after 64 failures of one kind, all of them in flight.

    Nobody connects to the nodes in ``deaf``: they could not listen at the address of their ranks.
    """

    def failed(source: int, target: int) -> Failure:
        return None if target in deaf else failure(source, target)

    facts = []
    for node in range(count):
        address = addresses[node] if addresses else f"10.{node >> 16}.{node >> 8 & 255}.{node & 255}"
        own = names[node] if names else address
        places: list[list[Any]] = [] if node in deaf else [["data", address, 40_000 + node % 20_000]]
        if own is not None and own != address:
            places.append(["name", own, 50_000])
        if node == 0:
            places.append(["master", address, 29_500])
        value = {
            "machine": machines[node] if machines else f"m{node}",
            "hostname": hostnames[node] if hostnames else f"node{node}",
            "places": places,
            "because": because,
            "name": own,
            "environment": environment,
            "by_ssh": by_ssh,
            "master_port_set": False,
        }
        facts.append(Fact(check="network", name="node", value=value, node_rank=node, stage="listen"))
    for node in range(count):
        if node not in silent:
            value = _connections(count, node, failed, name_failure, names, max_nodes)
            facts.append(Fact(check="network", name="connections", value=value, node_rank=node, stage="connect"))
    nodes = {node: hostnames[node] if hostnames else f"node{node}" for node in range(count)}
    return Evidence(ranks={}, asked=(), measurements=(), facts=tuple(facts), nodes=nodes)


def _connections(
    count: int,
    source: int,
    failure: Callable[[int, int], Failure],
    name_failure: Callable[[int, int], str | None],
    names: Sequence[str | None],
    max_nodes: int,
) -> dict[str, Any]:
    everybody = count <= max_nodes
    first, rest = targets(range(count), source, everybody=everybody)
    order = [*first, *rest]
    failed: defaultdict[tuple[str, str, int | None], list[int]] = defaultdict(list)
    kinds: defaultdict[str, int] = defaultdict(int)
    begun = 0
    for start in range(0, len(order), Params().at_once):  # a wave waits for its slowest, a timeout
        if max(kinds.values(), default=0) >= Params().max_failures:
            break
        for target in order[start : start + Params().at_once]:
            begun += 1
            how = failure(source, target)
            if how is not None:
                how, passes_bytes = how if isinstance(how, tuple) else (how, None)
                failed["data", how, passes_bytes].append(target)
                kinds[how] += 1
            if names and (of_name := name_failure(source, target)) is not None:
                failed["name", of_name, None].append(target)
    return {
        "everybody": everybody,
        "untried": to_ranges(order[begun:]),
        "failed": [
            {"role": role, "how": how, "passes_bytes": passes_bytes, "nodes": to_ranges(nodes)}
            for (role, how, passes_bytes), nodes in failed.items()
        ],
    }


def with_failed(evidence: Evidence, source: int, role: str, target: int, how: str = "refused") -> Evidence:
    """Add a connection that failed to what a node reports."""
    entry = {"role": role, "how": how, "passes_bytes": None, "nodes": [[target, target]]}
    facts = tuple(
        replace(fact, value={**fact.value, "failed": [*fact.value["failed"], entry]})
        if (fact.name, fact.node_rank) == ("connections", source)
        else fact
        for fact in evidence.facts
    )
    return replace(evidence, facts=facts)
