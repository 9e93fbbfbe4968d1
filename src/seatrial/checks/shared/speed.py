"""The judge of speeds that each rank measures alone: the ranks to measure again, and the findings. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypedDict

from seatrial.checks.check import Rule
from seatrial.devices.specs import highest_memory_peak
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Judged, Limit, Ruling
from seatrial.evidence.measurement import Measurement
from seatrial.evidence.rates import FleetRates, RateOutcome
from seatrial.evidence.statistics import NUM_REFERENCES, fleet_rules
from seatrial.util.text import and_list, format_number

MIN_CPU_SHARE = 0.8
"""A rank that got a smaller share of the CPU time that its threads could use is not blamed for being slow."""
CPU_SHARE = Rule(
    measurement="cpu_share",
    comparison="at least",
    value=MIN_CPU_SHARE,
    origin="CPU time that its threads could use",
    condition="slow alone; with less its speed only warns",
)
"""The rule about the CPU time of a slow rank, measured alone."""
TOO_FAR_APART = "lie too far apart to compare"
"""Why nobody is slow though some values are beyond the ratio: many are, or only the one other host says so."""
BEYOND_KNOWN = 10
"""A device that is not in devices/specs.json may be newer, but not this many times as fast as all of them."""


class GroupHosts(TypedDict):
    """The hosts of the ranks of one group, as arguments of the comparisons of ``fleets``."""

    hosts: Mapping[int, str]
    """By rank, its host."""
    all_hosts: Collection[str]
    """Hosts of all groups, as many of them as tell whether there are others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedWords:
    """The sentences about one speed of a check."""

    check: str
    """The name of the check."""
    measurement: str
    """The name and variant of the measurement, as ``absent`` lists it: ``tflops bf16``."""
    speed: str
    """The speed as a noun phrase: ``the bf16 speed``."""
    slow_in: str
    """The slowness as a predicate: ``slow in bf16 matrix products``."""
    action_alone: str
    """The next step for a rank that is slow alone too."""
    action_together: str
    """The next step for a rank that was slow only while all ranks worked."""
    subject: Callable[[int], str]
    """The rank as the subject of a sentence: ``rank 3``."""
    other: Callable[[int], str]
    """A rank that it is compared with: ``rank 1``, ``rank 1 on gpu-0``."""
    culprit: Callable[[int], Culprit]
    """The culprit of a finding about the rank."""
    group: str = "device model"
    """The property that all compared devices have, by the word of their hosts. Empty: the check says itself which
    comparisons that leaves open."""
    activity: Callable[[int], tuple[str, ...]] = lambda rank: ()
    """Lines about other activity on the host of a slow rank; default: none."""


def fleet_speed_rules(measurement: str, *, copies: bool = False) -> tuple[Rule, ...]:
    """Return the rules by which the ranks of one device model are compared.

    ``copies``: with the floor for copies between devices and hosts, which vary more.
    """
    return tuple(
        Rule(
            measurement=measurement,
            condition=f"{num_ranks} ranks",
            text=text,
            origin="fleet of one device model, again alone",
        )
        for num_ranks, text in fleet_rules(copies=copies)
    )


def copy_ceiling() -> Limit:
    """Return the rate that no copy reaches: not in a device, not from or to it, and not in a page cache."""
    origin = f"{BEYOND_KNOWN} x the fastest memory known, devices/specs.json"
    return Limit(value=BEYOND_KNOWN * highest_memory_peak(), unit="GB/s", origin=origin)


def ceiling_rule(measurement: str, text: str) -> Rule:
    """Return the rule for values above what is possible: they are absent, and compared with nothing."""
    return Rule(measurement=measurement, condition="to be believed", text=text, origin="devices/specs.json")


