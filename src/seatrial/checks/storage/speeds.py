"""The speeds of the storage check: of a node, against other nodes and against the user's limits. Pure.

The ranks of a node share its storage, so each speed is that of a node with all its ranks at work. It is kept under the
node's first rank, because the fleet statistics compare ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from seatrial.checks.shared.speed import SpeedWords, copy_ceiling, hosts_of, judge_speeds
from seatrial.checks.storage.node_names import node_culprit
from seatrial.checks.storage.params import Params
from seatrial.checks.storage.rules import QUICK_FSYNC_MS, user_rules
from seatrial.checks.storage.ways import RankFolder, Ways
from seatrial.evidence.evidence import Evidence, short_names
from seatrial.evidence.findings import Culprit, Finding, Judged, Limit, Ruling
from seatrial.evidence.fleets import compare_rates
from seatrial.evidence.measurement import Measurement
from seatrial.evidence.rates import FleetRates
from seatrial.evidence.statistics import median
from seatrial.util.text import and_list, as_name

_VARIANTS = {"write_gbps": ("",), "read_gbps": ("cold", "warm"), "fsync_ms": ("p99",)}
"""The variants of each measurement to which the user's limit applies."""


def judge_fleet_speeds(evidence: Evidence, params: Params, ways: Ways) -> Iterator[Ruling]:
    """Yield a ruling for each node and speed, compared with the nodes on the same kind of file system."""
    cpu_shares = {
        measurement.rank: measurement.value
        for measurement in evidence.measurements
        if (measurement.name, measurement.stage) == ("cpu_share", "repeat") and measurement.rank is not None
    }
    kinds = {fact.value["kind"] for fact in evidence.facts if fact.name == "folder"}
    if len(kinds) > 1 and any(rule.value is None for rule in user_rules(params)):
        # A node chooses by its word with whom it is compared, and how many the others are.
        named = and_list(sorted(as_name(kind or "unknown") for kind in kinds))
        yield Ruling(unjudged=(f"speeds of nodes on different kinds of file system ({named}), by one another",))
    other = short_names(evidence.ranks)
    for name, variant, rates in compared_rates(evidence):
        for ruling in judge_speeds(rates, _words(evidence, ways, name, variant, other), cpu_shares):
            yield replace(ruling, judged=tuple(_by_node(evidence, ruling.judged)))


def _by_node(evidence: Evidence, entries: Iterable[Judged]) -> Iterator[Judged]:
    """Attribute what was judged under a node's first rank to the node."""
    for entry in entries:
        rank = entry.measurement.rank
        node = entry.measurement.node if rank is None else evidence.ranks[rank].node
        yield replace(entry, measurement=replace(entry.measurement, rank=None, node=node))


def judge_user_limits(evidence: Evidence, params: Params, ways: Ways) -> Ruling:
    """Compare what each node reached, with all ranks of all nodes at work, with the user's limits.

    No node is at fault for missing one in a folder that other machines may have: its server may be slow, or who else
    uses that, also a node that says that it is fast. And memory to which another machine may have led is no storage.
    """
    findings, judged, absent = list[Finding](), list[Judged](), list[str]()
    folders: dict[str, list[RankFolder]] = {}
    in_memory = set[str]()
    for fact in evidence.facts:
        if fact.name == "folder" and fact.rank is not None:
            node = evidence.ranks[fact.rank].node
            folders.setdefault(node, []).append((fact.rank, fact.value["path"]))
            in_memory |= {node} if fact.value["in_memory"] else set()
    for rule in user_rules(params):
        if rule.value is None:
            continue
        for measurement in _node_measurements(evidence, rule.measurement, _VARIANTS[rule.measurement]):
            entry, node = rule.judge(replace(measurement, rank=None)), measurement.node or ""
            paths = folders.get(node) or [(measurement.rank or 0, "")]
            if entry.passed and node in in_memory and not all(ways.is_own(*path) for path in paths):
                absent.append(f"{measurement.name} of {node} on its storage: the folder is in memory there")
                continue
            if entry.passed and measurement.variant == "warm" and node not in in_memory:
                absent.append(f"read_gbps of {node} from its storage: the page cache kept the file")
                continue
            judged.append(entry)
            if not entry.passed:
                findings.append(_too_slow(measurement, entry.limit, ways.culprit(evidence, paths)))
    return Ruling(findings=tuple(findings), judged=tuple(judged), absent=tuple(absent))


def _node_measurements(evidence: Evidence, name: str, variants: Iterable[str]) -> Iterator[Measurement]:
    for variant in variants:
        yield from _slowest_appends(evidence, variant) if name == "fsync_ms" else _node_rates(evidence, name, variant)


def _too_slow(measurement: Measurement, limit: Limit, culprit: Culprit) -> Finding:
    """Return the finding for a node."""
    what = {"write_gbps": "writes too slowly", "read_gbps": "reads too slowly", "fsync_ms": "is too slow in fsync"}
    return Finding(
        severity="fail",
        check="storage",
        what=f"node {measurement.node} {what[measurement.name]}, with all its ranks at work",
        culprit=culprit,
        measured=f"{measurement.value:.3g} {measurement.unit}",
        limit=limit,
        action="check its disks or its path to the file server, and what else uses them.",
    )


