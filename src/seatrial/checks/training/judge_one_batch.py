"""The judge of ranks that compute wrongly: a vote on bits, repeats, and an answer that is known. Pure.

Ranks of one device model, with the same torch, libraries, settings and number of threads or multiprocessors, form a
group: they must compute the same bits, each time. Ranks of different groups are never compared.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from seatrial.checks.check import exact_rule
from seatrial.checks.shared.culprits import rank_culprit
from seatrial.checks.shared.facts import describe
from seatrial.checks.shared.host_inventory import listed
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Limit, Ruling
from seatrial.evidence.statistics import minority
from seatrial.util.text import as_name

_SHOWN = 8
_ACTION = "run compute and memory there for longer; until then do not trust its results."
_WRONG_ELEMENTS = exact_rule("wrong_elements")

Bits = tuple[str, str]
"""Digests of the scores and of the gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Ranks that compute alike, and their results."""

    results: Mapping[int, tuple[Bits, ...]]
    """By rank, its results of the same batch in the order of their computation."""

    def nondeterministic(self) -> tuple[int, ...]:
        """Return the ranks whose results differ from time to time."""
        return tuple(rank for rank, results in self.results.items() if len(set(results)) > 1)

    def steady(self) -> dict[int, Bits]:
        """Return by rank the result that is the same each time."""
        return {rank: results[0] for rank, results in self.results.items() if len(set(results)) == 1}

    def reproducible(self, hosts: Mapping[int, str]) -> bool | None:
        """Return whether most ranks of at least half of the hosts repeat their results: who does not is at fault.

        None: it would be so without one of several hosts, which may lie. ``hosts``: by rank, its host.
        """
        ranks, loose = (Counter(hosts[rank] for rank in some) for some in (self.results, self.nondeterministic()))
        num_loose = sum(2 * loose[host] > count for host, count in ranks.items())
        if 2 * num_loose <= len(ranks):
            return True
        return None if len(ranks) > 1 and 2 * (num_loose - 1) <= len(ranks) else False


def one_batch_suspects(evidence: Evidence) -> tuple[int, ...]:
    """Return the ranks that must compute again, alone.

    These are the nondeterministic ranks with one that was steady so far, the outvoted ranks, and all ranks of a group
    without a majority.
    """
    suspects: list[int] = []
    hosts = evidence.hosts()
    for group in _groups(evidence):
        nondeterministic, steady = group.nondeterministic(), group.steady()
        vote = minority(steady, hosts)
        suspects += [*nondeterministic, *vote.odd]
        odd = {*vote.odd}
        others = [rank for rank in steady if rank not in odd]
        suspects += others if vote.majority is None else others[:1] if nondeterministic else ()
    return tuple(suspects)


def judge_one_batch(evidence: Evidence) -> Ruling:
    """Fail ranks with a wrong known answer, nondeterministic and outvoted ranks; list those that were not compared."""
    checked = [measurement for measurement in evidence.measurements if measurement.name == "wrong_elements"]
    wrong = {
        measurement.rank: measurement.value
        for measurement in checked
        if measurement.rank is not None and measurement.value != 0
    }
    findings: list[Finding] = []
    unjudged: list[str] = []
    absent: list[str] = []
    groups, hosts = list(_groups(evidence)), evidence.hosts()
    lines_of = {rank: lines for group in groups for lines in [_lines(group)] for rank in group.results}
    places = defaultdict[int | None, list[str]](list)
    for fact in evidence.facts:
        if fact.name == "wrong_values":
            places[fact.rank].append(describe(fact.value))
    for rank, count in sorted(wrong.items()):
        findings.append(_wrong(evidence, rank, count, [*places[rank], *lines_of.get(rank, ())]))
    for group in groups:
        rest = _Group(results={rank: bits for rank, bits in group.results.items() if rank not in wrong})
        if len(group.results) < 2:
            continue
        reproducible = group.reproducible(hosts)
        if reproducible:
            lines = _lines(rest)
            findings += [
                _nondeterministic(evidence, rank, rest.results[rank], lines) for rank in rest.nondeterministic()
            ]
            findings += _outvoted(evidence, rest, hosts, lines)
            continue
        loose = listed("rank", group.nondeterministic())
        if reproducible is None:
            absent.append(f"most hosts with the same bits of one batch each time (not the same on {loose})")
        else:
            unjudged.append(f"training: one batch gives different bits each time on {loose}")
    lonely = [rank for group in groups if len(group.results) == 1 for rank in group.results]
    if len(evidence.ranks) == 1:
        unjudged.append("training: gradients not compared (1 rank)")
    elif lonely:
        unjudged.append(
            f"training: gradients of {listed('rank', lonely)} not compared, as no other rank computes alike"
        )
    judged = tuple(_WRONG_ELEMENTS.judge(measurement) for measurement in checked)
    return Ruling(findings=tuple(findings), judged=judged, absent=tuple(absent), unjudged=tuple(unjudged))


def _groups(evidence: Evidence) -> Iterator[_Group]:
    results: dict[int, list[Bits]] = {}
    kinds: dict[int, tuple[str, str]] = {}
    for fact in evidence.facts:
        if fact.name == "one_batch" and fact.rank is not None and fact.rank in evidence.ranks:
            results.setdefault(fact.rank, []).append((fact.value["scores"], fact.value["gradients"]))
            # The first description counts: libraries may be loaded later, when other code needs them.
            kinds.setdefault(fact.rank, (evidence.ranks[fact.rank].kind, fact.value["alike"]))
    groups = defaultdict[tuple[str, str], dict[int, tuple[Bits, ...]]](dict)
    for rank, own in sorted(results.items()):
        groups[kinds[rank]][rank] = tuple(own)
    for _, group in sorted(groups.items()):
        yield _Group(results=group)


def _wrong(evidence: Evidence, rank: int, count: float, lines: list[str]) -> Finding:
    return _finding(
        evidence,
        (rank,),
        what=f"rank {rank} returns a wrong convolution, or wrong gradients of it, even when it runs alone",
        measured=f"{count:.0f} wrong elements",
        limit=_WRONG_ELEMENTS.limit(),
        lines=lines,
    )


def _nondeterministic(evidence: Evidence, rank: int, results: tuple[Bits, ...], lines: list[str]) -> Finding:
    return _finding(
        evidence,
        (rank,),
        what=f"rank {rank} is nondeterministic: the same batch gives different {_part(results)} from time to time",
        measured=f"{len(set(results))} results of {len(results)} times",
        lines=lines,
    )


def _outvoted(evidence: Evidence, group: _Group, hosts: Mapping[int, str], lines: list[str]) -> Iterator[Finding]:
    steady = group.steady()
    vote = minority(steady, hosts)
    if len(set(steady.values())) < 2:
        return
    parts = _part(tuple(steady.values()))
    if vote.odd:
        num_others = len(steady) - len(vote.odd)
        yield _finding(
            evidence,
            vote.odd,
            what=f"{listed('rank', vote.odd)} computed other {parts} of one batch than the {num_others} equal ranks",
            measured=f"{len(set(steady.values()))} results on {len(steady)} ranks that compute alike",
            lines=lines,
        )
    else:
        ranks = tuple(steady)
        culprit = Culprit(kind="none", name=f"one of {listed('rank', ranks)}, not separable", ranks=ranks)
        yield _finding(
            evidence,
            ranks,
            what=f"equal ranks compute different {parts} of one batch, each rank the same each time",
            measured=f"{len(set(steady.values()))} results on {len(steady)} ranks that compute alike",
            lines=lines,
            culprit=culprit,
        )


def _finding(
    evidence: Evidence,
    ranks: tuple[int, ...],
    *,
    what: str,
    measured: str,
    lines: list[str],
    limit: Limit | None = None,
    culprit: Culprit | None = None,
) -> Finding:
    return Finding(
        severity="fail",
        check="training",
        what=what,
        culprit=culprit or rank_culprit(evidence, ranks),
        measured=measured,
        limit=limit,
        evidence=tuple(lines[:_SHOWN]),
        action=_ACTION,
    )


def _part(results: tuple[Bits, ...]) -> str:
    """Return the part that differs: a wrong forward makes a wrong backward, too."""
    return "scores" if len({scores for scores, _ in results}) > 1 else "gradients"


def _lines(group: _Group) -> list[str]:
    """Return for each result, the rarest first, its ranks and how often it occurred."""
    counts = Counter(bits for results in group.results.values() for bits in results)
    lines = []
    # A rank that lies may have any number of results.
    for bits in heapq.nsmallest(_SHOWN, counts, key=lambda bits: (counts[bits], bits)):
        ranks = [rank for rank, results in group.results.items() if bits in results]
        lines.append(f"gradients {as_name(bits[1][:16])}: {listed('rank', ranks)}, {counts[bits]} times")
    return lines
