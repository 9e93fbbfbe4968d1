"""The steps of a trial, made from its plan, and the steps of the next generation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.checks.check import NETWORK_SCOPES, Check, Scope
from seatrial.plan.model import Plan

_DEFAULT_TIMEOUT_S = 120.0
ROUND = "round "
"""Stage of a further round, before its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step that is to come."""

    check: str
    """Name of the check."""
    scope: Scope
    """Ranks that it needs together; ``alone``: they do not wait for one another."""
    stage: str = "measure"
    """Stage of the check."""
    shares: Callable[[dict[str, Any]], bool] | None = None
    """Only the first rank of the generation takes part, and shares values that have this form. None: all ranks do."""
    excuses: bool = False
    """Follows also where a node was late in an earlier stage of the check, without that node. Scope ``agents`` only."""
    last_stage: bool = True
    """The results of the check are complete after it."""
    timeout_s: float = _DEFAULT_TIMEOUT_S
    """Seconds until its deadline."""
    params: dict[str, Any] = field(default_factory=dict)
    """Parameters of the check."""
    ranks: tuple[int, ...] | None = None
    """Ranks that take part. None: all ranks of the generation; with scope ``agents``: none, but all nodes."""
    watches: bool = False
    """Whether the process that carries it out stays until the end of the trial. Scope ``agents`` only."""
    round: Any = None
    """Values for a further round, from the check's ``next_round``; JSON."""

    def repeated_by(self, rank: int) -> StepPlan:
        """Return this check again, by one rank while all others are idle."""
        return replace(self, scope="alone", stage="repeat", shares=None, ranks=(rank,))

    def next_round(self, ranks: tuple[int, ...], values: Any) -> StepPlan:
        """Return the next round of this check, by these ranks, with the values that its results so far suggest."""
        number = int(self.stage.removeprefix(ROUND)) + 1 if self.stage.startswith(ROUND) else 1
        return replace(self, stage=f"{ROUND}{number}", shares=None, excuses=False, ranks=ranks, round=values)


def of_plan(plan: Plan, load: Callable[[str], Check]) -> tuple[StepPlan, ...]:
    """Return the steps of generation 0, in the plan's order. ``load``: name of a check -> the check."""
    steps = []
    for name in plan.checks:
        check = load(name)
        values = {key: setting.value for key, setting in plan.settings[name].items()}
        for number, stage in enumerate(check.stages, start=1):
            steps.append(
                StepPlan(
                    check=name,
                    scope=check.scope,
                    watches=check.watches,
                    stage=stage.name,
                    shares=stage.shares,
                    excuses=stage.excuses,
                    last_stage=number == len(check.stages),
                    timeout_s=float(values.get("timeout_s", _DEFAULT_TIMEOUT_S)),
                    params=values,
                )
            )
    return tuple(steps)


def next_generation(steps: Sequence[StepPlan], failed_at: int) -> tuple[StepPlan, ...]:
    """Return the steps for the ranks that are left: the check that failed and those after it.

    If one of them needs the world group, the steps that form it come first. ``failed_at``: index of the failed step.
    """
    first = next(number for number, step in enumerate(steps) if step.check == steps[failed_at].check)
    rest = tuple(step for step in steps[first:] if step.ranks is None and step.scope != "agents")
    if any(step.scope == "world" for step in rest) and not any(step.scope == "bootstrap" for step in rest):
        rest = tuple(step for step in steps[:first] if step.scope == "bootstrap") + rest
    return rest


def without_network(steps: Sequence[StepPlan], done: int) -> tuple[tuple[StepPlan, ...], tuple[str, ...]]:
    """Return the steps without those to come that need the network, and the names of their checks.

    ``done``: index of the first step that is to come.
    """
    left_out = [step for step in steps[done:] if step.scope in NETWORK_SCOPES]
    kept = (*steps[:done], *(step for step in steps[done:] if step not in left_out))
    return kept, tuple(dict.fromkeys(step.check for step in left_out))


def ranges(ranks: Collection[int]) -> list[list[int]]:
    """Return ascending ranks as [first, last] pairs: each node receives all ranks, however many there are."""
    pairs: list[list[int]] = []
    for rank in ranks:
        if pairs and rank == pairs[-1][1] + 1:
            pairs[-1][1] = rank
        else:
            pairs.append([rank, rank])
    return pairs