def slowest_first(groups: Iterable[FleetRates]) -> tuple[int, ...]:
    """Return the ranks that missed a limit, and with them typical ranks of their group to compare with.

    Typical ranks of each group come first and then the slowest: only a limited number of ranks measures again, and no
    repeat can be judged without typical ranks, of which one may be disturbed, or lie. Ranks that would be slow if
    others were believed come last, with typical ranks of their group before them, since they are not named.
    """
    slow: dict[int, float] = {}
    doubted: dict[int, float] = {}
    compared, aside = dict[int, None](), dict[int, None]()
    for rates in groups:
        missed = {rank: outcome for rank, outcome in rates.outcomes() if outcome.state not in ("unjudged", "passed")}
        for rank, outcome in missed.items():
            if outcome.limit is not None:
                share = outcome.measurement.value / outcome.limit.value if outcome.limit.value else 1.0
                slow[rank] = min(share, slow.get(rank, share))
        for rank, limit in rates.doubted().items():
            share = rates.first[rank].value / limit
            doubted[rank] = min(share, doubted.get(rank, share))
        if {*missed} & {*rates.fleet.outliers}:
            _add_references(compared, rates.references)
        if rates.doubted():
            _add_references(aside, rates.undoubted)
    return tuple(dict.fromkeys((*compared, *_by_share(slow), *aside, *_by_share(doubted))))


def _by_share(reached: Mapping[int, float]) -> list[int]:
    return sorted(reached, key=lambda rank: (reached[rank], rank))


def _add_references(asked: dict[int, None], references: Sequence[int]) -> None:
    """Add typical ranks of a group until it has enough. Ranks that measure again anyway serve all groups."""
    again = [rank for rank in references if rank in asked]
    others = [rank for rank in references if rank not in asked]
    asked.update(dict.fromkeys(others[: max(0, NUM_REFERENCES - len(again))]))


def judge_speeds(rates: FleetRates, words: SpeedWords, shares: Mapping[int, float]) -> Iterator[Ruling]:
    """Fail each speed that misses its limit again, alone and with the CPU to itself.

    Args:
        rates: The speeds that can be compared.
        words: The sentences about them.
        shares: By rank, the CPU time that it got in its repeat, as a share of what it could use.
    """
    user_limit = next((limit for limit in rates.limits if limit.origin.startswith("user")), None)
    starved = {rank: shares[rank] for rank in rates.again if rank in shares and not CPU_SHARE.passes(shares[rank])}
    for measurement in rates.impossible:
        assert measurement.rank is not None and rates.ceiling is not None
        yield Ruling(absent=(_impossible(measurement, rates.ceiling, words),))
    yield Ruling(absent=tuple(_contested(rates, words, starved)), unjudged=tuple(_apart(rates, words, starved)))
    for rank, outcome in rates.outcomes(starved, words.other):
        yield _judge_speed(rank, outcome, words, shares.get(rank, 1.0), user_limit)


def _contested(rates: FleetRates, words: SpeedWords, starved: Mapping[int, float]) -> Iterator[str]:
    """Yield the ranks that only one other host, which may lie, keeps from being slow, with all ranks and alone."""
    contested = rates.contested
    for rank in sorted(rates.slow_alone({rank: contest.limit for rank, contest in contested.items()}, starved)):
        contest, first = contested[rank], rates.first[rank]
        yield (
            f"{words.measurement} of {words.subject(rank)} compared without host {contest.host}:"
            f" {first.value:.3g} {first.unit} would then be below the limit {contest.limit:.3g}"
        )


def _apart(rates: FleetRates, words: SpeedWords, starved: Mapping[int, float]) -> Iterator[str]:
    """Yield the ranks that are slower than others, alone, too, as many are, or by the word of one other host alone."""
    apart = sorted(rates.slow_alone(rates.apart, starved))
    why = by_group(words.group) if rates.fleet.depends_on_group else f"the values {TOO_FAR_APART}"
    if apart and (words.group or not rates.fleet.depends_on_group):
        subjects = and_list([words.subject(rank) for rank in apart])
        yield f"{words.measurement} of {subjects} and the others: {why}"
    if words.group and rates.fleet.is_only_host and not rates.limits:
        yield only_host(words.measurement, [words.subject(rank) for rank in rates.ranks], words.group)


def by_group(group: str) -> str:
    """Return why it is not known who is slow, where one host less, or more, in a group makes the difference."""
    return f"who is slow depends on the {group} that one host says it has"


def only_host(measurement: str, subjects: Sequence[str], group: str) -> str:
    """Return what was not judged where all of one device model are on one host, and other hosts name other models."""
    named = f"{subjects[0]} and the {len(subjects) - 1} others of its host" if len(subjects) > 3 else and_list(subjects)
    return f"{measurement} of {named}: no other host says that it has the same {group} to compare with"


