"""The built-in levels, read with the real checks."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import pytest

from seatrial.checks import registry
from seatrial.plan.model import Plan, Setting
from seatrial.plan.plan_file import DEFAULT_LEVEL, LEVELS
from seatrial.plan.plan_reader import read_plan


@cache
def read(level: str) -> Plan:
    return read_plan(level, schemas=registry.schemas(), scopes=registry.scopes())


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_is_a_plan(level: str) -> None:
    plan = read(level)
    assert plan.name == level
    assert plan.not_asked == {}
    assert plan.deadline_s.origin == f"level {level}"
    origins = {setting.origin for table in plan.settings.values() for setting in table.values()}
    assert origins <= {"default", f"level {level}"}


def test_a_longer_level_has_the_checks_of_a_shorter_one() -> None:
    plans = [read(level) for level in LEVELS]
    for shorter, longer in itertools.pairwise(plans):
        assert set(shorter.checks) <= set(longer.checks)
        assert shorter.deadline_s.value < longer.deadline_s.value


def test_the_default_is_a_level() -> None:
    assert DEFAULT_LEVEL in LEVELS


@pytest.mark.parametrize("level", LEVELS)
def test_the_deadline_of_a_level_leaves_room_for_each_step(level: str) -> None:
    """A quarter of it is for the start of the ranks, and for the end after a hang."""
    plan = read(level)
    for check, table in plan.settings.items():
        assert table["timeout_s"].value <= 0.75 * plan.deadline_s.value, check


def test_a_short_deadline_shortens_the_timeouts_that_nobody_typed(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    for deadline_s, expected in (
        (1000, Setting(value=60.0, origin="level quick")),
        (60, Setting(value=45.0, origin="0.75 x the trial's deadline (level quick: 60)")),
    ):
        file.write_text(f'level = "quick"\ndeadline_s = {deadline_s}\n')
        assert read(str(file)).settings["training"]["timeout_s"] == expected
        read.cache_clear()
    file.write_text('level = "quick"\ndeadline_s = 60\n[training]\ntimeout_s = 100\n')
    typed = read(str(file)).settings["training"]["timeout_s"]
    assert typed == Setting(value=100.0, origin=f"plan {file}:training.timeout_s")
