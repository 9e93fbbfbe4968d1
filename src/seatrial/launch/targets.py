"""The targets by name. A new one is a file that ends in ``TARGETS = (Target(...),)``, and its line here."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping

from seatrial.launch.target import Target

__all__ = ["TARGETS"]

_FILES = ("local", "ssh", "mpirun", "slurm", "kubernetes")
"""In this folder, in the order in which people read of them. The file that travels is built without some of them."""

TARGETS: Mapping[str, Target] = {
    target.name: target
    for name in _FILES
    if importlib.util.find_spec(f"{__package__}.{name}")
    for target in importlib.import_module(f"{__package__}.{name}").TARGETS
}
