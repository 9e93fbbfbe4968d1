"""The kinds of workload. Each file in this folder defines one, as ``KIND = Kind(...)``; there is no list to extend."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from seatrial.targets.kubernetes.kind import Kind


def _load() -> dict[str, Kind]:
    # pkgutil asks the importer, so it finds the files inside a zip too.
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    kinds: list[Kind] = [importlib.import_module(f"{__name__}.{name}").KIND for name in names]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: (kind.order, kind.name))}


KINDS: Mapping[str, Kind] = _load()
"""Word after ``--on`` -> kind, in the order of --help."""
