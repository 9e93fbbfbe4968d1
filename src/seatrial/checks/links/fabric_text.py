"""Culprits and findings of one fabric, in sentences."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from seatrial.checks.links.fabrics import BETWEEN_NODES, HEALTHY_PAIRS, Cost, Fabric, ranks_of_hosts
from seatrial.checks.links.solver import Diagnosis, DirectedLink, Suspect
from seatrial.checks.shared.speed import CPU_SHARE
from seatrial.evidence.evidence import Evidence, short_names
from seatrial.evidence.findings import Culprit, Finding, Limit
from seatrial.evidence.statistics import median
from seatrial.protocol.fabric_errors import MTU_ACTION, read_connect_error

_WITNESSES = 2
"""The least number of other nodes by which a link within a node is slow by fault, not by design: one may lie."""
_MOST_LINES = 6
"""The largest number of links in the evidence of one finding."""
_ACTIONS = {
    "node": "check its NIC, cable and switch port (errors, negotiated speed), and what else uses them",
    "device": "check its NIC, NVLink or PCIe link (width, speed, errors), and what else uses them",
    "link": "check the path between the two: cable, switch ports, routes; swap the cable and repeat the trial",
    "fabric": "check what these have in common: a switch, its uplinks, or the network settings",
}
_TWO_ENDS = (
    "repeat the trial while nothing else runs on the two; if it is slow again, swap the cable; if that changes "
    "nothing, pair each of the two with a third node: the one that is slow there too is at fault"
)
_HELD_CPU = "end what else runs on these nodes and repeat the trial"
_COMPARE_WIRING = "compare with how they are wired (nvidia-smi topo -m): pairs of one node may differ by design"
_ONE_MACHINE = "all of these processes are on one machine: see what else uses its cores, and start fewer processes"


_Position = tuple[int, int, str, str]
"""Numbers of two ranks on their host, and their devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """The reports of all ranks, to look up what each of any number of findings needs."""

    host_of: Mapping[int, int]
    """Rank -> its host."""
    ranks_of: Mapping[int, tuple[int, ...]]
    """Host -> its ranks."""
    inside: Mapping[_Position, Mapping[int, float]]
    """Link within a host -> host -> its rate there; a host has one vote, and a rank may repeat its own."""
    ordered: Mapping[_Position, Sequence[float]]
    """The same rates, ascending."""
    answered: Set[frozenset[int | None]]
    """Pairs that answered a ping."""
    cpu_shares: Mapping[frozenset[int | None], Mapping[int, float]]
    """Pair -> rank -> the least share of the CPU time that it got."""
    short_name: Callable[[int], str]

    def position(self, evidence: Evidence, a: int, b: int) -> _Position:
        """Return where two ranks are on their hosts."""
        ranks = evidence.ranks
        one, other = (bisect_left(self.ranks_of[self.host_of[rank]], rank) for rank in (a, b))
        return one, other, ranks[a].device, ranks[b].device


