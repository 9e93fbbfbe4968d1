"""What is compared on a fabric, and how its culprits are told to a person."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from seatrial.checks.links import EFFECTS, FLOORS_S, MOST_RESENT
from seatrial.verdict.culprits import Cell, Diagnosis, Limits, Named, Topology
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Culprit, Finding, Limit
from seatrial.verdict.statistics import median

__all__ = ["BETWEEN", "Cost", "Fabric", "Words", "costs", "limit_origin"]

BETWEEN = "nodes"
_ORIGIN = "fleet: what healthy pairs reach"
_MOST_TOLD = 6
_UNALIKE = "compare with how they are wired (nvidia-smi topo -m): pairs of one node may differ by design"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Members that are compared with one another: the devices of one node, or one device of each node."""

    name: str
    topology: Topology
    limits: Limits
    inside: bool = False
    """Of one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A figure of which less is better. With its floor added to each, one over it is compared as rates are."""

    figure: str
    floor: float
    unit: str
    verb: str
    shown: Callable[[float], str]
    both_ways: bool = False
    """It tells of both directions of its pair alike."""


def costs(device_type: str) -> tuple[Cost, ...]:
    """What is compared besides GB/s."""
    effect = EFFECTS[device_type]
    return (
        Cost(
            figure="latency_us",
            floor=FLOORS_S[device_type] * 1e6,
            unit="us",
            verb="has a latency of",
            shown=lambda value: f"{value:.0f} us",
            both_ways=True,
        ),
        Cost(
            figure="resent_share",
            # So that the limit is that much above what healthy pairs have, whatever the effect that counts.
            floor=MOST_RESENT * (1 - effect) / effect,
            unit="1",
            verb="makes TCP send again",
            shown=lambda value: f"{max(value, 0.0) * 100:.2f} %",
        ),
    )


def limit_origin(fabric: Fabric) -> str:
    """Of the limit of GB/s."""
    return fabric.limits.origin or f"{_ORIGIN} x {1 - fabric.limits.effect:.2g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The culprits of one fabric."""

    evidence: Evidence
    fabric: Fabric

    def who(self, rank: int) -> str:
        """One member: its node, or the device where a node has several."""
        seen = self.evidence.ranks[rank]
        if self.fabric.name == BETWEEN:
            return f"node {seen.node}"
        return seen.label()

    def pair(self, a: int, b: int) -> str:
        """The link between two members."""
        return f"link {self._short(a)}–{self._short(b)}"

    def _short(self, rank: int) -> str:
        return self.evidence.ranks[rank].node if self.fabric.name.startswith(BETWEEN) else f"rank {rank}"

    def culprit(self, named: Named) -> Culprit:
        """Whom the solver named."""
        nodes = tuple(dict.fromkeys(self.evidence.ranks[rank].node for rank in named.members))
        ranks = named.members
        if named.kind == "link":
            name = self.pair(*named.members) + (", endpoints not separable" if named.inseparable else "")
            return Culprit(kind="link", name=name, ranks=ranks, nodes=nodes)
        if named.kind in ("node", "device"):
            if self.fabric.name != BETWEEN:
                return Culprit(kind="device", name=self.who(ranks[0]), ranks=ranks, nodes=nodes)
            number = self.evidence.ranks[ranks[0]].node_rank
            ranks = tuple(rank for rank, seen in self.evidence.ranks.items() if seen.node_rank == number)
            return Culprit(kind="node", name=self.who(ranks[0]), ranks=ranks, nodes=nodes)
        name = f"the fabric between {', '.join(nodes[:8])}" if len(nodes) > 1 else f"communication inside {nodes[0]}"
        return Culprit(kind="fabric", name=name, ranks=ranks, nodes=nodes)

    def finding(self, named: Named, diagnosis: Diagnosis, cost: Cost | None) -> Finding:
        """One culprit: what it reached, what its peers reached, how that was told apart, and what to do.

        ``cost``: what was compared; None: GB/s.
        """
        culprit = self.culprit(named)
        worst = min(named.evidence, key=lambda cell: cell.ratio, default=None)
        way = {"send": " (sending)", "receive": " (receiving)", "both": ""}[named.direction]
        if named.kind == "link" and named.direction != "both":
            a, b = named.members if named.direction == "send" else named.members[::-1]
            way = f" (from {self._short(a)} to {self._short(b)})"
        measured, limit, peers = "", None, ""
        if worst is not None:
            reference = worst.rate / worst.ratio if worst.ratio else diagnosis.reference or 0.0
            measured = worst.failed or _value(worst.rate, cost)
            peers = f", its peers {_value(reference, cost)}" if reference else ""
            if diagnosis.limit is not None and cost is None:
                limit = Limit(value=diagnosis.limit, unit="GB/s", origin=limit_origin(self.fabric))
            elif cost is not None and reference:
                value = 1 / (reference * (1 - self.fabric.limits.effect)) - cost.floor
                limit = Limit(value=round(value, 4), unit=cost.unit, origin=_ORIGIN)
        what = f"{culprit.name}{way} " + (
            f"carries nothing ({worst.failed})"
            if worst is not None and worst.failed
            else f"{'reaches' if cost is None else cost.verb} {measured}{peers}"
            if worst is not None
            else named.why
        )
        is_sure = not self.fabric.inside or worst is None or bool(worst.failed)
        if worst is not None and cost is None:
            is_sure = is_sure or self._is_good_elsewhere(worst, diagnosis.limit)
        return Finding(
            severity="fail" if is_sure else "warn",
            check="links",
            what=what,
            culprit=culprit,
            measured=measured,
            limit=limit,
            evidence=(f"{named.confidence}: {named.why}", *self._cells(named.evidence, cost), *named.details),
            action=_ACTIONS[culprit.kind] if is_sure else _UNALIKE,
        )

    def _is_good_elsewhere(self, cell: Cell, limit_gbps: float | None) -> bool:
        """Whether the same two places of other nodes with such devices are clean: then it is no matter of wiring."""
        seen = self.evidence.ranks

        def place(a: int, b: int) -> tuple[object, ...]:
            return seen[a].local_rank, seen[b].local_rank, seen[a].device, seen[b].device

        rates = [
            each.value
            for each in self.evidence.figures
            if each.name == "gbps" and each.rank is not None and each.peer is not None
            if seen[each.rank].node_rank == seen[each.peer].node_rank != seen[cell.source].node_rank
            if place(each.rank, each.peer) == place(cell.source, cell.target)
        ]
        return limit_gbps is not None and bool(rates) and median(rates) >= limit_gbps

    def _cells(self, cells: Iterable[Cell], cost: Cost | None) -> Iterator[str]:
        for cell in list(cells)[:_MOST_TOLD]:
            crowd = "alone" if cell.quiet else f"{cell.at_once} pairs at once"
            told = cell.failed or _value(cell.rate, cost)
            yield f"{self._short(cell.source)} to {self._short(cell.target)}: {told}, {crowd}"


def _value(rate: float, cost: Cost | None) -> str:
    return f"{rate:.3g} GB/s" if cost is None else cost.shown(1 / rate - cost.floor)


_ACTIONS = {
    "node": "look at its NIC, cable and switch port (errors, negotiated speed), and at what else uses them",
    "device": "look at its NIC, NVLink or PCIe link (width, speed, errors), and at what else uses them",
    "link": "look at the path between the two: cable, switch ports, routes; swap the cable and repeat the trial",
    "fabric": "look at what these have in common: a switch, its uplinks, or the network settings",
}
