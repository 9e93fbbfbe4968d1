"""The limits of the training check."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from seatrial.checks.check import Rule, exact_rule, user_rule
from seatrial.checks.shared.speed import CPU_SHARE, MIN_CPU_SHARE, fleet_speed_rules
from seatrial.checks.training.params import Params, recipe_for
from seatrial.errors import RequestError
from seatrial.training.recipe import MAX_DIGITS_RANKS
from seatrial.training.references import find_reference

LOSS_WINDOW = 10
"""The loss falls when its mean over this number of last points is below that over as many first ones."""
QUOTA_SHARE = 1 - MIN_CPU_SHARE
"""The share of the CPU time that a rank could have used, beyond what most others lose, that a quota may withhold."""
OTHERS_SHARE = 0.3
"""The same of other processes: the effect within which CPU speeds count as equal (``statistics.judge_fleet``)."""
_COUNTERS = "fleet, kernel's counters"


def rules(params: Params) -> tuple[Rule, ...]:
    """Return the rules for learning, equality and speed."""
    return (
        Rule(measurement="loss", text="finite at every step", origin="exact"),
        Rule(
            measurement="loss",
            condition=f"mean of the last {LOSS_WINDOW} points",
            text=f"below that of the first {LOSS_WINDOW}, also on most hosts",
            origin="its own first points",
        ),
        *_accuracy_rules(params),
        Rule(measurement="accuracy", text="equal on all ranks, no higher than they counted", origin="exact"),
        Rule(measurement="evaluated", text="every test sample, once a run", origin="exact"),
        Rule(measurement="digest", text="equal on ranks of one kind", origin="exact"),
        Rule(
            measurement="one_batch", text="equal on ranks that compute alike, each time", origin="vote of these ranks"
        ),
        exact_rule("wrong_elements", condition="measured again"),
        *fleet_speed_rules("compute_s"),
        CPU_SHARE,
        Rule(
            measurement="CPU time kept by a quota",
            text=f"at most {QUOTA_SHARE * 100:.0f} % more than most others",
            origin=_COUNTERS,
        ),
        Rule(
            measurement="CPU time kept by others",
            text=f"at most {OTHERS_SHARE * 100:.0f} % more than most others",
            origin=_COUNTERS,
            severity="warn",
        ),
        Rule(measurement="compute_s, on a GPU", text="only warns", origin="a small model says little of a GPU"),
    )


def accuracy_rule(params: Params, key: str, num_runs: float) -> Rule:
    """Return the rule for the lowest accuracy of several runs; without a number where there is no reference.

    Args:
        params: The parameters of the check.
        key: The key of the recipe's reference.
        num_runs: Number of runs: the lowest of more runs is lower.
    """
    if params.min_accuracy is not None:
        return user_rule("accuracy", "at least", params.min_accuracy, "1", key="training.min_accuracy")
    reference = find_reference(key)
    if reference is None:
        return Rule(measurement="accuracy", origin="no reference for this recipe")
    origin = f"reference {key}, {reference.num_seeds} seeds" + (f", {num_runs:.0f} runs" if num_runs > 1 else "")
    value = reference.limit(int(min(max(num_runs, 1), 1e9)))
    return Rule(measurement="accuracy", comparison="at least", value=value, origin=origin)


def _accuracy_rules(params: Params) -> Iterator[Rule]:
    """Yield a rule for each range of world sizes with one limit; above ``MAX_DIGITS_RANKS`` all have the same."""
    world_sizes = range(1, MAX_DIGITS_RANKS + 2)
    for rule, group in itertools.groupby(world_sizes, key=lambda world_size: _accuracy_rule_at(params, world_size)):
        first, *others = group
        last = others[-1] if others else first
        if last > MAX_DIGITS_RANKS:
            ranks = "" if first == 1 else f"{first} or more ranks"
        else:
            ranks = f"{first} to {last} ranks" if others else f"{first} rank{'s' if first > 1 else ''}"
        yield replace(rule, condition=ranks)


def _accuracy_rule_at(params: Params, world_size: int) -> Rule:
    """Return the rule for the accuracy that ``world_size`` ranks reach in one run."""
    try:
        _, key = recipe_for(params, world_size)
    except RequestError:  # Params validated every other parameter
        return Rule(measurement="accuracy", text="cannot be trained", origin="the global batch is larger than the data")
    rule = accuracy_rule(params, key, 1)
    if rule.value is None or params.min_accuracy is not None or not params.duration_s:
        return rule
    return replace(rule, origin=f"{rule.origin}; lower for the lowest of several runs")
