"""What the inventory check makes of what the ranks told. Pure: no torch, no host."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from seatrial.checks._fleet import Machine, culprit, facts_named, listed, machines, split
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Culprit, Finding, Limit, Ruling

if TYPE_CHECKING:
    from seatrial.checks.inventory import Params

__all__ = ["MEMORY_TOLERANCE", "PROPERTIES", "judge"]

MEMORY_TOLERANCE = 0.01
"""Devices of one model differ by what their firmware keeps for itself (ECC, MIG); a lost bank is far more."""
_EXACTLY = Limit(value=0, unit="ranks", origin="exact: one process a device")
_LINES = 8
_NOBODY = Culprit(kind="none", name="nobody: no kind has more than half of the nodes")
Told = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Property:
    """One thing that all nodes are to have alike."""

    name: str
    word: str
    severity: Literal["fail", "warn"]
    remedy: str

    @property
    def key(self) -> str:
        """The parameter that asks for a value."""
        return "memory_gib" if self.name == "memory" else self.name

    def wanted(self, params: Params) -> Any:
        """What the user asks for; None: nothing."""
        return getattr(params, self.key)

    def value(self, told: Mapping[str, Any]) -> Hashable:
        """What a rank told; None: it could not tell. Memory in bytes."""
        if self.name == "memory":
            found = told.get("memory_bytes")
            return found if isinstance(found, int) and found > 0 else None
        found = told.get(self.name)
        return found if isinstance(found, (str, int)) else None

    def fits(self, value: Any, wanted: Any) -> bool:
        if self.name == "memory":
            return isinstance(value, (int, float)) and abs(value / 2**30 - wanted) <= MEMORY_TOLERANCE * wanted
        return bool(value == wanted)

    def shown(self, value: Any) -> str:
        """A wanted value, or one that was told."""
        if self.name != "memory":
            return str(value)
        return f"{value / 2**30 if value >= 2**20 else value:.1f} GiB"


_INSTALL = "run the same image or the same installation on all nodes"
PROPERTIES = (
    _Property(name="device", word="device model", severity="fail", remedy="ask for nodes of one kind"),
    _Property(name="memory", word="memory", severity="fail", remedy="look for a disabled bank, a lost module or MIG"),
    _Property(name="torch", word="torch", severity="fail", remedy=_INSTALL),
    _Property(name="toolkit", word="CUDA or ROCm", severity="fail", remedy=_INSTALL),
    _Property(name="nccl", word="NCCL", severity="fail", remedy=_INSTALL),
    _Property(name="driver", word="driver", severity="warn", remedy="bring the nodes to one driver"),
    _Property(name="kernel", word="kernel", severity="warn", remedy="bring the nodes to one kernel"),
    _Property(name="python", word="Python", severity="warn", remedy=_INSTALL),
    _Property(name="cpu", word="CPU model", severity="warn", remedy="ask for nodes of one kind"),
    _Property(
        name="cores", word="cores of a process", severity="warn", remedy="give every process the same number of cores"
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Odd:
    """Ranks that are unlike the others in one property; of no majority all ranks."""

    about: _Property
    ranks: tuple[int, ...]
    separable: bool
    line: str


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Two ranks on one device, too few devices, and what is unlike the rest or unlike what the user asks for."""
    told = facts_named(evidence, "inventory")
    absent = [f"inventory of rank {rank}" for rank in evidence.asked if rank not in told]
    if not evidence.asked:
        absent.append("any rank that finished")
    fleet = machines(evidence, told)
    properties = [each for each in PROPERTIES if not (each.name == "cpu" and evidence.device_type == "cpu")]
    findings = [*_shared(evidence, told, fleet), *_counts(evidence, params, told, fleet)]
    odd: list[_Odd] = []
    for each in properties:
        wanted = each.wanted(params)
        values = {rank: value for rank, facts in told.items() if (value := each.value(facts)) is not None}
        if wanted is not None:
            findings += _unlike_wanted(evidence, each, values, wanted, fleet)
            absent += [f"{each.word} of rank {rank}" for rank in told if rank not in values]
        elif each.name not in params.allow_mixed:
            odd += _unlike_rest(each, told, values, fleet)
    findings += _together(evidence, odd, fleet)
    alone = len(evidence.ranks) == 1
    unjudged = ["inventory not compared (1 rank)"] if alone else []
    if evidence.device_type != "cpu" and not alone and any(not facts.get("device_id") for facts in told.values()):
        unjudged.append("inventory without device ids, which this torch does not tell")
    return Ruling(findings=tuple(findings), absent=tuple(absent), unjudged=tuple(unjudged))


