"""Input and output records of the culprit solver.

A member is the number of whatever is compared: a device of a node, or a node represented by one of its ranks.
Transfers are directed, from the member that sends to the member that receives.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

MOST_MEETINGS = 2
"""The number of times that a pair is requested in vain."""
FAILURES = 2
"""The number of rounds in which a pair or a group has to fail that is clean otherwise."""
MemberKind = Literal["device", "node"]
Direction = Literal["both", "send", "receive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The members that are compared with one another."""

    members: tuple[int, ...]
    kind: MemberKind = "node"
    """The kind of a member, which is also that of a culprit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """The limits for rates, in addition to the comparison with peers."""

    effect: float = 0.10
    """The smallest loss, as a share of the reference, that counts as slow: 0.10 for copies between devices and hosts
    (GPU), 0.30 on CPUs. See ``statistics.judge_fleet``."""
    gbps: float | None = None
    """The rate in GB/s that every pair must reach, from a spec, a baseline or the user; None: no such limit."""
    origin: str = ""
    """The source of ``gbps``, in the words of ``findings.Limit.origin``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResult:
    """The result of one direction of one pair. Exactly one of ``gbps``, ``cost`` and ``failed`` is set."""

    source: int
    target: int
    gbps: float | None = None
    """10**9 bytes per second, the median over ``repeats`` transfers."""
    cost: float | None = None
    """A quantity of which less is better, above 0, in any unit: a latency, or a share of retransmitted segments."""
    failed: str = ""
    """The reason why there is no measurement: ``timeout after 10 s``, ``connection reset``."""
    at_once: int = 1
    """The number of pairs on the whole fabric that were active at the same time; 1: the fabric was uncontended."""
    repeats: int = 1
    starved: bool = False
    """Whether an end lacked the CPU. Where another result with as many pairs at once did not, that one counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """The result of an all_to_all by pairwise exchange: every two members once, each direction by itself.

    Each member times each of its exchanges. ``slow`` lists the exchanges below ``listed_below`` times ``gbps``, and
    those that never ended, where these are known. No other exchange was slower.
    """

    members: tuple[int, ...]
    gbps: float | None = None
    """The median over all exchanges in GB/s; None: the group failed."""
    failed: str = ""
    reports: tuple[frozenset[int], ...] = ()
    """The members that each report of the failure is about: the ends of a transfer, which both say that it failed;
    nobody, where most members say that they could not join."""
    is_unreported: bool = False
    """Whether members stopped, and none says why, or only one end of each transfer, or only few that they could not
    join: that is evidence about nobody."""
    slow: tuple[PairResult, ...] = ()
    listed_below: float = 0.9
    at_once: int = 1
    repeats: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """All results so far. The order within each field has no meaning."""

    pairs: tuple[PairResult, ...] = ()
    groups: tuple[GroupResult, ...] = ()
    outliers: tuple[PairResult, ...] = ()
    """Costs that stood out in groups. The costs of the other exchanges of those groups are unknown."""
    unmet: tuple[frozenset[int], ...] = ()
    """The pairs that were requested and did not meet, once for each time: that is evidence about nobody."""
    rounds: int = 0
    """The number of rounds that were requested and answered."""

    @property
    def given_up(self) -> frozenset[frozenset[int]]:
        """The pairs that did not meet ``MOST_MEETINGS`` times: they are not requested again."""
        return frozenset(pair for pair, number in Counter(self.unmet).items() if number >= MOST_MEETINGS)

    def after(self, pairs: tuple[PairResult, ...], groups: tuple[GroupResult, ...] = ()) -> Observations:
        """Return these observations plus the results of one more round."""
        return replace(self, pairs=self.pairs + pairs, groups=self.groups + groups, rounds=self.rounds + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What to measure next: disjoint pairs, disjoint groups, or pairs one after the other without contention.

    Pairs (in a group: those of one step of its exchange) are dealt out over ``turns``: pair i belongs to turn
    i % turns, and a turn starts when the previous turn has ended everywhere. With ``turns == len(pairs)`` the pairs run
    one at a time, and the same member may occur in several of them. Each pair is measured from first to second, then
    back.
    """

    pairs: tuple[tuple[int, int], ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    turns: int = 1
    repeats: int = 9
    """The number of transfers per measurement."""
    listed_below: float = 0.9
    """The share of the reference below which a group lists an exchange as slow."""

    @property
    def at_once(self) -> int:
        """The largest number of pairs that are active at the same time."""
        pairs = len(self.pairs) or sum(len(group) // 2 for group in self.groups)
        return max(1, -(-pairs // self.turns))


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectedLink:
    """All measurements of one direction of one pair under the least contention, reduced to one number."""

    source: int
    target: int
    ratio: float
    """The share of the reference that it reached; 0: it failed."""
    rate: float
    """In GB/s, or in 1/cost."""
    at_once: int
    repeats: int = 1
    """The number of transfers in all of those measurements."""
    failed: str = ""
    """Why it fails: it never came through, or failed in ``FAILURES`` rounds."""
    starved: bool = False
    """Whether an end lacked the CPU in all of those measurements."""
    unsteady: bool = False
    """Whether it is slow, but by no more than its rounds differ: one of them reached the limit. It accuses nobody."""
    failures: tuple[str, ...] = ()
    """The reason of each round in which it failed, whatever its other rounds were."""
    rounds: int = 1
    """The number of rounds in which it was measured."""

    @property
    def uncontended(self) -> bool:
        """Whether no other pair was active during the measurement."""
        return self.at_once == 1

    @property
    def failed_at_times(self) -> bool:
        """Whether it failed in some rounds, and came through in others."""
        return 0 < len(self.failures) < self.rounds

    @property
    def is_open(self) -> bool:
        """Whether it failed in too few of its rounds to accuse anybody."""
        return self.failed_at_times and len(self.failures) < FAILURES

    @property
    def times(self) -> str:
        """In how many of its rounds it failed, in words."""
        return f"failed in {len(self.failures)} of {self.rounds} rounds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One culprit and its evidence."""

    kind: Literal["device", "node", "link", "switch", "fabric"]
    members: tuple[int, ...]
    """The culprit; for a link its two ends; for a switch all members behind it."""
    direction: Direction = "both"
    """For a member: the direction in which it is slow. For a link: ``send`` is from the first end to the second,
    ``receive`` is the way back."""
    confidence: Literal["confirmed", "likely"] = "confirmed"
    """``confirmed``: repeated without contention, with two known-good partners."""
    why: str
    """One clause: how the culprit was separated from the others."""
    ratio: float | None = None
    """The lowest ratio in ``evidence``, or the share of the limit that all reach; 0: it failed."""
    evidence: tuple[DirectedLink, ...] = ()
    inseparable: tuple[int, ...] = ()
    """Members that could be at fault instead: the measurements do not separate them from the culprit."""

    @property
    def lacked_cpu(self) -> bool:
        """Whether fewer links accuse it than are needed, without those of which an end lacked the CPU."""
        accusing = sum(not link.starved for link in self.evidence)
        return accusing < min(len(self.evidence), 1 if self.kind == "link" else 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The culprits, and the questions that the observations leave open."""

    culprits: tuple[Suspect, ...] = ()
    unconfirmed: tuple[DirectedLink, ...] = ()
    """Slow or failed links that were not repeated without contention, or are not clearly below the limit. Nobody is
    blamed for them."""
    remains: tuple[str, ...] = ()
    """The open questions, each as one clause. With any of these a trial does not pass."""
    reference: float | None = None
    """The rate that healthy pairs reach, in GB/s or 1/cost."""
    limit: float | None = None
    """The rate that a pair had to reach, in the same unit."""
