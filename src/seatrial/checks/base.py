"""What a check is. A new check is one new file in this folder and its name in a level.

Importing a check costs nothing: torch is imported inside ``measure`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from seatrial.verdict.evidence import Evidence
from seatrial.verdict.figures import Figure
from seatrial.verdict.findings import Ruling

if TYPE_CHECKING:
    from seatrial.worker.context import Context

__all__ = [
    "STARVED",
    "TELL_EVERY_S",
    "Check",
    "Held",
    "Scope",
    "Stage",
    "held_by_user",
    "holds",
    "in_words",
    "last_told",
    "sound",
]

STARVED = 0.8
"""Who gets less of the CPU time that its threads could use is not blamed for being slow."""
TELL_EVERY_S = 60.0
"""A check that takes long tells its figures so far about so often: what has left a rank survives an interruption."""

Scope = Literal["alone", "node", "pairs", "bootstrap", "world"]
"""The order of a trial: each scope needs only what the scope before it has shown to work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a check, asked of all ranks of a generation or of its first one."""

    name: str = "measure"
    first_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a check holds a figure against, as a person reads it before a trial."""

    what: str
    """The figure and when this counts for it: ``tflops, 2 to 3 ranks``."""
    limit: str
    """The limit with its unit, or that there is none."""
    origin: str
    """In the words of ``Limit.origin``."""


def held_by_user(what: str, limit: str | None, key: str) -> Held:
    """What only the user can limit; ``limit`` None: that is left at ``key`` of the plan, and it is only measured."""
    if limit is None:
        return Held(what=what, limit="none: only measured", origin=f"{key} is none")
    return Held(what=what, limit=limit, origin=f"user {key}")


def holds(value: Any, **kinds: type) -> bool:
    """Whether the value of a fact has these keys, each of its kind."""
    return isinstance(value, dict) and all(isinstance(value.get(key), kind) for key, kind in kinds.items())


def in_words(value: Any) -> str:
    """The value of a fact for a reader: ``dtype bf16; count 1; first [5, 7] is 3, not 4``."""
    if not isinstance(value, dict):
        return str(value)
    told = {key: ", ".join(map(str, each)) if isinstance(each, list) else each for key, each in value.items()}
    return "; ".join(f"{key} {each}" for key, each in told.items())


def sound(evidence: Evidence, forms: Mapping[str, Callable[[Any], bool]]) -> Evidence:
    """What a judge can read: of ranks that there are, and of the facts named in ``forms`` those that have their form.

    Whoever wrote the events may have written anything, and must not take away what else is known.
    """
    known = {None, *evidence.ranks}
    return replace(
        evidence,
        figures=tuple(each for each in evidence.figures if {each.rank, each.peer} <= known),
        facts=tuple(
            each
            for each in evidence.facts
            if each.rank in known and (each.name not in forms or forms[each.name](each.value))
        ),
    )


def last_told(figures: Iterable[Figure]) -> tuple[Figure, ...]:
    """Of each figure what its rank told last. A long check tells the same figure again as it goes on."""
    last = {
        (each.check, each.name, each.rank, each.peer, each.variant, each.size_bytes, each.step, each.stage): each
        for each in figures
    }
    return tuple(last.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question asked of the cluster.

    ``measure`` runs on each rank, once a stage, and tells its figures through the context. ``judge`` is pure.
    ``suspects`` is pure too: the ranks whose figures look wrong and are to be measured again, one after the other
    with everybody else idle, before anything is said of them (stage ``repeat``). ``limits`` says what ``judge``
    holds against what, for given parameters.
    """

    name: str
    scope: Scope
    params: type[Any]
    """A frozen dataclass: each field a parameter that a plan may set, with its unit in its name."""
    measure: Callable[[Context, Any], None]
    judge: Callable[[Evidence, Any], Ruling]
    stages: tuple[Stage, ...] = (Stage(),)
    suspects: Callable[[Evidence, Any], tuple[int, ...]] | None = None
    limits: Callable[[Any], tuple[Held, ...]] | None = None
    next_round: Callable[[Evidence, Any], tuple[tuple[int, ...], dict[str, Any]] | None] | None = None
    """After the last stage, and again after each round: which ranks measure next, and what they find in
    ``given["round"]``; None when nothing more would change the ruling. Pure, and it ends by itself."""
