"""What goes into the culprit solver and what comes out of it.

Members are the numbers of whatever is compared: ranks, devices of a node, or nodes by one rank each. Transfers have a
direction: from the member that sends to the one that receives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

__all__ = [
    "Alone",
    "Cell",
    "Diagnosis",
    "Digest",
    "Direction",
    "GroupResult",
    "Limits",
    "MemberKind",
    "Named",
    "Observations",
    "PairResult",
    "Phase",
    "Round",
    "Topology",
]

MemberKind = Literal["rank", "device", "node"]
Direction = Literal["both", "send", "receive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Who is there, and what is known of the wires. What is not known stays empty."""

    members: tuple[int, ...]
    kind: MemberKind = "node"
    """What a member is: whoever is named is named as this."""
    switch: Mapping[int, str] = field(default_factory=dict)
    """Member -> its first switch. Members of one switch reach each other without a shared uplink."""
    rail: Mapping[int, str] = field(default_factory=dict)
    """Member -> its rail, where members are NICs or devices and pairs are measured inside a rail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What rates are held against besides their peers."""

    effect: float = 0.10
    """A loss below this share of the reference is no finding: 0.10 for copies between devices and hosts (GPU), 0.30 on
    CPUs. See ``statistics.judge_fleet``."""
    gbps: float | None = None
    """The rate in GB/s that every pair has to reach, from a spec, a baseline or the user."""
    origin: str = ""
    """Where ``gbps`` comes from, in the words of ``findings.Limit.origin``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResult:
    """One direction of one pair. Exactly one of ``gbps``, ``latency_s`` and ``failed`` says how it went."""

    source: int
    target: int
    gbps: float | None = None
    """10**9 bytes a second, the median over ``repeats`` transfers."""
    latency_s: float | None = None
    failed: str = ""
    """Why there is no figure: ``timeout after 10 s``, ``connection reset``."""
    at_once: int = 1
    """How many pairs of the whole fabric were at work at the same time; 1: it was quiet."""
    repeats: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """An all_to_all by pairwise exchange: every two members of the group once, in both directions apart.

    Each member times each of its exchanges, so that a group tells more than one number: ``slow`` lists the exchanges
    below ``told_below`` times ``gbps`` (and those that never ended, where that is known). All others were not slower.
    """

    members: tuple[int, ...]
    gbps: float | None = None
    """The median over all exchanges; None when the group failed."""
    failed: str = ""
    slow: tuple[PairResult, ...] = ()
    told_below: float = 0.9
    at_once: int = 1
    repeats: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """What a member reached by itself, with no other: its own copies, its own products."""

    member: int
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Bits that must be equal among members that may be compared."""

    member: int
    what: str
    """What was hashed, such as ``parameters after step 3``."""
    value: str
    comparable: str = ""
    """Device model, libraries and CPU capability: only equals vote."""
    attempt: int = 0
    """0, then 1 and more for repeats of the same work by the same member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Where a member stood when a deadline came."""

    member: int
    passed: int
    """Phases passed since the step began; members of one step pass the same ones in the same order."""
    waits_for: tuple[int, ...] = ()
    """Whose message or arrival it waits for; empty: it is not in an operation with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """All that was seen so far. The order within each field means nothing."""

    pairs: tuple[PairResult, ...] = ()
    groups: tuple[GroupResult, ...] = ()
    alone: tuple[Alone, ...] = ()
    digests: tuple[Digest, ...] = ()
    phases: tuple[Phase, ...] = ()
    outliers: tuple[PairResult, ...] = ()
    """Latencies that stood out in groups; of the other exchanges there nothing is known."""
    rounds: int = 0
    """How many rounds were asked for and answered."""

    def after(self, pairs: tuple[PairResult, ...], groups: tuple[GroupResult, ...] = ()) -> Observations:
        """With the answer to one more round."""
        return replace(self, pairs=self.pairs + pairs, groups=self.groups + groups, rounds=self.rounds + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What to measure next: disjoint pairs, disjoint groups, or pairs one after the other on a quiet fabric.

    Pairs (in a group: those of one step of its exchange) are dealt out over ``turns``: pair i belongs to turn
    i % turns, and a turn starts when the one before has ended everywhere. ``turns == len(pairs)``: one at a time,
    and then the same member may occur in several pairs. Each pair is measured from first to second, then back.
    """

    purpose: Literal["cover", "repeat", "trace"]
    """``cover``: who is slow at all. ``repeat``: suspects again, with known-good partners. ``trace``: where in a
    group that failed without a word the fault is."""
    pairs: tuple[tuple[int, int], ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    turns: int = 1
    repeats: int = 9
    """Transfers per figure."""
    told_below: float = 0.9

    @property
    def at_once(self) -> int:
        """How many pairs are at work at the same time, at most."""
        pairs = len(self.pairs) or sum(len(group) // 2 for group in self.groups)
        return max(1, -(-pairs // self.turns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is known of one direction of one pair: the figures of the quietest occasion, in one number."""

    source: int
    target: int
    ratio: float
    """To the reference; 0 when it failed."""
    rate: float
    """In the unit of the quantity: GB/s, or 1/s for a latency."""
    at_once: int
    repeats: int = 1
    """Transfers on all those occasions."""
    failed: str = ""

    @property
    def quiet(self) -> bool:
        return self.at_once == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One culprit, and what it rests on."""

    kind: Literal["rank", "device", "node", "link", "rail", "switch", "fabric", "none"]
    members: tuple[int, ...]
    """Who it is; of a link its two ends; of a switch or rail all members behind it."""
    name: str = ""
    """Of a rail or switch, where the topology has it."""
    direction: Direction = "both"
    """Of a member: what it does slowly. Of a link: ``send`` is from the first end to the second, ``receive`` back."""
    confidence: Literal["confirmed", "likely"] = "confirmed"
    """``confirmed``: repeated on a quiet fabric, with two known-good partners; or proven by itself."""
    why: str
    """How it was told apart, one clause."""
    ratio: float | None = None
    """The worst of its cells, to the reference; 0 when it failed."""
    evidence: tuple[Cell, ...] = ()
    details: tuple[str, ...] = ()
    inseparable: tuple[int, ...] = ()
    """Members that could be at fault instead: what was measured does not tell them apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the observations tell. Nothing in it was not measured."""

    culprits: tuple[Named, ...] = ()
    unconfirmed: tuple[Cell, ...] = ()
    """Slow or failed, and not yet repeated on a quiet fabric, or not clearly below the limit: nobody is blamed."""
    remains: tuple[str, ...] = ()
    """What could not be told, each in one clause. With any of these a trial is not passed."""
    reference: float | None = None
    """The rate that healthy pairs reach, in the unit of the quantity."""
    origin: str = ""
    """Where the reference comes from."""
    limit: float | None = None
    """What a pair had to reach."""
    unjudged: str = ""
    """Why slowness that is common to all would not have been seen; empty when a limit was given."""