def _shared(evidence: Evidence, told: Told, fleet: Sequence[Machine]) -> Iterator[Finding]:
    """Two ranks on one device."""
    holders: defaultdict[tuple[Any, str], list[int]] = defaultdict(list)
    for rank, facts in sorted(told.items()):
        identity = facts.get("device_id")
        if isinstance(identity, str) and identity:
            # A PCI address is one of its machine, whose containers have its boot in common.
            holders[facts.get("boot_id") or evidence.ranks[rank].node, identity].append(rank)
    for (_, identity), ranks in holders.items():
        # Parts of one device (MIG, compute partitions) may share its id: then one list of devices shows them apart.
        places = {(told[rank].get("visibility"), told[rank].get("index")) for rank in ranks}
        apart = len({place[0] for place in places}) == 1 and len(places) == len(ranks)
        if len(ranks) > 1 and not apart:
            found = culprit(evidence, ranks, fleet)
            name = f"{listed('rank', ranks)} on {listed('node', found.nodes)}"
            yield Finding(
                severity="fail",
                check="inventory",
                what=f"{name} use the same device",
                culprit=Culprit(kind="device", name=name, ranks=tuple(ranks), nodes=found.nodes),
                measured=f"{len(ranks)} ranks on device {identity}",
                limit=_EXACTLY,
                evidence=tuple(_seen(rank, told[rank]) for rank in ranks[:_LINES]),
                action="start one process a device, and let the launcher show each its own or all of them alike.",
            )


def _counts(evidence: Evidence, params: Params, told: Told, fleet: Sequence[Machine]) -> Iterator[Finding]:
    """Devices of each node against what the user expects, or what more than half of the nodes show.

    Without such a majority against the node that shows most: devices get lost, none come by themselves. A node with
    fewer devices than processes shows it by ranks that share one.
    """
    shown = [(machine, _devices(machine, told)) for machine in fleet if any(rank in told for rank in machine.ranks)]
    if params.devices_per_node is not None:
        expected, origin = params.devices_per_node, "user inventory.devices_per_node"
    elif "devices" in params.allow_mixed or not shown:
        return
    else:
        ((usual, votes),) = Counter(count for _, count in shown).most_common(1)
        if 2 * votes > len(shown):
            expected, origin = usual, "fleet, majority of the nodes"
        else:
            expected, origin = max(count for _, count in shown), "fleet, the node that shows most"
    for machine, count in shown:
        if count != expected:
            found = culprit(evidence, machine.ranks, fleet)
            look = "look for a device that fell off the bus (the driver's log, the PCI bus), for what the container"
            look += " or job was given"
            if count > expected:
                look = "ask for nodes of one kind, and look for what hides devices on the other nodes"
            yield Finding(
                severity="fail",
                check="inventory",
                what=f"{found.name} shows {_devices_of(count)} where {expected} are expected",
                culprit=found,
                measured=_devices_of(count),
                limit=Limit(value=expected, unit="devices", origin=origin),
                evidence=tuple(_seen(rank, told[rank]) for rank in machine.ranks[:_LINES] if rank in told),
                action=f"{look}, or {_allowing(params)}.",
            )


def _allowing(params: Params) -> str:
    if params.devices_per_node is not None:
        return "correct inventory.devices_per_node in the plan"
    return 'allow it with allow_mixed = ["devices"]'


def _devices(machine: Machine, told: Told) -> int:
    """How many devices a node shows. A launcher may show each process its own only, so those in use count too."""
    facts: list[Mapping[str, Any]] = [told[rank] for rank in machine.ranks if rank in told]
    used = {each["device_id"] for each in facts if each.get("device_id")}
    visible = [int(each.get("visible") or 0) for each in facts]
    return max(len(used), *visible)


def _devices_of(count: int) -> str:
    return f"{count} device" if count == 1 else f"{count} devices"


def _seen(rank: int, facts: Mapping[str, Any]) -> str:
    which = facts.get("visibility") or "no variable hides any"
    return f"rank {rank}: sees {_devices_of(facts.get('visible', 0))} ({which}), uses number {facts.get('index')}"


