"""The judge of values that have an exact answer: any wrong element fails its device. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from seatrial.checks.check import exact_rule
from seatrial.checks.shared.culprits import device_culprit
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Finding, Ruling
from seatrial.evidence.measurement import Fact

_LINES = 8
_MOST = 1 << 53
"""More elements than any memory has, and exact as a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactFields:
    """The fields of a fact about wrong elements."""

    variants: Collection[str]
    """The variants that there are: one that a rank makes up would stand in our sentence."""
    variant_key: str
    """The field that names the variant, such as ``dtype``."""
    count_key: str
    """The field that has the number of wrong elements, such as ``count``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactWords:
    """The sentences in which a check reports wrong elements."""

    check: str
    """The name of the check."""
    elements: str
    """The elements in the plural: ``wrong elements``."""
    what: Callable[[int, Sequence[str]], str]
    """The sentence of the finding, for a rank and the variants in which it was wrong."""
    line: Callable[[Fact], str]
    """The line of evidence for one fact."""
    action: str
    """The next step, one sentence."""


def is_wrong(value: dict[str, object], fields: ExactFields) -> bool:
    """Return whether a fact about wrong elements has a number of them and a variant that there is."""
    count, variant = value.get(fields.count_key), value.get(fields.variant_key)
    return type(count) is int and 0 < count < _MOST and isinstance(variant, str) and variant in fields.variants


def judge_exact(evidence: Evidence, measurement: str, fact: str, fields: ExactFields, words: ExactWords) -> Ruling:
    """Fail each rank that reports wrong elements, in a measurement or in a fact.

    Facts arrive at once; the measurements of a rank that died or was stopped perhaps never.

    Args:
        evidence: What the ranks reported.
        measurement: Name of the measurement that counts wrong elements by variant.
        fact: Name of the fact that describes the first wrong elements.
        fields: The fields of that fact.
        words: How the check names them.
    """
    rule = exact_rule(measurement)
    judged = tuple(
        rule.judge(entry)
        for entry in evidence.measurements
        if entry.name == measurement and entry.variant in fields.variants
    )
    wrong: dict[int, dict[str, float]] = {}
    for entry in judged:
        if not entry.passed and entry.measurement.rank is not None:
            wrong.setdefault(entry.measurement.rank, {})[entry.measurement.variant] = entry.measurement.value
    lines = defaultdict[int, list[str]](list)
    for seen in evidence.facts:
        if seen.name == fact and seen.rank is not None:
            if len(lines[seen.rank]) < _LINES:
                lines[seen.rank].append(words.line(seen))
            counts = wrong.setdefault(seen.rank, {})
            variant = seen.value[fields.variant_key]
            counts[variant] = max(seen.value[fields.count_key], counts.get(variant, 0))
    finished = {*evidence.asked}
    findings = tuple(
        Finding(
            severity="fail",
            check=words.check,
            what=words.what(rank, tuple(counts)),
            culprit=device_culprit(evidence, rank),
            measured=f"{'' if rank in finished else 'at least '}{sum(counts.values()):.0f} {words.elements}",
            limit=rule.limit(),
            evidence=tuple(lines[rank]),
            action=words.action,
        )
        for rank, counts in sorted(wrong.items())
    )
    return Ruling(findings=findings, judged=judged)
