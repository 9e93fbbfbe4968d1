"""The ends of a rank that another one may have caused, since the rank was connecting to it.

The store in which ranks meet authenticates nobody. What stands there, and the first bytes of a peer, go to libraries in
C++ that trust the lengths in them: a false one ends the process of the rank that reads it. A rank that fills the store
takes the memory of the rank that keeps it, and one that connects often its descriptors.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from seatrial.protocol.own_errors import is_surely_of_device

TRAINING_MEETS = "start-up/meet the others"
"""The phase of a training from the opening of its store to the line in which a rank says on which host it is."""
_PHASES = re.compile(
    "bootstrap/(?:done store|begin world|meet at the store|first barrier)"
    rf"|{TRAINING_MEETS}"
    r"|links/(?:done store|(?:begin|done) round \d{1,9}|rendezvous at the store|.{1,100} turn \d{1,9})"
)
"""Where a rank waits at the store or forms a group: from the opening of the store until the group is formed."""
_MEETING = {"bootstrap": "bootstrap/meet at the store", "links": "links/rendezvous at the store"}
OTHERS_HAD_ITS_CORE = "other processes had its core"
"""The detail of a suspicion that a rank was still at work, which could run for much of the time, and had no core."""
OUT_OF_MEMORY = "out of memory: "
"""How the ``detail`` of a ``trouble`` event begins that tells in place of the agent that a rank ended so."""
FROM_OTHERS = "what it runs, or what came from them, is at fault"
"""The end of a sentence about such a rank."""
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that a process causes by itself."""


def connects(phase: str) -> bool:
    """Return whether a rank in this phase connects to others, or waits where it may."""
    return _PHASES.fullmatch(phase) is not None


def is_before_meeting(phase: str) -> bool:
    """Return whether a rank of a training in this phase has yet to come to the meeting, and waits for no other rank."""
    return not phase or (phase.startswith("start-up/") and not connects(phase))


def may_come_from_others(phase: str, code: int, lines: Sequence[str], *, is_oom: bool) -> bool:
    """Return whether what a rank received may explain its end, so that it says nothing of the rank.

    Only where other hosts take part, since those of one host share its faults. No answer of another rank makes a GPU
    complain.

    Args:
        phase: The last phase of the rank.
        code: Its exit code; negative: the number of the signal.
        lines: Its last output, if it has a GPU.
        is_oom: Whether the kernel's out-of-memory killer ended it.
    """
    is_crash = is_oom or -code in (*CRASHES, signal.SIGABRT)
    return is_crash and connects(phase) and not is_surely_of_device(lines)


def meeting_phase(check: str) -> str:
    """Return a phase in which the ranks of a step of this check connect to one another; empty: they do not."""
    return _MEETING.get(check, "")
