"""From a plan to the steps of a trial, and to the steps of the next generation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.checks.base import Check, Scope
from seatrial.plan.model import Plan

__all__ = ["ROUND", "StepPlan", "next_generation", "of_plan", "ranges"]

_DEFAULT_TIMEOUT_S = 120.0
ROUND = "round "


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step that is to come. ``ranks`` None: all ranks of the generation."""

    check: str
    scope: Scope
    stage: str = "measure"
    first_only: bool = False
    last_stage: bool = True
    timeout_s: float = _DEFAULT_TIMEOUT_S
    params: dict[str, Any] = field(default_factory=dict)
    ranks: tuple[int, ...] | None = None
    round: Any = None
    """What a check asked for after it had seen the results so far; JSON."""

    def repeated_by(self, rank: int) -> StepPlan:
        """The same check once more, by one rank while all others are idle."""
        return replace(self, scope="alone", stage="repeat", first_only=False, ranks=(rank,))

    def next_round(self, ranks: tuple[int, ...], told: Any) -> StepPlan:
        """The same check once more, by these ranks, as its results so far suggest."""
        number = int(self.stage.removeprefix(ROUND)) + 1 if self.stage.startswith(ROUND) else 1
        return replace(self, stage=f"{ROUND}{number}", first_only=False, ranks=ranks, round=told)


def of_plan(plan: Plan, load: Callable[[str], Check]) -> tuple[StepPlan, ...]:
    """The steps of generation 0, in the plan's order."""
    steps = []
    for name in plan.checks:
        check = load(name)
        values = {key: setting.value for key, setting in plan.settings[name].items()}
        for number, stage in enumerate(check.stages, start=1):
            steps.append(
                StepPlan(
                    check=name,
                    scope=check.scope,
                    stage=stage.name,
                    first_only=stage.first_only,
                    last_stage=number == len(check.stages),
                    timeout_s=float(values.get("timeout_s", _DEFAULT_TIMEOUT_S)),
                    params=values,
                )
            )
    return tuple(steps)


def next_generation(steps: Sequence[StepPlan], failed_at: int) -> tuple[StepPlan, ...]:
    """What is left to ask once the suspects are out: the check that failed and those after it.

    A world that is needed again is formed again.
    """
    first = next(number for number, step in enumerate(steps) if step.check == steps[failed_at].check)
    rest = tuple(step for step in steps[first:] if step.ranks is None)
    if any(step.scope == "world" for step in rest) and not any(step.scope == "bootstrap" for step in rest):
        rest = tuple(step for step in steps[:first] if step.scope == "bootstrap") + rest
    return rest


def ranges(ranks: Collection[int]) -> list[list[int]]:
    """Ascending ranks as [first, last] pairs: every node is told of all ranks, however many there are."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return found
