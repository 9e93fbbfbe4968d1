"""Whether the ranks did the rounds that a plan asks for, by what each of them tells. Pure."""

from __future__ import annotations

from typing import Any

from seatrial.checks.shared.facts import has_fields
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Ruling


def is_rounds(value: Any) -> bool:
    """Return whether the value of a fact tells a number of rounds, their seconds, and whether more could have fit."""
    return has_fields(value, number=int, seconds=(int, float), fits=bool)


def judge_rounds(evidence: Evidence, *, rounds: int, seconds: float) -> Ruling:
    """Return a ruling that has each rank with fewer rounds than asked for, or for a shorter time.

    Ranks agree on each further round at a store to which others can write, so such a rank is absent. Where no other
    round would fit into its time limit at a steady pace, its check is not judged in full.

    Args:
        evidence: The evidence of the check, its facts ``rounds`` of the form ``is_rounds``.
        rounds: Least number of rounds.
        seconds: Seconds for which rounds go on; 0: there is no such time.
    """
    if rounds <= 1 and seconds <= 0:
        return Ruling()
    done = {fact.rank: fact.value for fact in evidence.facts if fact.name == "rounds"}
    absent: list[str] = []
    cut: list[str] = []
    for rank in evidence.asked:
        value = done.get(rank)
        if value is None:
            absent.append(f"the number of rounds of rank {rank}")
        elif not (value["number"] >= rounds and value["seconds"] >= seconds):
            asked = f"at least {rounds} rounds" if seconds <= 0 else f"{seconds:.0f} s of rounds"
            text = f"{asked} of rank {rank}, which did {value['number']} in {value['seconds']:.0f} s"
            (absent if value["fits"] else cut).append(text)
    check = evidence.facts[0].check if cut else ""
    few = tuple(f"{check}: {text}, as timeout_s has no time for another one" for text in cut[:1])
    return Ruling(absent=tuple(absent), unjudged=few)
