"""How tests start a script of a framework under ``seatrial launch``, and read what its ranks printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "scripts"
LAUNCH = (sys.executable, "-m", "seatrial", "launch", "--device", "cpu", "--output", "all")


def environ_with(frameworks: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment with the frameworks of a folder.

    They must not be in the environment of seatrial itself, so that its ranks do without them.
    """
    path = [frameworks, os.environ.get("PYTHONPATH", "")]
    # They warn of what later versions of torch or Python will not have.
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONWARNINGS": "ignore",
        "ACCELERATE_USE_CPU": "true",
        **(more or {}),
    }


def launched(
    folder: Path, *words: str, frameworks: str, env: Mapping[str, str] | None = None, timeout_s: float = 110
) -> str:
    """Return what the ranks print until all of them have ended well."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=environ_with(frameworks, env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_ranks(output: str, world_size: int = 4) -> None:
    """Each rank takes itself for what its RANK says, in one world."""
    total = world_size * (world_size + 1) // 2
    seen = re.findall(r"rank (\d+) of (\d+) is RANK (\d+), sum (\d+)", output)
    numbers = [str(rank) for rank in range(world_size)]
    assert sorted(seen) == [(rank, str(world_size), rank, str(total)) for rank in numbers]
