"""The parts of this room that need more than the standard library: the file that travels is built without them."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

__all__ = ["OPTIONAL", "optional"]

OPTIONAL = ("charts", "html", "junit", "live")


def optional(name: str) -> ModuleType | None:
    """The module of that name, or None where it was left out. One that is there and cannot be imported raises."""
    module = f"{__package__}.{name}"
    return importlib.import_module(module) if importlib.util.find_spec(module) else None
