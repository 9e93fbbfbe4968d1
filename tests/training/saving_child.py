"""A process that imports torch once and forks children that save checkpoints until they are killed.

Its arguments: a folder, then one line of input for each child. ``at SECONDS`` kills the child that long after its first
save has begun; ``call NAME N before|after`` makes it kill itself around the N-th call of ``os.NAME``. Each child goes
on from the step after the newest that is there. A line of output for each: how the child ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from seatrial.training.checkpoint import CheckpointFolder

NUM_VALUES = 500_000


def state_of(step: int) -> dict[str, Any]:
    """A state of 4 MB that only this step has."""
    values = torch.arange(NUM_VALUES, dtype=torch.int64) * (step + 1)
    return {"model": {"weight": values}, "step": step, "words": [f"step {step}", float(step)]}


def _save_for_ever(folder: Path, began: int) -> None:
    with CheckpointFolder(folder) as store:
        newest = store.newest()
        step = 0 if newest is None else newest[0] + 1
        os.write(began, b"!")
        while True:
            store.save(step, state_of(step))
            step += 1


def _kill_self_at(name: str, number: int, *, after: bool) -> None:
    """Whoever calls ``os.<name>`` for that time dies there."""
    whole: Callable[..., Any] = getattr(os, name)
    calls = 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = whole(*arguments, **options)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(os, name, call)


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    for line in sys.stdin:
        words = line.split()
        began, announce = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(50)  # where the call never comes
            if words[0] == "call":
                _kill_self_at(words[1], int(words[2]), after=words[3] == "after")
            _save_for_ever(folder, announce)
        os.close(announce)
        os.read(began, 1)
        if words[0] == "at":
            time.sleep(float(words[1]))
            os.kill(child, signal.SIGKILL)
        os.close(began)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
