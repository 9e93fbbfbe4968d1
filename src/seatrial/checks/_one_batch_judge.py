"""Who computes another step than equal ranks do: a vote on bits, repeats, and an answer that is known. Pure.

Ranks of one device model, with the same torch, libraries, settings and number of threads or multiprocessors, are of one
group: they have to arrive at the same bits, each time. Ranks of different groups are never compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from seatrial.checks._fleet import listed
from seatrial.checks.base import in_words
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Culprit, Finding, Judged, Limit, Ruling
from seatrial.verdict.statistics import minority

__all__ = ["doubtful", "judge_one_batch"]

_SHOWN = 8
_ACTION = "run compute and memory there for longer; until then trust nothing that was computed there."
_EXACT = Limit(value=0, unit="1", origin="exact")

Bits = tuple[str, str]
"""Digests of the scores and of the gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Ranks that compute alike, and what each arrived at, time after time."""

    told: Mapping[int, tuple[Bits, ...]]

    def loose(self) -> tuple[int, ...]:
        """Who does not repeat itself."""
        return tuple(rank for rank, each in self.told.items() if len(set(each)) > 1)

    def steady(self) -> dict[int, Bits]:
        """By rank what it arrives at each time."""
        return {rank: each[0] for rank, each in self.told.items() if len(set(each)) == 1}

    def reproducible(self) -> bool:
        """Whether to repeat oneself is the rule here, so that who does not can be told to be wrong."""
        return len(self.told) > 1 and 2 * len(self.loose()) <= len(self.told)


def doubtful(evidence: Evidence) -> tuple[int, ...]:
    """The ranks to be asked again, alone: who does not repeat itself, and one who did so far; who is outvoted;
    all where nobody is.
    """
    found: list[int] = []
    for group in _groups(evidence):
        loose, steady = group.loose(), group.steady()
        vote = minority(steady)
        found += [*loose, *vote.odd]
        others = [rank for rank in steady if rank not in vote.odd]
        found += others if vote.majority is None else others[:1] if loose else ()
    return tuple(found)


def judge_one_batch(evidence: Evidence) -> Ruling:
    """Who computes a known answer wrongly, who does not repeat itself, who is outvoted, and who was not compared."""
    checked = [figure for figure in evidence.figures if figure.name == "wrong_elements"]
    wrong = {figure.rank: figure.value for figure in checked if figure.rank is not None and figure.value != 0}
    findings: list[Finding] = []
    unjudged: list[str] = []
    groups = list(_groups(evidence))
    for rank, count in sorted(wrong.items()):
        lines = next((_lines(group) for group in groups if rank in group.told), [])
        findings.append(_wrong(evidence, rank, count, lines))
    for group in groups:
        rest = _Group(told={rank: each for rank, each in group.told.items() if rank not in wrong})
        if group.reproducible():
            findings += [_loose(evidence, rest, rank) for rank in rest.loose()]
            findings += _outvoted(evidence, rest)
        elif len(group.told) > 1:
            unjudged.append(f"training: one batch gives other bits each time on {listed('rank', group.loose())}")
    lonely = [rank for group in groups if len(group.told) == 1 for rank in group.told]
    if len(evidence.ranks) == 1:
        unjudged.append("training: gradients not compared (1 rank)")
    elif lonely:
        unjudged.append(
            f"training: gradients of {listed('rank', lonely)} not compared, as no other rank computes alike"
        )
    judged = tuple(Judged(figure=figure, limit=_EXACT, passed=figure.value == 0) for figure in checked)
    return Ruling(findings=tuple(findings), judged=judged, unjudged=tuple(unjudged))


def _groups(evidence: Evidence) -> Iterator[_Group]:
    told: dict[int, list[Bits]] = {}
    kinds: dict[int, tuple[str, str]] = {}
    for fact in evidence.facts:
        if fact.name == "one_batch" and fact.rank is not None and fact.rank in evidence.ranks:
            told.setdefault(fact.rank, []).append((fact.value["scores"], fact.value["gradients"]))
            # What it says first: libraries may be loaded later, when something else needs them.
            kinds.setdefault(fact.rank, (evidence.ranks[fact.rank].kind, fact.value["alike"]))
    for kind in sorted(set(kinds.values())):
        yield _Group(told={rank: tuple(told[rank]) for rank in sorted(told) if kinds[rank] == kind})


def _wrong(evidence: Evidence, rank: int, count: float, lines: list[str]) -> Finding:
    places = [in_words(fact.value) for fact in evidence.facts if (fact.name, fact.rank) == ("wrong_values", rank)]
    return _finding(
        evidence,
        (rank,),
        what=f"rank {rank} computes wrongly, by itself: a convolution, or its gradients, whose exact answer is known",
        measured=f"{count:.0f} wrong elements",
        limit=_EXACT,
        lines=[*places, *lines],
    )


def _loose(evidence: Evidence, group: _Group, rank: int) -> Finding:
    seen = group.told[rank]
    return _finding(
        evidence,
        (rank,),
        what=f"rank {rank} does not repeat itself: the same batch gives it other {_part(seen)} at times",
        measured=f"{len(set(seen))} results of {len(seen)} times",
        lines=_lines(group),
    )


def _outvoted(evidence: Evidence, group: _Group) -> Iterator[Finding]:
    steady = group.steady()
    vote = minority(steady)
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
            lines=_lines(group),
        )
    else:
        ranks = tuple(steady)
        culprit = Culprit(kind="none", name=f"one of {listed('rank', ranks)}, not separable", ranks=ranks)
        yield _finding(
            evidence,
            ranks,
            what=f"equal ranks compute other {parts} of one batch, each the same each time",
            measured=f"{len(set(steady.values()))} results on {len(steady)} ranks that compute alike",
            lines=_lines(group),
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
    seen = [evidence.ranks[rank] for rank in ranks]
    name, nodes = ", ".join(rank.label() for rank in seen), tuple(dict.fromkeys(rank.node for rank in seen))
    return Finding(
        severity="fail",
        check="training",
        what=what,
        culprit=culprit or Culprit(kind="rank", name=name, ranks=ranks, nodes=nodes),
        measured=measured,
        limit=limit,
        evidence=tuple(lines[:_SHOWN]),
        action=_ACTION,
    )


def _part(results: tuple[Bits, ...]) -> str:
    """What differs: a wrong forward makes a wrong backward, too."""
    return "scores" if len({scores for scores, _ in results}) > 1 else "gradients"


def _lines(group: _Group) -> list[str]:
    """Of each result who had it, the rarest first, and how often."""
    counts = Counter(bits for each in group.told.values() for bits in each)
    lines = []
    for bits in sorted(counts, key=lambda bits: (counts[bits], bits)):
        ranks = [rank for rank, each in group.told.items() if bits in each]
        lines.append(f"gradients {bits[1][:16]}: {listed('rank', ranks)}, {counts[bits]} times")
    return lines
