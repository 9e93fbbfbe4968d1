"""Cores by affinity mask and by the quota of a control group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe.cgroup_trees import TREES, plant

from seatrial.probe.cpu import _ranges, affinity, cores_in, cpu_model, usable_cores

MASK = len(os.sched_getaffinity(0))
_MOUNT = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def test_without_a_quota_it_is_the_affinity_mask(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == MASK
    assert usable_cores(plant(tmp_path, TREES["docker without options v2"])) == MASK


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("100000 100000", 1),
        ("10000 100000", 1),
        ("99900000 100000", MASK),
        ("max 100000", MASK),
        ("max", MASK),
        ("", MASK),
        ("100000 0", MASK),
    ],
)
def test_the_quota_of_version_2(tmp_path: Path, text: str, cores: int) -> None:
    tree = {"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": _MOUNT, "sys/fs/cgroup/a/cpu.max": text + "\n"}
    assert usable_cores(plant(tmp_path, tree)) == cores


def test_a_quota_above_our_own_group_counts(tmp_path: Path) -> None:
    tree = {"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": _MOUNT, "sys/fs/cgroup/a/cpu.max": "100000 100000"}
    assert usable_cores(plant(tmp_path, {**tree, "sys/fs/cgroup/a/b/cpu.max": "max 100000"})) == 1


def test_half_a_core_is_one_core(tmp_path: Path) -> None:
    assert usable_cores(plant(tmp_path, TREES["kubernetes v1"])) == 1


def test_the_affinity_mask_is_given_in_ranges() -> None:
    text = affinity()
    assert text is not None
    assert cores_in(text) == os.sched_getaffinity(0)


@given(st.frozensets(st.integers(0, 600)))
def test_ranges_say_what_they_were_made_of(cores: frozenset[int]) -> None:
    assert cores_in(_ranges(sorted(cores))) == cores


def test_a_cpu_without_a_name_has_its_machine_type(tmp_path: Path) -> None:
    root = plant(tmp_path, {"proc/cpuinfo": "processor : 0\nmodel name\t: A CPU @ 2 GHz\n"})
    assert cpu_model(root) == "A CPU @ 2 GHz"
    assert cpu_model(plant(tmp_path, {"proc/cpuinfo": "CPU part : 0xd4f\n"}))
    assert cpu_model(tmp_path / "nowhere")
