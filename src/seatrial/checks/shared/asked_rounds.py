"""Whether the ranks did the rounds that a plan asks for, by what each of them tells. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seatrial.checks.shared.facts import has_fields
from seatrial.evidence.evidence import Evidence


def is_rounds(value: Any) -> bool:
    """Return whether the value of a fact tells a number of rounds and their seconds."""
    return has_fields(value, number=int, seconds=(int, float))


def too_few_rounds(evidence: Evidence, *, rounds: int, seconds: float) -> Iterator[str]:
    """Yield what is absent: one entry for each rank that did fewer rounds, or for a shorter time.

    Ranks agree on each further round at a store that others can write to, and a deadline may cut them short.

    Args:
        evidence: The evidence of the check, its facts ``rounds`` of the form ``is_rounds``.
        rounds: Least number of rounds.
        seconds: Seconds for which rounds go on; 0: there is no such time.
    """
    if rounds <= 1 and seconds <= 0:
        return
    done = {fact.rank: fact.value for fact in evidence.facts if fact.name == "rounds"}
    for rank in evidence.asked:
        value = done.get(rank)
        if value is None:
            yield f"the number of rounds of rank {rank}"
        elif not (value["number"] >= rounds and value["seconds"] >= seconds):
            asked = f"at least {rounds} rounds" if seconds <= 0 else f"{seconds:.0f} s of rounds"
            yield f"{asked} of rank {rank}, which did {_number(value['number'])} in {value['seconds']:.0f} s"


def _number(value: int) -> str:
    return str(value)[:12]
