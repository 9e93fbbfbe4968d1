"""The targets by name. A new one is a file that ends in ``TARGETS = (Target(...),)``, and its line here."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from seatrial.launch.job import Processes
from seatrial.launch.target import Target

__all__ = ["TARGETS", "would_start"]

_FILES = ("local", "ssh", "mpirun", "slurm", "kubernetes")
"""In this folder, in the order in which people read of them. The file that travels is built without some of them."""

TARGETS: Mapping[str, Target] = {
    target.name: target
    for name in _FILES
    if importlib.util.find_spec(f"{__package__}.{name}")
    for target in importlib.import_module(f"{__package__}.{name}").TARGETS
}


def would_start(job: Processes, out: Path) -> list[str]:
    """The lines of ``--dry-run``."""
    target = TARGETS[job.target]
    control = f"{target.address(job)}:PORT"
    return target.shown(target.render(job, control=control, token="TOKEN", keep=str(out / "RUN-ID")))
