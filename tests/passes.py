"""What counts as a pass where more ranks compute than a machine of tests has cores."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["left_open", "passes"]

_STARVED = r"[^,()]* could not be judged: other processes held the CPU"
_PASS = re.compile(rf"^FINAL ACCEPTANCE: PASS( \(partial: {_STARVED}(, {_STARVED})*\))?$", re.MULTILINE)


def passes(said: str) -> bool:
    """Whether a trial passed, and nothing but speeds on a busy machine was left open."""
    return _PASS.search(said.replace("\r", "")) is not None


def left_open(reasons: Iterable[str]) -> list[str]:
    """Of the reasons why a PASS is partial those that are no speeds on a busy machine."""
    return [reason for reason in reasons if re.fullmatch(_STARVED, reason) is None]
