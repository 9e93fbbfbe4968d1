"""What counts as a pass where more ranks compute than a machine of tests has cores."""

from __future__ import annotations

import re

__all__ = ["passes"]

_STARVED = r"[^,()]* could not be judged: other processes held the CPU"
_PASS = re.compile(rf"^FINAL ACCEPTANCE: PASS( \(partial: {_STARVED}(, {_STARVED})*\))?$", re.MULTILINE)


def passes(said: str) -> bool:
    """Whether a trial passed, and nothing but speeds on a busy machine was left open."""
    return _PASS.search(said.replace("\r", "")) is not None
