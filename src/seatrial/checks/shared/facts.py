"""Reading evidence that may be malformed or repeated, and putting facts into words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Measurement


def has_fields(value: Any, /, **types: type | tuple[type, ...]) -> bool:
    """Return whether ``value`` is a dictionary with these keys, each with a value of its type."""
    return isinstance(value, dict) and all(key in value and isinstance(value[key], kind) for key, kind in types.items())


def describe(value: Any) -> str:
    """Return the value of a fact for a reader: ``dtype bf16; count 1; first [5, 7] is 3, not 4``."""
    if not isinstance(value, dict):
        return str(value)
    parts = {key: ", ".join(map(str, part)) if isinstance(part, list) else part for key, part in value.items()}
    return "; ".join(f"{key} {part}" for key, part in parts.items())


def drop_malformed(evidence: Evidence, forms: Mapping[str, Callable[[Any], bool]]) -> Evidence:
    """Return the evidence without unknown ranks, and without facts that do not have the form that ``forms`` asks for.

    Events may be malformed or hostile; drop the bad entries and keep the rest. A fact whose name is not in ``forms``
    may have any form.
    """
    known = {None, *evidence.ranks}
    return replace(
        evidence,
        measurements=tuple(entry for entry in evidence.measurements if {entry.rank, entry.peer} <= known),
        facts=tuple(
            fact
            for fact in evidence.facts
            if fact.rank in known and (fact.name not in forms or forms[fact.name](fact.value))
        ),
    )


def unreadable(evidence: Evidence, forms: Mapping[str, Callable[[Any], bool]]) -> tuple[str, ...]:
    """Return the facts without the form that ``forms`` asks for, as absent: what they report is not known."""
    facts = [fact for fact in evidence.facts if fact.name in forms and not forms[fact.name](fact.value)]
    return tuple(dict.fromkeys(f"a readable {fact.name} of rank {fact.rank}" for fact in facts))


def latest(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Return each measurement as its rank last reported it: a long check reports the same measurement repeatedly."""
    last = {
        (entry.check, entry.name, entry.rank, entry.peer, entry.variant, entry.size_bytes, entry.step, entry.stage): (
            entry
        )
        for entry in measurements
    }
    return tuple(last.values())
