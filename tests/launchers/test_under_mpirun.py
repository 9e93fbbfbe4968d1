"""The command typed under a real mpirun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launchers.mpiruns import each_mpirun, first_mpirun_then_others_nightly

pytestmark = pytest.mark.mpi


def options(mpirun: str) -> list[str]:
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    if "Open MPI" not in version and "mpirun (Open" not in version:
        return []
    return ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


def of_two_ranks(mpirun: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    """It ends well."""
    done = subprocess.run(
        [mpirun, *options(mpirun), "-np", "2", *command],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("source", ["installed", pytest.param("pyz", marks=pytest.mark.nightly)])
@each_mpirun
def test_ranks_of_mpirun_are_the_ranks(tmp_path: Path, mpirun: str, source: str, pyz: Path) -> None:
    command = [sys.executable, *([str(pyz)] if source == "pyz" else ["-m", "seatrial"])]
    report = json.loads(of_two_ranks(mpirun, [*command, "run", "smoke", "--json", "--out", str(tmp_path)]).stdout)
    assert report["acceptance"]["status"] == "PASS"
    assert report["world_size"] == 2


@first_mpirun_then_others_nightly
def test_a_terminal_that_only_mpirun_reads_gets_no_colors(tmp_path: Path, mpirun: str) -> None:
    trial = [sys.executable, "-m", "seatrial", "run", "--only=inventory", "smoke", "--out", str(tmp_path)]
    output = of_two_ranks(mpirun, trial).stdout
    assert "FINAL ACCEPTANCE: PASS" in output
    assert "\x1b" not in output
