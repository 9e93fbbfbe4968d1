"""Scripts that stand still: how long, and where each rank is, without touching it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Collection, Sequence

from seatrial.agent import py_spy
from seatrial.agent.rank_process import RankProcess
from seatrial.probe import process
from seatrial.protocol.events import StackEvent

_POLL_S = 5.0
"""Interval between two looks at the CPU time of all processes of the ranks."""
_IDLE_SHARE = 0.01
"""Share of a core: threads that only watch a connection or poll a queue use less."""
_PY_SPY_S = 5.0
"""Time for all stacks together: the conductor may not wait 15 s for a word of this agent."""
_MAX_STACK_CHARS = 48 << 10


class Standstill:
    """Seconds for which no rank of this node has printed anything or used CPU time, children included."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = self._looked_at = clock()
        self._cpu_s: dict[int, float] = {}

    def seconds(self, ranks: Collection[RankProcess]) -> float:
        """Return the seconds; 0 where no rank runs."""
        now = self._clock()
        if not ranks:
            self._since = now
        elif now - self._looked_at >= _POLL_S:
            cpu_s = process.families([rank.pid for rank in ranks])
            used_s = sum(cpu_s.values()) - sum(self._cpu_s.values())
            if cpu_s.keys() != self._cpu_s.keys() or used_s > _IDLE_SHARE * (now - self._looked_at) * len(ranks):
                self._since = now
            self._cpu_s, self._looked_at = cpu_s, now
        self._since = max(self._since, *(rank.output_at for rank in ranks), 0.0)
        return now - self._since


def stack_events(ranks: Sequence[RankProcess]) -> list[StackEvent]:
    """Return where each rank of a script is: its last output, its state, and its stack where py-spy is installed."""
    started = [(rank, *_started(rank)) for rank in ranks]
    until = time.monotonic() + _PY_SPY_S
    return [_stack_event(rank, child, refused, until) for rank, child, refused in started]


def _started(rank: RankProcess) -> tuple[subprocess.Popen[bytes] | None, str]:
    """Start py-spy for a rank. Without one: None, and why one that was found is not run."""
    path, refused = py_spy.find(rank.program, os.environ)
    if path is None or rank.poll() is not None:
        return None, refused
    with contextlib.suppress(OSError):
        return subprocess.Popen(
            # By default it would stop the process while it reads.
            [path, "dump", "--nonblocking", "--pid", str(rank.pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ), ""
    return None, ""


def _stack_event(rank: RankProcess, child: subprocess.Popen[bytes] | None, refused: str, until: float) -> StackEvent:
    text = os.fsencode(refused)
    if child is not None:
        try:
            text, _ = child.communicate(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            text, _ = child.communicate()
    seen = process.read_process(rank.pid)
    return StackEvent(
        kind="stack",
        gen=rank.generation,
        rank=rank.rank,
        state=seen.state if seen else "X",
        wchan=process.wchan(rank.pid),
        text=text[:_MAX_STACK_CHARS].decode(errors="replace"),
        quiet_s=round(time.monotonic() - rank.output_at, 1),
        last_line=rank.last_line(),
    )
