"""The mpiruns that SEATRIAL_TEST_MPIRUNS names, with colons between, as parameters of tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MPIRUNS = [path for path in os.environ.get("SEATRIAL_TEST_MPIRUNS", "").split(":") if path]

each_mpirun = pytest.mark.parametrize("mpirun", MPIRUNS, ids=lambda path: Path(path).parts[-3])
first_mpirun = pytest.mark.parametrize("mpirun", MPIRUNS[:1], ids=lambda path: Path(path).parts[-3])
first_mpirun_then_others_nightly = pytest.mark.parametrize(
    "mpirun",
    [pytest.param(path, marks=[pytest.mark.nightly] if number else []) for number, path in enumerate(MPIRUNS)],
    ids=[Path(path).parts[-3] for path in MPIRUNS],
)
