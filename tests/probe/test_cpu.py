"""Cores by affinity mask and by the quota of a control group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seatrial.probe.cpu import usable_cores

MASK = len(os.sched_getaffinity(0))


def _v1(root: Path, quota: str, period: str = "100000") -> Path:
    (root / "cpu").mkdir()
    (root / "cpu" / "cpu.cfs_quota_us").write_text(quota + "\n")
    (root / "cpu" / "cpu.cfs_period_us").write_text(period + "\n")
    return root


def test_without_a_quota_it_is_the_affinity_mask(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == MASK


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
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(
    ("quota", "period", "cores"),
    [("100000", "100000", 1), ("-1", "100000", MASK), ("99900000", "100000", MASK), ("100000", "0", MASK)],
)
def test_the_quota_of_version_1(tmp_path: Path, quota: str, period: str, cores: int) -> None:
    assert usable_cores(_v1(tmp_path, quota, period)) == cores