def read_reports(evidence: Evidence) -> Reports:
    """Return what the ranks reported."""
    ranks_of = ranks_of_hosts(evidence)
    cpu_shares = defaultdict[frozenset[int | None], dict[int, float]](dict)
    reports = Reports(
        host_of={rank: host for host, ranks in ranks_of.items() for rank in ranks},
        ranks_of=ranks_of,
        inside=defaultdict(dict),
        ordered={},
        answered={frozenset((one.rank, one.peer)) for one in evidence.measurements if one.name == "latency_us"},
        cpu_shares=cpu_shares,
        short_name=short_names(evidence.ranks),
    )
    values = defaultdict[tuple[_Position, int], dict[tuple[int, int, str], float]](dict)
    for entry in evidence.measurements:
        if entry.rank is None:
            continue
        if entry.name == "cpu_share":
            shares = cpu_shares[frozenset((entry.rank, entry.peer))]
            shares[entry.rank] = min(entry.value, shares.get(entry.rank, 1.0))
        host = reports.host_of[entry.rank]
        if entry.name == "gbps" and entry.peer is not None and reports.host_of[entry.peer] == host:
            position = reports.position(evidence, entry.rank, entry.peer)
            values[position, host][entry.rank, entry.peer, entry.stage] = entry.value
    inside = defaultdict[_Position, dict[int, float]](dict)
    for (position, host), reported in values.items():
        rate = median([*reported.values()])
        inside[position][host] = -math.inf if math.isnan(rate) else rate
    ordered = {position: sorted(by_host.values()) for position, by_host in inside.items()}
    return replace(reports, inside=inside, ordered=ordered)


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricText:
    """Names the members, links and culprits of one fabric."""

    evidence: Evidence
    fabric: Fabric
    reports: Reports
    is_one_machine: bool
    """Whether all members are on one machine: a node that starts as several has one name (judge/host_names.py)."""

    def member_name(self, rank: int) -> str:
        """Return the name of one member: its node, or its device if a node has several."""
        seen = self.evidence.ranks[rank]
        return f"node {self._place(rank)}" if self.fabric.name == BETWEEN_NODES else seen.label()

    def _place(self, rank: int) -> str:
        """Return the node of a rank, with its number where others have the same name."""
        seen = self.evidence.ranks[rank]
        is_shared = not self.fabric.inside and self.is_one_machine
        return f"{seen.place}#{seen.node_rank}" if is_shared else seen.place

    def link_name(self, a: int, b: int) -> str:
        """Return the name of the link between two members."""
        # Inside of a node both ends are on it.
        end = self._end_name(b) if self.fabric.name.startswith(BETWEEN_NODES) else self.reports.short_name(b)
        return f"link {self._end_name(a)}–{end}"

    def _end_name(self, rank: int) -> str:
        return self._place(rank) if self.fabric.name.startswith(BETWEEN_NODES) else f"rank {rank}"

    def culprit(self, suspect: Suspect) -> Culprit:
        """Return the culprit that the solver named, with all its ranks and nodes."""
        ranks = suspect.members
        nodes = tuple(dict.fromkeys(self.evidence.ranks[rank].node for rank in ranks))
        if suspect.kind == "link":
            name = self.link_name(*ranks) + (", endpoints not separable" if suspect.inseparable else "")
            return Culprit(kind="link", name=name, ranks=ranks, nodes=nodes)
        if suspect.kind in ("node", "device"):
            name = self.member_name(ranks[0])
            if self.fabric.name != BETWEEN_NODES:
                return Culprit(kind="device", name=name, ranks=ranks, nodes=nodes)
            ranks = self.reports.ranks_of[self.reports.host_of[ranks[0]]]
            return Culprit(kind="node", name=name, ranks=ranks, nodes=nodes)
        name = f"the fabric between {', '.join(nodes[:8])}" if len(nodes) > 1 else f"communication inside {nodes[0]}"
        return Culprit(kind="fabric", name=name, ranks=ranks, nodes=nodes)

    def finding(self, suspect: Suspect, diagnosis: Diagnosis, cost: Cost | None) -> Finding:
        """Return the finding on one culprit: its value, that of its peers, the reasons, and what to do.

        ``cost``: the quantity that the diagnosis compared; None: GB/s.
        """
        culprit = self.culprit(suspect)
        worst = min(suspect.evidence, key=lambda link: link.ratio, default=None)
        measured, limit, peers = "", None, ""
        if worst is not None:
            reference = worst.rate / worst.ratio if worst.ratio else diagnosis.reference or 0.0
            measured = worst.failed or _value_text(worst.rate, cost)
            whose = "its peers" if len(self.fabric.topology.members) > 2 else "the other direction"
            peers = f", {whose} {_value_text(reference, cost)}" if reference else ""
            if diagnosis.limit is not None and cost is None:
                limit = Limit(value=diagnosis.limit, unit="GB/s", origin=self.fabric.limit_origin)
            elif cost is not None and reference:
                limit = Limit(value=round(cost.max_value(reference), 4), unit=cost.unit, origin=HEALTHY_PAIRS)
        what = f"{culprit.name}{self._direction(suspect)}" + (
            f": {suspect.why}"
            if worst is None
            else f" {worst.times} ({worst.failed})"
            if worst.failed_at_times and worst.failed
            else f" carries nothing ({worst.failed})"
            if worst.failed
            else f" {'reaches' if cost is None else cost.verb} {measured}{peers}"
        )
        if worst is not None and worst.failed:
            # The reason of a link that failed: closed ports, wrong names and MTU are no matter of cables.
            action = self._failed_action(suspect.evidence) or _ACTIONS[culprit.kind]
        else:
            action = _ACTIONS[culprit.kind]
        is_sure = not self.fabric.inside or worst is None or bool(worst.failed)
        if suspect.inseparable and not self.fabric.inside and worst is not None and not worst.failed:
            action = _TWO_ENDS
        if not self.fabric.inside and self.is_one_machine:
            # There is no cable between processes of one machine.
            action = _ONE_MACHINE
        if worst is not None and cost is None:
            num_clean, num_others = self.clean_elsewhere(worst, diagnosis.limit)
            is_sure = is_sure or (num_others >= _WITNESSES and 2 * num_clean > num_others)
        shares: tuple[str, ...] = ()
        if suspect.lacked_cpu:
            is_sure, action, shares = False, _HELD_CPU, tuple(self._cpu_shares(suspect.evidence))
            what += "; other processes held the CPU, so this could not be judged"
        return Finding(
            severity="fail" if is_sure else "warn",
            check="links",
            what=what,
            culprit=culprit,
            measured=measured,
            limit=limit,
            evidence=(f"{suspect.confidence}: {suspect.why}", *self._link_lines(suspect.evidence, cost), *shares),
            action=_COMPARE_WIRING if self.fabric.inside and not is_sure else action,
        )

    def _failed_action(self, links: Iterable[DirectedLink]) -> str:
        """Return what the reasons of failed links ask for; empty where they say nothing."""
        failed = [link for link in links if link.failed]
        errors = [error for link in failed if (error := read_connect_error(link.failed)) is not None and error.address]
        if errors:
            return errors[0].action()
        # A pair is pinged with 8 bytes before its transfers, and large packets are lost each time.
        is_by_size = all(
            frozenset((link.source, link.target)) in self.reports.answered and not link.failed_at_times
            for link in failed
        )
        return MTU_ACTION if is_by_size else ""

    def _direction(self, suspect: Suspect) -> str:
        if suspect.direction == "both":
            return ""
        if suspect.kind == "link":
            a, b = suspect.members if suspect.direction == "send" else suspect.members[::-1]
            return f" (from {self._end_name(a)} to {self._end_name(b)})"
        return " (sending)" if suspect.direction == "send" else " (receiving)"

    def is_contradicted(self, link: DirectedLink, limit_gbps: float | None) -> bool:
        """Return whether one other node, which may lie, decides if the wiring explains this slow link."""
        num_clean, num_others = self.clean_elsewhere(link, limit_gbps)
        return num_clean > 0 and (2 * num_clean == num_others or num_others < _WITNESSES)

    def clean_elsewhere(self, link: DirectedLink, limit_gbps: float | None) -> tuple[int, int]:
        """Return on how many other nodes the same link is clean, and how many have such a link.

        Where it is clean, the wiring does not explain a slow one.
        """
        reports = self.reports
        position = reports.position(self.evidence, link.source, link.target)
        if position not in reports.inside:
            return 0, 0
        ordered, own = reports.ordered[position], reports.inside[position].get(reports.host_of[link.source])
        num_others = len(ordered) - (own is not None)
        if limit_gbps is None:
            return 0, num_others
        num_clean = len(ordered) - bisect_left(ordered, limit_gbps)
        return num_clean - (own is not None and own >= limit_gbps), num_others

    def _cpu_shares(self, links: Iterable[DirectedLink]) -> Iterator[str]:
        """Yield the least share of the CPU time that each end of these links got, where that was too little."""
        pairs = {frozenset((link.source, link.target)) for link in links if link.starved}
        least: dict[int, float] = {}
        for pair in pairs:
            for rank, share in self.reports.cpu_shares.get(pair, {}).items():
                least[rank] = min(share, least.get(rank, 1.0))
        for rank, share in sorted(least.items()):
            if not CPU_SHARE.passes(share):
                yield f"{self._end_name(rank)} got {share * 100:.0f} % of the CPU time that its threads could use"

    def _link_lines(self, links: Iterable[DirectedLink], cost: Cost | None) -> Iterator[str]:
        for link in list(links)[:_MOST_LINES]:
            contention = "alone" if link.uncontended else f"{link.at_once} pairs at once"
            value = link.failed or _value_text(link.rate, cost)
            value += f", {link.times}" if link.failed and link.failed_at_times else ""
            yield f"{self._end_name(link.source)} to {self._end_name(link.target)}: {value}, {contention}"


def _value_text(rate: float, cost: Cost | None) -> str:
    return f"{rate:.3g} GB/s" if cost is None else cost.text(1 / rate - cost.floor)