def _impossible(measurement: Measurement, ceiling: Limit, words: SpeedWords) -> str:
    when = ", alone" if measurement.stage == "repeat" else ""
    return (
        f"{words.measurement} of {words.subject(measurement.rank or 0)}{when} that can be: it reports "
        f"{measurement.value:.3g} {measurement.unit}, above {ceiling.value:.3g} ({ceiling.origin})"
    )


def _judge_speed(rank: int, outcome: RateOutcome, words: SpeedWords, share: float, user_limit: Limit | None) -> Ruling:
    """Judge one rank. ``user_limit`` may not be the tightest limit, and must be decided all the same."""
    measurement, limit = outcome.measurement, outcome.limit
    if limit is None:
        return Ruling()
    subject = words.subject(rank)
    if outcome.state == "unrepeated":
        return Ruling(absent=(f"{words.measurement} of {subject} measured again, alone; {outcome.evidence[0]}",))
    if outcome.state == "incomparable" and CPU_SHARE.passes(share):
        return Ruling(absent=(incomparable(words.measurement, subject, outcome.evidence[1:]),))
    entry = Judged(measurement=measurement, limit=limit, passed=outcome.state in ("passed", "recovered"))
    if outcome.state == "passed":
        return Ruling(judged=(entry,))
    is_starved = outcome.state in ("slow", "incomparable") and not CPU_SHARE.passes(share)
    lines = outcome.evidence + words.activity(rank)
    absent: tuple[str, ...] = ()
    if is_starved and user_limit is not None and measurement.value < user_limit.value:
        absent = (f"{words.measurement} of {subject}: other processes took its CPU, cpu_share {share:.2f}",)
    if is_starved:
        what = f"{words.speed} of {subject} could not be judged: other processes held the CPU"
        action = "end what else runs on the node and repeat the trial."
        lines += (f"alone, it got {share * 100:.0f} % of the CPU time that its threads could use",)
    elif outcome.state == "slow":
        what, action = f"{subject} is {words.slow_in}, with all ranks and alone", words.action_alone
    else:
        what = f"{subject} was {words.slow_in} with all ranks, but not alone"
        action = words.action_together
    finding = Finding(
        severity="fail" if outcome.state == "slow" and not is_starved else "warn",
        check=words.check,
        what=what,
        culprit=words.culprit(rank),
        measured=_both(outcome),
        limit=limit,
        evidence=lines,
        action=action,
    )
    unjudged = (what,) if is_starved else ()
    return Ruling(findings=(finding,), judged=() if is_starved else (entry,), absent=absent, unjudged=unjudged)


def incomparable(measurement: str, subject: str, lines: Iterable[str]) -> str:
    """Return what is absent where a rank was measured again, and the ranks to compare it with were disturbed."""
    return f"{measurement} of {subject} compared with ranks that were not disturbed themselves; {'; '.join(lines)}"


def _both(outcome: RateOutcome) -> str:
    """Return the speed with all ranks and its limit, and the speed alone, of which the finding has the limit."""
    unit, decided = outcome.measurement.unit, f"{outcome.measurement.value:.3g} {outcome.measurement.unit}"
    if outcome.first is None or outcome.first_limit is None:
        return decided
    together = f"{outcome.first.value:.3g} {unit} with all ranks"
    if outcome.limit is not None and outcome.first_limit.value == outcome.limit.value:
        return f"{together}, {decided} alone"
    return f"{together}, limit {format_number(outcome.first_limit.value)} {unit}; {decided} alone"


def cpu_shares(evidence: Evidence) -> Mapping[str, Mapping[int, float]]:
    """Return by variant and rank the measurement ``cpu_share``, from its repeat."""
    shares = defaultdict[str, dict[int, float]](dict)
    for measurement in evidence.measurements:
        if (measurement.name, measurement.stage) == ("cpu_share", "repeat") and measurement.rank is not None:
            shares[measurement.variant][measurement.rank] = measurement.value
    return shares


def hosts_of(ranks: Iterable[int], hosts: Mapping[int, str], all_hosts: Collection[str]) -> GroupHosts:
    """Return the hosts that a comparison of these ranks needs: a record may have as many groups as ranks.

    Args:
        ranks: The ranks of one group.
        hosts: By rank, its host.
        all_hosts: The hosts of all groups, each once. Of more than the group has, one at least is not in it.
    """
    own = {rank: hosts[rank] for rank in ranks}
    return GroupHosts(hosts=own, all_hosts=(*islice(all_hosts, len(own) + 1),))
