"""The command typed under a real mpirun. SEATRIAL_TEST_MPIRUNS names them, with colons between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi

MPIRUNS = [path for path in os.environ.get("SEATRIAL_TEST_MPIRUNS", "").split(":") if path]


def options(mpirun: str) -> list[str]:
    told = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    if "Open MPI" not in told and "mpirun (Open" not in told:
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


@pytest.mark.parametrize("source", ["installed", "pyz"])
@pytest.mark.parametrize("mpirun", MPIRUNS, ids=lambda path: Path(path).parts[-3])
def test_ranks_of_mpirun_are_the_ranks(tmp_path: Path, mpirun: str, source: str, pyz: Path) -> None:
    command = [sys.executable, *([str(pyz)] if source == "pyz" else ["-m", "seatrial"])]
    report = json.loads(of_two_ranks(mpirun, [*command, "run", "smoke", "--json", "--out", str(tmp_path)]).stdout)
    assert report["acceptance"]["status"] == "PASS"
    assert report["world_size"] == 2


@pytest.mark.parametrize("mpirun", MPIRUNS, ids=lambda path: Path(path).parts[-3])
def test_a_terminal_that_only_mpirun_reads_gets_no_colours(tmp_path: Path, mpirun: str) -> None:
    trial = [sys.executable, "-m", "seatrial", "run", "--only=inventory", "smoke", "--out", str(tmp_path)]
    told = of_two_ranks(mpirun, trial).stdout
    assert "FINAL ACCEPTANCE: PASS" in told
    assert "\x1b" not in told