def _unlike_wanted(
    evidence: Evidence, each: _Property, values: Mapping[int, Any], wanted: Any, fleet: Sequence[Machine]
) -> Iterator[Finding]:
    wrong: defaultdict[str, list[int]] = defaultdict(list)
    for rank, value in values.items():
        if not each.fits(value, wanted):
            wrong[each.shown(value)].append(rank)
    for value, ranks in wrong.items():
        found = culprit(evidence, ranks, fleet)
        yield Finding(
            severity="fail",
            check="inventory",
            what=f"{each.word} of {found.name} is {value} where {each.shown(wanted)} is asked for",
            culprit=found,
            measured=f"{len(ranks)} of {len(values)} ranks differ",
            limit=Limit(value=0, unit="ranks", origin=f"user inventory.{each.key}"),
            action=f"{each.remedy}, or correct inventory.{each.key} in the plan.",
        )


def _unlike_rest(each: _Property, told: Told, values: Mapping[int, Any], fleet: Sequence[Machine]) -> Iterator[_Odd]:
    """Memory is compared inside of one device model: between two models it differs anyway."""
    parts: defaultdict[Hashable, dict[int, Any]] = defaultdict(dict)
    for rank, value in values.items():
        parts[told[rank].get("device") if each.name == "memory" else None][rank] = value
    for part in parts.values():
        found = split(_rounded(part, fleet) if each.name == "memory" else part, fleet)
        if found is None:
            continue
        kinds = dict(found.odd)
        if found.majority is not None:
            named = {rank for ranks in found.odd.values() for rank in ranks}
            kinds[found.majority] = tuple(rank for rank in part if rank not in named)
        line = "; ".join(
            f"{each.shown(value)} on {listed('node', [m.name for m in fleet if not set(m.ranks).isdisjoint(ranks)])}"
            for value, ranks in kinds.items()
        )
        if found.majority is None:
            everybody = tuple(sorted(part))
            yield _Odd(about=each, ranks=everybody, separable=False, line=f"{each.word}: {line}")
            continue
        for ranks in found.odd.values():
            yield _Odd(about=each, ranks=ranks, separable=True, line=f"{each.word}: {line}")


def _rounded(values: Mapping[int, float], fleet: Sequence[Machine]) -> dict[int, Hashable]:
    """All that lies within the tolerance of where most of the machines are becomes one value; the rest stays."""
    weights: defaultdict[float, Fraction] = defaultdict(Fraction)
    for machine in fleet:
        own = [rank for rank in machine.ranks if rank in values]
        for rank in own:
            weights[values[rank]] += Fraction(1, len(own))
    ordered = sorted(weights)
    best = (Fraction(0), 0, 0)
    first, inside = 0, Fraction(0)
    for last, value in enumerate(ordered):
        inside += weights[value]
        while value > ordered[first] * (1 + MEMORY_TOLERANCE):
            inside -= weights[ordered[first]]
            first += 1
        best = max(best, (inside, first, last))
    together = ordered[best[1] : best[2] + 1]
    common = max(together, key=lambda value: weights[value])
    return {rank: common if together[0] <= value <= together[-1] else value for rank, value in values.items()}


def _together(evidence: Evidence, odd: Sequence[_Odd], fleet: Sequence[Machine]) -> Iterator[Finding]:
    """One finding for those who differ in several things: an old image has an old torch, CUDA and NCCL."""
    groups: defaultdict[tuple[tuple[int, ...], bool, str], list[_Odd]] = defaultdict(list)
    for each in odd:
        groups[each.ranks, each.separable, each.about.severity].append(each)
    for (ranks, separable, severity), members in groups.items():
        words = ", ".join(dict.fromkeys(each.about.word for each in members))
        found = culprit(evidence, ranks, fleet) if separable else _NOBODY
        verb = "differ" if found.name.startswith(("nodes ", "ranks ")) else "differs"
        kinds = "differ and are not separable: no kind has more than half of the nodes"
        names = ", ".join(f'"{name}"' for name in dict.fromkeys(each.about.name for each in members))
        remedies = ", ".join(dict.fromkeys(each.about.remedy for each in members))
        yield Finding(
            severity="fail" if severity == "fail" else "warn",
            check="inventory",
            what=f"{found.name} {verb} from the rest in {words}" if separable else f"the nodes {kinds}: {words}",
            culprit=found,
            evidence=tuple(dict.fromkeys(each.line for each in members)),
            action=f"{remedies}, or allow it with allow_mixed = [{names}].",
        )
