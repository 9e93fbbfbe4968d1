"""Optional packages of the report: without them, parts of it are left out.

The live line needs rich, JUnit needs junitparser. Where a package cannot be imported, as in the bundle, progress is
printed in plain lines and the format is not written; everything else is the same.
"""

from __future__ import annotations

import importlib


def is_importable(package: str) -> bool:
    """Return whether the package can be imported, by importing it: an installed package may still be broken."""
    try:
        importlib.import_module(package)
    except Exception:  # a broken package may raise anything, and must not end the trial
        return False
    return True
