"""Which checks there are: the files of this folder that have a ``CHECK``, in a zip too.

A module whose name begins with an underscore is part of a check.
"""

from __future__ import annotations

import importlib
import pkgutil

import seatrial.checks as room
from seatrial.checks.base import Check

__all__ = ["load", "names"]

_NOT_CHECKS = ("base", "registry")


def names() -> tuple[str, ...]:
    """The names of all checks, sorted."""
    modules = {module.name for module in pkgutil.iter_modules(room.__path__)}
    return tuple(sorted(name for name in modules.difference(_NOT_CHECKS) if not name.startswith("_")))


def load(name: str) -> Check:
    """The check of that name. Raises KeyError when there is none."""
    if name not in names():
        raise KeyError(name)
    check: Check = importlib.import_module(f"seatrial.checks.{name}").CHECK
    return check
