"""Differences in properties: between the nodes, and from the values that the user requests. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from seatrial.checks.inventory.device_counts import Reports
from seatrial.checks.inventory.params import Params
from seatrial.checks.inventory.properties import MEMORY_TOLERANCE, Property
from seatrial.checks.inventory.rules import property_rule
from seatrial.checks.shared.host_inventory import HostInventory, culprit, listed, shares_of_votes, split
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Limit
from seatrial.util.text import as_name

_NOBODY = Culprit(kind="none", name="nobody: no kind has more than half of the nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Ranks that differ from the majority in one property; without a majority, all ranks."""

    property: Property
    ranks: tuple[int, ...]
    has_majority: bool
    line: str
    """All values with their nodes, for the evidence."""


def unlike_requested(
    evidence: Evidence, params: Params, about: Property, values: Mapping[int, Any], fleet: Sequence[HostInventory]
) -> Iterator[Finding]:
    """Yield a finding for each value that is not the one that the user requests. ``values``: by rank."""
    requested, rule = getattr(params, about.key), property_rule(about, params)
    wrong: defaultdict[str, list[int]] = defaultdict(list)
    for rank, value in values.items():
        if not about.fits(value, requested):
            wrong[_reported(about, value)].append(rank)
    for text, ranks in wrong.items():
        named = culprit(evidence, ranks, fleet)
        yield Finding(
            severity="fail",
            check="inventory",
            what=f"{about.label} of {named.name} is {text} where {rule.requirement} is requested",
            culprit=named,
            measured=f"{len(ranks)} of {len(values)} ranks differ",
            limit=Limit(value=0, unit="ranks", origin=rule.origin),
            action=f"{about.remedy}, or correct inventory.{about.key} in the plan.",
        )


def unlike_others(
    about: Property, reports: Reports, values: Mapping[int, Any], fleet: Sequence[HostInventory]
) -> Iterator[Difference]:
    """Yield the ranks that differ from the others. ``values``: by rank.

    Memory is compared within each device model only, because two models differ in memory anyway.
    """
    parts: defaultdict[Hashable, dict[int, Any]] = defaultdict(dict)
    for rank, value in values.items():
        parts[reports[rank].get("device") if about.name == "memory" else None][rank] = value
    for part in parts.values():
        parted = split(_rounded(part, fleet) if about.name == "memory" else part, fleet)
        if parted is None:
            continue
        kinds = dict(parted.odd)
        if parted.majority is not None:
            odd_ranks = {rank for ranks in parted.odd.values() for rank in ranks}
            kinds[parted.majority] = tuple(rank for rank in part if rank not in odd_ranks)
        texts = [
            f"{_reported(about, value)} on {listed('node', _nodes(ranks, fleet))}" for value, ranks in kinds.items()
        ]
        line = f"{about.label}: {'; '.join(texts)}"
        if parted.majority is None:
            yield Difference(property=about, ranks=tuple(sorted(part)), has_majority=False, line=line)
            continue
        for ranks in parted.odd.values():
            yield Difference(property=about, ranks=ranks, has_majority=True, line=line)


def _reported(about: Property, value: Any) -> str:
    """Return the value of a host, which chooses its words; memory is a number."""
    return about.text(value) if about.name == "memory" else as_name(about.text(value))


def _nodes(ranks: Sequence[int], fleet: Sequence[HostInventory]) -> list[str]:
    return [machine.name for machine in fleet if not set(machine.ranks).isdisjoint(ranks)]


def _rounded(values: Mapping[int, float], fleet: Sequence[HostInventory]) -> dict[int, Hashable]:
    """Replace all values within the tolerance of the most frequent ones by one value."""
    weights: defaultdict[float, Fraction] = defaultdict(Fraction)
    for rank, share in shares_of_votes(values, fleet).items():
        weights[values[rank]] += share
    ordered = sorted(weights)
    best = (Fraction(0), 0, 0)
    first, inside = 0, Fraction(0)
    for last, value in enumerate(ordered):
        inside += weights[value]
        while value > ordered[first] * (1 + MEMORY_TOLERANCE):
            inside -= weights[ordered[first]]
            first += 1
        best = max(best, (inside, first, last))
    alike = ordered[best[1] : best[2] + 1]
    common = max(alike, key=lambda value: weights[value])
    return {rank: common if alike[0] <= value <= alike[-1] else value for rank, value in values.items()}


def merge_differences(
    evidence: Evidence, differences: Sequence[Difference], fleet: Sequence[HostInventory]
) -> Iterator[Finding]:
    """Yield one finding for ranks that differ in several properties: an old image has an old torch, CUDA and NCCL."""
    groups: defaultdict[tuple[tuple[int, ...], bool, str], list[Difference]] = defaultdict(list)
    for difference in differences:
        groups[difference.ranks, difference.has_majority, difference.property.severity].append(difference)
    for (ranks, has_majority, severity), members in groups.items():
        labels = ", ".join(dict.fromkeys(member.property.label for member in members))
        names = ", ".join(f'"{name}"' for name in dict.fromkeys(member.property.name for member in members))
        remedies = ", ".join(dict.fromkeys(member.property.remedy for member in members))
        named = culprit(evidence, ranks, fleet) if has_majority else _NOBODY
        verb = "differ" if named.name.startswith(("nodes ", "ranks ")) else "differs"
        what = f"{named.name} {verb} from the rest in {labels}"
        if not has_majority:
            what = f"the nodes differ and are not separable: no kind has more than half of the nodes: {labels}"
        yield Finding(
            severity="fail" if severity == "fail" else "warn",
            check="inventory",
            what=what,
            culprit=named,
            evidence=tuple(dict.fromkeys(member.line for member in members)),
            action=f"{remedies}, or allow it with allow_mixed = [{names}].",
        )
