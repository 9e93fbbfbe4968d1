"""examples/jitter.py and swap.py become checks by being copied into the package, as CONTRIBUTING.md says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_copied_check_is_planned_measured_and_judged(tmp_path: Path) -> None:
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("jitter.py", "swap.py"):
        shutil.copy(ROOT / "examples" / name, source / "seatrial" / "checks")
    plan = tmp_path / "plan.toml"
    plan.write_text('level = "smoke"\nchecks = ["swap", "jitter"]\n\n[jitter]\nmax_late_ms = 0.001\n')
    done = subprocess.run(
        [sys.executable, "-m", "seatrial", "run", str(plan), "--device", "cpu", "--out", str(tmp_path / "reports")],
        env={**os.environ, "PYTHONPATH": str(source)},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "[1/2] swap" in done.stderr
    assert "woke late" in done.stdout
    assert "limit 0.001 ms (plan " in done.stdout, done.stdout
