"""The targets by name: from each ``NAME_target.py`` of this package, and ``NAME/NAME_target.py`` of its subpackages.

Such a file ends in ``TARGETS = (Target(...),)``. This works in a zip file, too.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import seatrial.targets as package
from seatrial.targets.command import DRY_RUN_TOKEN
from seatrial.targets.target import Target
from seatrial.util.private_output import require_private_output

if TYPE_CHECKING:
    from seatrial.targets.job import Processes


def _modules() -> Iterator[str]:
    for module in pkgutil.iter_modules(package.__path__):
        if module.ispkg:
            yield f"{package.__name__}.{module.name}.{module.name}_target"
        elif module.name.endswith("_target"):
            yield f"{package.__name__}.{module.name}"


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in sorted(
        (target for name in _modules() for target in importlib.import_module(name).TARGETS),
        key=lambda target: (target.order, target.name),
    )
}
"""The targets in the order of help."""


def dry_run_lines(job: Processes, out: Path) -> list[str]:
    """Return the lines that ``--dry-run`` prints. ``out`` is the folder of all runs."""
    target = TARGETS[job.target]
    control = f"{target.address(job)}:PORT"
    return target.dry_run_lines(target.render(job, control=control, token=DRY_RUN_TOKEN, keep=str(out / "RUN-ID")))


def print_dry_run(lines: Sequence[str], job: Processes | None) -> None:
    """Print the lines of ``--dry-run``. Raises RequestError where others would read the token that is among them.

    ``job``: None for a process that is a rank itself.
    """
    if job is not None and TARGETS[job.target].prints_token:
        require_private_output("--dry-run prints the token of the run")
    print("\n".join(lines), flush=True)
