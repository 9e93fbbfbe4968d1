"""Scripts that stand still: how long, and where each rank is, without touching it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from seatrial.agent import py_spy
from seatrial.agent.disk_question import DiskQuestion
from seatrial.agent.rank_process import RankProcess
from seatrial.probe import process
from seatrial.protocol.events import StackEvent
from seatrial.util.tool import run_tool

_POLL_S = 5.0
"""Interval between two looks at the CPU time of all processes of the ranks."""
_IDLE_SHARE = 0.02
"""Share of a core: threads that only watch a connection or poll a queue use less (0.004 seen of a rank in Gloo)."""
_PY_SPY_S = 5.0
"""Time for each stack, all at once: the conductor may not wait 15 s for a word of this agent."""
_STACKS_S = _PY_SPY_S + 2.5
"""The same for what is asked of disks before and after."""
_NO_DISK = "py-spy was not run: the disk on which it is looked for, or is, does not answer"
_MAX_STACK_CHARS = 48 << 10


class Standstill:
    """Seconds for which each rank of a node has printed nothing and used no CPU time, children included."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = clock()
        self._cpu_s: dict[int, dict[int, float]] = {}
        """Process id of a rank -> process id -> CPU seconds, at the last look."""
        self._worked_at: dict[int, float] = {}
        """Process id of a rank -> the last look at which it had used CPU time."""

    def seconds(self, ranks: Collection[RankProcess]) -> dict[str, list[float]]:
        """Return rank -> [seconds without output and CPU time, seconds without output]."""
        now = self._clock()
        if self._worked_at.keys() != {rank.pid for rank in ranks}:
            self._worked_at = {rank.pid: self._worked_at.get(rank.pid, now) for rank in ranks}
        if now - self._looked_at >= _POLL_S:
            cpu_s = process.families(self._worked_at)
            noise_s = _IDLE_SHARE * (now - self._looked_at)
            for pid, used_s in cpu_s.items():
                before_s = self._cpu_s.get(pid, {})
                if used_s.keys() != before_s.keys() or sum(used_s.values()) - sum(before_s.values()) > noise_s:
                    self._worked_at[pid] = now
            self._cpu_s, self._looked_at = cpu_s, now
        return {
            str(rank.rank): [
                round(now - at, 1) for at in (max(self._worked_at[rank.pid], rank.output_at), rank.output_at)
            ]
            for rank in ranks
        }


def stack_events(ranks: Sequence[RankProcess]) -> list[StackEvent]:
    """Return where each rank of a script is: its last output, its state, and its stack where py-spy is installed."""
    questions = [DiskQuestion(partial(_stack, rank)) for rank in ranks]
    until = time.monotonic() + _STACKS_S
    # A rank that waits for a disk of the network may well have its interpreter, and py-spy, on the same one.
    answered = [question.is_answered(until - time.monotonic()) for question in questions]
    texts = [
        _text(question) if is_answered else _NO_DISK for question, is_answered in zip(questions, answered, strict=True)
    ]
    return list(map(_stack_event, ranks, texts))


def _text(question: DiskQuestion[str]) -> str:
    """Return the answer, or why there is none: a script may have used up the processes of its user."""
    try:
        return question.answer()
    except (OSError, RuntimeError) as error:
        return str(error)


def _stack(rank: RankProcess) -> str:
    """Return the stack of a rank by py-spy, or what that says instead; without py-spy, why one is not run."""
    path, refused = py_spy.find(rank.program, os.environ)
    if path is None or rank.poll() is not None:
        return refused
    # By default it would stop the process while it reads, and write its command line.
    argv = [path, "dump", "--nonblocking", "--json", "--pid", str(rank.pid)]
    return py_spy.threads(*run_tool(argv, timeout_s=_PY_SPY_S))


def _stack_event(rank: RankProcess, text: str) -> StackEvent:
    seen = process.read_process(rank.pid)
    return StackEvent(
        kind="stack",
        gen=rank.generation,
        rank=rank.rank,
        state=seen.state if seen else "X",
        wchan=process.wchan(rank.pid),
        text=text[:_MAX_STACK_CHARS],
        quiet_s=round(time.monotonic() - rank.output_at, 1),
        last_line=rank.last_line(),
    )
