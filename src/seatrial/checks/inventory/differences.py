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
from seatrial.checks.shared.host_inventory import Fleet, HostInventory, Split, culprit, listed, shares_of_votes, split
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Limit
from seatrial.util.text import as_name

_MOST_KINDS = 8
"""Kinds that one finding lists: in a record of somebody else there may be as many as ranks, each with a finding."""
_NO_KIND = "no kind has more than half of the nodes"
_TWO_ENDS = f"most are within {100 * MEMORY_TOLERANCE:g} % of either end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Ranks that differ from the majority in one property; if none can be named, all ranks."""

    property: Property
    ranks: tuple[int, ...]
    not_separable: str
    """Why none can be named; empty if these are."""
    line: str
    """The values with their nodes, for the evidence."""


def unlike_requested(
    evidence: Evidence, params: Params, about: Property, values: Mapping[int, Any], fleet: Fleet
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


def unlike_others(about: Property, reports: Reports, values: Mapping[int, Any], fleet: Fleet) -> Iterator[Difference]:
    """Yield the ranks that differ from the others. ``values``: by rank.

    Memory is compared within each device model only, because two models differ in memory anyway.
    """
    parts: defaultdict[Hashable, dict[int, Any]] = defaultdict(dict)
    for rank, value in values.items():
        parts[reports[rank].get("device") if about.name == "memory" else None][rank] = value
    for part in parts.values():
        own = fleet.among(part)
        windows = _windows(part, own) if about.name == "memory" else ()
        parted = split(_rounded(part, min(windows)[0], max(windows)[1]) if windows else part, own)
        why = _NO_KIND
        if parted is None and len(windows) > 1:
            parted, why = _ends(_rounded(part, max(windows)[0], min(windows)[1])), _TWO_ENDS
        if parted is None:
            continue
        kinds = dict(parted.odd)
        if parted.majority is not None:
            odd_ranks = {rank for ranks in parted.odd.values() for rank in ranks}
            kinds[parted.majority] = tuple(rank for rank in part if rank not in odd_ranks)
        texts = [
            f"{_reported(about, value)} on {listed('node', [machine.name for machine in fleet.of(ranks)])}"
            for value, ranks in kinds.items()
        ]
        if parted.majority is None:
            line = f"{about.label}: {_few(texts)}"
            yield Difference(property=about, ranks=tuple(sorted(part)), not_separable=why, line=line)
            continue
        for number, ranks in enumerate(parted.odd.values()):
            line = f"{about.label}: {_few(texts, number)}"
            yield Difference(property=about, ranks=ranks, not_separable="", line=line)


def _few(texts: Sequence[str], own: int | None = None) -> str:
    """Return all kinds, or some of very many: ``own`` and the last one, which is that of most, among them."""
    if len(texts) <= _MOST_KINDS:
        return "; ".join(texts)
    some = range(_MOST_KINDS) if own is None else sorted({own, len(texts) - 1, *range(_MOST_KINDS - 2)})
    return "; ".join([*(texts[number] for number in some), f"and {len(texts) - len(some)} more kinds"])


def _reported(about: Property, value: Any) -> str:
    """Return the value of a host, which chooses its words; memory is a number."""
    return about.text(value) if about.name == "memory" else as_name(about.text(value))


def _windows(values: Mapping[int, float], fleet: Sequence[HostInventory]) -> list[tuple[float, float]]:
    """Return the lowest and the highest value of each range, as wide as the tolerance, in which most values may lie.

    These are the range with the most votes and, if it has more than half of them, each other one with at least half
    that would have as many without one host: that one may lie, with a value next to those of most.
    """
    votes: defaultdict[float, Fraction] = defaultdict(Fraction)
    for rank, share in shares_of_votes(values, fleet).items():
        votes[values[rank]] += share
    ordered = sorted(votes)
    found: list[tuple[Fraction, float, float]] = []
    first, inside = 0, Fraction(0)
    for value in ordered:
        inside += votes[value]
        while value > ordered[first] * (1 + MEMORY_TOLERANCE):
            inside -= votes[ordered[first]]
            first += 1
        if found and found[-1][1] == ordered[first]:
            found.pop()  # a part of this one
        found.append((inside, ordered[first], value))
    total, most = sum(votes.values()), max(found)
    if 2 * most[0] <= total:
        return [most[1:]]
    return [(low, high) for inside, low, high in found if inside > most[0] - 1 and 2 * inside >= total]


def _rounded(values: Mapping[int, float], low: float, high: float) -> dict[int, float]:
    """Replace all values of a range by the one in its middle."""
    alike = sorted(value for value in values.values() if low <= value <= high)
    return {rank: alike[len(alike) // 2] if low <= value <= high else value for rank, value in values.items()}


def _ends(values: Mapping[int, float]) -> Split:
    """Return all values as kinds without a majority."""
    kinds: defaultdict[Hashable, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        kinds[value].append(rank)
    return Split(majority=None, odd={value: tuple(ranks) for value, ranks in kinds.items()})


def merge_differences(evidence: Evidence, differences: Sequence[Difference], fleet: Fleet) -> Iterator[Finding]:
    """Yield one finding for ranks that differ in several properties: an old image has an old torch, CUDA and NCCL."""
    groups: defaultdict[tuple[tuple[int, ...], str, str], list[Difference]] = defaultdict(list)
    for difference in differences:
        groups[difference.ranks, difference.not_separable, difference.property.severity].append(difference)
    for (ranks, not_separable, severity), members in groups.items():
        labels = ", ".join(dict.fromkeys(member.property.label for member in members))
        names = ", ".join(f'"{name}"' for name in dict.fromkeys(member.property.name for member in members))
        remedies = ", ".join(dict.fromkeys(member.property.remedy for member in members))
        named = culprit(evidence, ranks, fleet)
        verb = "differ" if named.name.startswith(("nodes ", "ranks ")) else "differs"
        what = f"{named.name} {verb} from the rest in {labels}"
        if not_separable:
            named = Culprit(kind="none", name=f"nobody: {not_separable}")
            what = f"the nodes differ and are not separable: {not_separable}: {labels}"
        yield Finding(
            severity="fail" if severity == "fail" else "warn",
            check="inventory",
            what=what,
            culprit=named,
            evidence=tuple(dict.fromkeys(member.line for member in members)),
            action=f"{remedies}, or allow it with allow_mixed = [{names}].",
        )
