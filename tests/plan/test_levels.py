"""The built-in levels, read with the real checks."""

from __future__ import annotations

import itertools
from functools import cache

import pytest

from seatrial.checks import registry
from seatrial.plan.model import Plan
from seatrial.plan.reader import read_plan
from seatrial.plan.source import DEFAULT_LEVEL, LEVELS


@cache
def read(level: str) -> Plan:
    checks = {name: registry.load(name) for name in registry.names()}
    return read_plan(
        level,
        schemas={name: check.params for name, check in checks.items()},
        scopes={name: check.scope for name, check in checks.items()},
    )


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_is_a_plan_of_its_own_values(level: str) -> None:
    plan = read(level)
    assert plan.name == level
    assert plan.not_asked == {}
    assert plan.deadline_s.origin == f"level {level}"
    origins = {setting.origin for table in plan.settings.values() for setting in table.values()}
    assert origins <= {"default", f"level {level}"}


def test_a_longer_level_asks_for_all_that_a_shorter_one_asks_for() -> None:
    plans = [read(level) for level in LEVELS]
    for shorter, longer in itertools.pairwise(plans):
        assert set(shorter.checks) <= set(longer.checks)
        assert shorter.deadline_s.value < longer.deadline_s.value


def test_the_default_is_a_level() -> None:
    assert DEFAULT_LEVEL in LEVELS
