"""The events of a trial: what each source says, in which words.

Every event has ``kind``, ``run``, ``src`` (who says it), ``seq`` (counted from 0 in each source), ``t`` (seconds since the
epoch, the source's clock). ``gen`` is the generation where it matters. An event is written at its source and passed on
unchanged, so the same event may be met in several files; ``(src, seq)`` says so. A source that is orderly closed says
``end`` last: a source without ``end``, or with a gap, has lost events, and then nothing PASSes.

| kind | source | payload |
|---|---|---|
| run | conductor | version, schema, created, plan (resolved, with origins), job (target, nodes, nproc_per_node, world_size, device, backend, planted) |
| node | node<k> | node, hostname, address, pid, cores |
| generation | conductor | gen, ranks: [[rank, node, local_rank], ...] |
| rank | rank<r>.<g> | gen, rank, node, hostname, local_rank, pid, device, device_type, libraries, threads, torch, python, backend |
| step | conductor | gen, step (number), check, stage, ranks, timeout_s |
| figures | rank | gen, step, figures: [Figure.to_json(), ...] |
| facts | rank | gen, step, facts: [Fact.to_json(), ...] |
| done | rank | gen, step, rank, seconds |
| error | rank | gen, step, rank, cause (memory, fabric, request, own), type, message, stack, phase |
| step_end | conductor | gen, step, outcome (done, trouble, deadline, interrupted), seconds |
| trouble | conductor | gen, step, seen: [{rank or node, how (dead, error, frozen, absent, stuck, lost, silent, late), phase, waited_s, detail}] |
| exit | node | gen, rank, code (negative: signal), ours (we ended it), phase, last_lines |
| stack | node | gen, rank, state (/proc), wchan, text (faulthandler's, may be empty) |
| left | node | gen, rank, pid, state: a process that could not be ended |
| note | any | severity (error, warn, info), text: trouble of our own that concerns no rank |
| interrupted | conductor | by (signal name or reason) |
| end | every source | |
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["SCHEMA", "Source"]

SCHEMA = 1
"""Version of the events and of the report."""


class Source:
    """Numbers the events of one source. The caller keeps or sends what ``event`` returns."""

    def __init__(self, run: str, src: str, clock: Callable[[], float] = time.time) -> None:
        self._run = run
        self._src = src
        self._clock = clock
        self._seq = 0

    def event(self, kind: str, **payload: Any) -> dict[str, Any]:
        """The next event of this source."""
        event = {
            "kind": kind,
            "run": self._run,
            "src": self._src,
            "seq": self._seq,
            "t": round(self._clock(), 6),
            **payload,
        }
        self._seq += 1
        return event
