"""The built-in levels, read with the real checks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import fields
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


@pytest.mark.parametrize("check", registry.names())
def test_the_work_of_a_check_is_among_its_parameters(check: str) -> None:
    known = registry.load(check)
    assert set(known.work) <= {field.name for field in fields(known.params)}


def _reduced(file: Path, text: str, level: str = "quick") -> Mapping[str, str]:
    file.write_text(f'level = "{level}"\n{text}')
    plan = read_plan(str(file), schemas=registry.schemas(), scopes=registry.scopes(), work=registry.work())
    assert Plan.from_json(plan.to_json()).reduced == plan.reduced
    return plan.reduced


@pytest.mark.parametrize(
    ("text", "reduced"),
    [
        ("", {}),
        ("[compute]\ncpu_size = 1024\n", {}),
        ("[compute]\ncpu_size = 4096\nmin_tflops = 0.1\ntimeout_s = 5\n", {}),
        ("[compute]\ncpu_size = 64\n", {"compute.cpu_size": "64 (level quick: 1024)"}),
        ('[compute]\ncpu_dtypes = ["bf16"]\n', {"compute.cpu_dtypes": '["bf16"] (level quick: ["fp32", "bf16"])'}),
        (
            "[collectives]\ncpu_sizes = [8, 16, 32, 64]\n",
            {"collectives.cpu_sizes": "[8, 16, 32, 64] (level quick: [8, 65536, 1048576, 16777216])"},
        ),
        ('[memory]\npatterns = ["random"]\n', {"memory.patterns"}),
        ("[training]\nmax_steps = 10\n", {"training.max_steps": "10 (level quick: 300)"}),
    ],
)
def test_what_a_plan_sets_below_its_level_is_said(
    text: str, reduced: Mapping[str, str] | set[str], tmp_path: Path
) -> None:
    found = _reduced(tmp_path / "small.toml", text)
    assert (set(found) if isinstance(reduced, set) else found) == reduced


def test_a_level_that_is_like_another_one_has_its_sizes(tmp_path: Path) -> None:
    found = _reduced(tmp_path / "small.toml", "[compute]\ncpu_size = 1024\n", "acceptance")
    assert found == {"compute.cpu_size": "1024 (level acceptance: 2048)"}
