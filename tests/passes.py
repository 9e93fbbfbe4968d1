"""The meaning of a pass on a test machine with more ranks than cores."""

from __future__ import annotations

import re
from collections.abc import Iterable

_OPEN = r"(?:[^,()]* could not be judged: other processes held the CPU|links not asked for)"
"""What most trials of these tests leave open: speeds on a busy machine, and links, which only two levels measure."""
_PASS = re.compile(rf"^FINAL ACCEPTANCE: PASS( \(partial: {_OPEN}(, {_OPEN})*\))?$", re.MULTILINE)


def passes(said: str) -> bool:
    """Return whether a trial passed and left nothing open but speeds on a busy machine, and links."""
    return _PASS.search(said.replace("\r", "")) is not None


def left_open(reasons: Iterable[str]) -> list[str]:
    """Return the reasons why a PASS is partial, without the speeds that a busy machine left open, and links."""
    return [reason for reason in reasons if re.fullmatch(_OPEN, reason) is None]
