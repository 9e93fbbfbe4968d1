"""The fabrics of a cluster, and the quantities that are compared on each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from seatrial.checks.check import Rule, user_rule
from seatrial.checks.links.params import Params
from seatrial.checks.links.solver import LinkLimits, Topology
from seatrial.evidence.evidence import Evidence

BETWEEN_NODES = "nodes"
EFFECTS = {"cpu": 0.5, "cuda": 0.10}
"""The share by which a link is slower than its healthy peers when it counts as slow, by device kind. Between processes
on CPUs a factor of two is common."""
FLOORS_S = {"cpu": 1e-3, "cuda": 50e-6}
"""Seconds added to all latencies before they are compared, by device kind: what a scheduler adds is no fault."""
MAX_RESENT = 0.01
"""The share of TCP segments that a pair may send again beyond what healthy pairs do. Without contention, pairs of busy
hosts sent less than 0.01 % again; with a host that lost 5 % it was 2.6 to 6.1 % (``docs/culprits.md``)."""
HEALTHY_PAIRS = "fleet: what healthy pairs reach"
OTHER_DIRECTION = "fleet: what the other direction reaches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Members that are compared with one another: the devices of one node, or one device of each node."""

    name: str
    topology: Topology
    limits: LinkLimits
    inside: bool = False
    """Whether the fabric lies within one node."""

    @property
    def limit_origin(self) -> str:
        """The origin of the limit for GB/s, in the words of ``Limit.origin``."""
        reference = HEALTHY_PAIRS if len(self.topology.members) > 2 else OTHER_DIRECTION
        return self.limits.origin or f"{reference} x {1 - self.limits.effect:.2g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A measurement of which less is better. The solver compares one over the measurement plus its floor."""

    measurement: str
    """The name of the measurement."""
    floor: float
    """Added to each value, in the unit of the measurement."""
    unit: str
    effect: float
    """The share by which a rate (one over the cost) below that of healthy pairs counts as slow."""
    verb: str
    """The words between a culprit and its value."""
    text: Callable[[float], str]
    """Returns a value for a reader."""
    both_ways: bool = False
    """Whether a value covers both directions of its pair."""

    def max_value(self, reference: float) -> float:
        """Return the limit for a value. ``reference``: the rate of healthy pairs, one over their cost."""
        return 1 / (reference * (1 - self.effect)) - self.floor

    @property
    def requirement(self) -> str:
        """The limit as a person reads it, from the value of healthy pairs."""
        more = 1 / (1 - self.effect) - 1
        return f"at most {more:.0%} and {self.text(self.floor * more)} more than healthy pairs"


def device_kind(evidence: Evidence) -> str:
    """Return the key of ``EFFECTS`` and ``FLOORS_S``: ``cpu`` or ``cuda``."""
    return "cpu" if evidence.device_type == "cpu" else "cuda"


def costs(kind: str) -> tuple[Cost, ...]:
    """Return the quantities that are compared in addition to GB/s. ``kind``: as of ``device_kind``."""
    effect = EFFECTS[kind]
    return (
        Cost(
            measurement="latency_us",
            floor=FLOORS_S[kind] * 1e6,
            unit="us",
            effect=effect,
            verb="has a latency of",
            text=lambda value: f"{value:.0f} us",
            both_ways=True,
        ),
        Cost(
            measurement="resent_share",
            # With this floor the limit is MAX_RESENT above the share of healthy pairs, whatever the effect is.
            floor=MAX_RESENT * (1 - effect) / effect,
            unit="1",
            effect=effect,
            verb="makes TCP send again",
            text=lambda value: f"{max(value, 0.0) * 100:.2f} %",
        ),
    )


def user_gbps_rule(params: Params) -> Rule:
    """Return the rule for the rate between nodes that only the user can set."""
    return user_rule("gbps", "at least", params.min_gbps, "GB/s", key="links.min_gbps", condition="pairs of nodes")


def ranks_of_hosts(evidence: Evidence) -> dict[int, tuple[int, ...]]:
    """Return the ranks of each host, by the lowest number of its nodes.

    Where each rank has a separate agent (torchrun, mpirun, srun) a host is several nodes that joined from one place: it
    has one network, and one word about it. If all nodes joined from one place, those of one name are a host, unless
    they are the nodes of ``--nodes N``.
    """
    nodes: dict[int, list[int]] = {}
    for rank, seen in sorted(evidence.ranks.items()):
        nodes.setdefault(seen.node_rank, []).append(rank)
    places: dict[int, str | int] = {node: evidence.places_of_nodes.get(node) or node for node in nodes}
    if len(set(places.values())) == 1:
        first = [evidence.ranks[ranks[0]] for ranks in nodes.values()]
        # The nodes of ``--nodes N`` stand for N hosts: each has a local rank 0.
        stand_for_hosts = not any(seen.local_rank for seen in first)
        places = {seen.node_rank: seen.node_rank if stand_for_hosts else seen.hostname for seen in first}
    hosts: dict[str | int, list[int]] = {}
    for node in sorted(nodes):
        hosts.setdefault(places[node] or node, []).append(node)
    return {numbers[0]: tuple(sorted(rank for node in numbers for rank in nodes[node])) for numbers in hosts.values()}


def fabrics(evidence: Evidence, params: Params) -> Iterator[Fabric]:
    """Yield the fabrics of a cluster: the devices of each host, then one device of each host."""
    nodes = ranks_of_hosts(evidence)
    effect = EFFECTS[device_kind(evidence)]
    for node_rank, ranks in sorted(nodes.items()):
        # Between processes on the CPUs of one node there is no cable: other processes there make transfers slow.
        if len(ranks) > 1 and evidence.device_type != "cpu":
            topology = Topology(members=ranks, kind="device")
            name = f"devices of node {node_rank}"
            yield Fabric(name=name, topology=topology, limits=LinkLimits(effect=effect), inside=True)
    if len(nodes) < 2:
        return
    rule = user_gbps_rule(params)
    limits = LinkLimits(effect=effect, gbps=rule.value, origin="" if rule.value is None else rule.origin)
    # Processes on CPUs share the NICs of their node; each device may have a separate NIC, and then belongs to a rail.
    of_rails: defaultdict[int, list[int]] = defaultdict(list)
    for _, ranks in sorted(nodes.items()):
        for index, rank in enumerate(ranks[:1] if evidence.device_type == "cpu" else ranks):
            of_rails[index].append(rank)
    rails = len(of_rails)
    for index, members in sorted(of_rails.items()):
        if len(members) > 1:
            name = BETWEEN_NODES if rails == 1 else f"{BETWEEN_NODES}, rail {index}"
            yield Fabric(name=name, topology=Topology(members=tuple(members)), limits=limits)