def compared_rates(evidence: Evidence) -> Iterator[tuple[str, str, FleetRates]]:
    """Yield name, variant and rates of each speed of nodes on one kind of file system."""
    kinds = {fact.rank or 0: fact.value["kind"] for fact in evidence.facts if fact.name == "folder"}
    hosts = evidence.hosts()
    for name, variant in (("write_gbps", ""), ("read_gbps", "cold"), ("read_gbps", "warm"), ("fsync_ms", "median")):
        repeats = (
            measurement
            for measurement in evidence.measurements
            if (measurement.name, measurement.variant, measurement.stage) == (name, variant, "repeat")
        )
        groups: dict[str, list[Measurement]] = {}
        for measurement in (*_node_measurements(evidence, name, (variant,)), *repeats):
            if measurement.rank is not None:
                rate = _appends_per_second(measurement) if name == "fsync_ms" else measurement
                groups.setdefault(kinds.get(measurement.rank, ""), []).append(rate)
        all_hosts = {hosts[measurement.rank or 0] for group in groups.values() for measurement in group}
        for _, group in sorted(groups.items()):
            # Rates of fsync are capped already.
            ceiling = None if name == "fsync_ms" else copy_ceiling()
            own = hosts_of((entry.rank or 0 for entry in group), hosts, all_hosts)
            for rates in compare_rates(group, limits=(), device_type="cpu", ceiling=ceiling, **own):
                yield name, variant, rates


def _node_rates(evidence: Evidence, name: str, variant: str) -> list[Measurement]:
    """Return what the ranks of each node wrote or read together, in GB/s, under the node's first rank."""
    transfers: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for fact in evidence.facts:
        if (fact.name, fact.stage) != ("moved", "measure") or fact.rank is None:
            continue
        if (f"{fact.value['what']}_gbps", fact.value["variant"]) == (name, variant):
            transfers.setdefault(evidence.ranks[fact.rank].node, []).append((fact.rank, fact.value))
    measurements = []
    for node, transfers_by_rank in sorted(transfers.items()):
        values = [value for _, value in transfers_by_rank]
        began_s = min(value["began_s"] for value in values)
        span_s = max(value["began_s"] + value["seconds"] for value in values) - began_s
        longest_s, sum_s = max(value["seconds"] for value in values), sum(value["seconds"] for value in values)
        # Two machines of one name may have different clocks, which must not make the node slow.
        seconds = max(longest_s, min(span_s, sum_s))
        size_bytes = sum(int(value["bytes"]) for value in values)
        measurements.append(
            Measurement(
                check="storage",
                name=name,
                value=size_bytes / seconds / 1e9 if seconds > 0 else 0.0,
                unit="GB/s",
                better="high",
                rank=min(rank for rank, _ in transfers_by_rank),
                variant=variant,
                size_bytes=size_bytes,
                node=node,
            )
        )
    return measurements


def _slowest_appends(evidence: Evidence, variant: str) -> list[Measurement]:
    """Return each node's latency under its first rank: the highest p99 of its ranks, or the median of their medians."""
    latencies: dict[str, list[Measurement]] = {}
    for measurement in evidence.measurements:
        identity = (measurement.name, measurement.variant, measurement.stage)
        if identity == ("fsync_ms", variant, "measure") and measurement.rank is not None:
            latencies.setdefault(evidence.ranks[measurement.rank].node, []).append(measurement)
    reduce = max if variant == "p99" else median
    return [
        replace(
            measurements[0],
            value=float(reduce([measurement.value for measurement in measurements])),
            rank=min(measurement.rank for measurement in measurements if measurement.rank is not None),
            node=node,
        )
        for node, measurements in sorted(latencies.items())
    ]


def _appends_per_second(measurement: Measurement) -> Measurement:
    rate = 1e3 / max(measurement.value, QUICK_FSYNC_MS)
    return replace(measurement, name="fsyncs_per_s", value=rate, unit="fsync/s", better="high")


def _words(evidence: Evidence, ways: Ways, name: str, variant: str, other: Callable[[int], str]) -> SpeedWords:
    def culprit(rank: int) -> Culprit:
        node = evidence.ranks[rank].node
        exchanged = ways.measured.get(node)
        return ways.culprit(evidence, [exchanged]) if exchanged else node_culprit(ways.ranks_of, (node,))

    doing = {"write_gbps": "writing", "read_gbps": f"reading ({variant})", "fsync_ms": "appends with fsync"}[name]
    return SpeedWords(
        check="storage",
        measurement=f"{name} {variant}".strip(),
        speed=f"the speed of {doing}",
        slow_in=f"slow in {doing}",
        action_alone="check its disks or its path to the file server, and the options of its mount.",
        action_together="check what else used its storage, and what the nodes share on their path to it.",
        subject=lambda rank: f"node {evidence.ranks[rank].node}",
        other=other,
        culprit=culprit,
        group="",
    )
