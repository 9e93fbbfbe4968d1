"""Recorded outputs of real machines.

They are not part of this project: SEATRIAL_TEST_SAMPLES names their folder, or they lie beside the project; README.md
beside them names the source and the licence of each.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).parents[3] / "shared" / "samples"


def sample(name: str) -> Path:
    """Return a recorded file or folder. Skips the test where it is not there."""
    path = Path(os.environ.get("SEATRIAL_TEST_SAMPLES", _BESIDE)) / name
    if not path.exists():
        pytest.skip(f"no recording {name} (SEATRIAL_TEST_SAMPLES names another folder)")
    return path
