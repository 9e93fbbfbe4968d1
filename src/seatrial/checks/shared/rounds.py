"""Rounds of a measurement: a number of them, and more until a time has passed."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator

from seatrial.rank import groups
from seatrial.rank.context import Context

REPORT_EVERY_S = 60.0
"""A long check reports its measurements at this interval, so that they survive an interruption."""
_MARGIN = 3
"""Times that a round may take the length of another one."""
_RECENT = 15
"""Rounds whose median says how long the next one takes."""
_AGAIN, _DUE = 1, 2
"""The bits of a decision: to go on, and to report."""


def timed_rounds(
    context: Context, minutes: float, *, rounds: int = 1, report: Callable[[], None], together: bool = False
) -> Iterator[int]:
    """Yield the numbers of the rounds, from 0: at least ``rounds``, and further ones until ``minutes`` have passed.

    A round that might run past the deadline of the step does not begin: the conductor would take it for a hang. The
    typical round says how long that one takes: a single one that somebody held up ends no burn-in.

    Args:
        context: The context of this rank.
        minutes: Time for which rounds go on; 0: there are exactly ``rounds``.
        rounds: Least number of rounds.
        report: Reports the measurements so far; called about once a minute and after the last round.
        together: Whether all ranks of the group do the same number of rounds and report after the same ones. The clock
            of group rank 0 decides, from the end of the first round on, for which all were there, and the other ranks
            read its decision from the store. Others can write there, too, so each rank tells what it did.
    """
    entered = started = reported = time.monotonic()
    number = 0
    lengths_s, shortest_s = deque[float](maxlen=_RECENT), math.inf
    again = True
    while again:
        began = time.monotonic()
        yield number
        number += 1
        now = time.monotonic()
        lengths_s.append(now - began)
        shortest_s = min(shortest_s, lengths_s[-1])
        typical_s = statistics.median_low(lengths_s)
        fits = now - entered + _MARGIN * typical_s < context.timeout_s
        if together and number == 1:
            started = now
        again = number < rounds or (now - started < minutes * 60 and fits)
        due = now - reported >= REPORT_EVERY_S
        if together and (minutes > 0 or number < rounds):
            again, due = _wait_for_others_to_agree(context, number, again=again, due=due)
        if due or not again:
            report()
            reported = time.monotonic()
    if together and (minutes > 0 or rounds > 1):
        # One round shows no pace, and rounds of very different lengths show that somebody held them up.
        is_steady = number > 1 and typical_s <= _MARGIN * shortest_s
        value = {"number": number, "seconds": round(now - entered, 3), "fits": fits or not is_steady}
        context.fact("rounds", value)


def _wait_for_others_to_agree(context: Context, number: int, *, again: bool, due: bool) -> tuple[bool, bool]:
    """Return the decision of group rank 0, which all ranks follow: whether to go on, and whether to report.

    The judge of hangs knows by the name of this function, in a stack, that a rank waits here for others.
    """
    context.phase("agree on another round")
    key = f"step {context.step}/round {number}"
    if context.group_rank == 0:
        groups.add_to_key(context, key, again * _AGAIN + due * _DUE)
    decision = groups.wait_for_number(context, key)
    return bool(decision & _AGAIN), bool(decision & _DUE)
