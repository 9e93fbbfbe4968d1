"""Runs a script as several ranks, once or several times over: ``python forked_ranks.py '[{...}, ...]'``, a dict a life.

Keys: ``arguments`` (the script and its arguments), ``world_size``, and optionally ``strike``: a rank, the number of the
optimizer step of this life after which it sends itself a signal, and that signal. The ranks are forked from a Python
that has loaded torch, so a life costs no import. Prints the exit codes of each life as JSON, by rank; a rank that
another one took down counts as killed.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
import traceback
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from seatrial.util.ports import free_port

_LIFE_S = 250.0
"""The timeout of a test comes first, if this much is not left of it."""


def become_rank(life: dict[str, Any], rank: int, port: int) -> None:
    """Run the script in this process and end it."""
    world_size = str(life["world_size"])
    os.environ.update(RANK=str(rank), WORLD_SIZE=world_size, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=world_size)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    struck_rank, struck_step, number = life.get("strike", (-1, 0, 0))
    num_steps = 0

    def strike(*_: object) -> None:
        nonlocal num_steps
        num_steps += 1
        if rank == struck_rank and num_steps == struck_step:
            os.kill(os.getpid(), number)

    code = 1
    try:
        register_optimizer_step_post_hook(strike)
        sys.argv = life["arguments"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        print(ended, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def live(life: dict[str, Any]) -> list[int]:
    """Return the exit codes of all ranks. When one is killed, the others are killed as well: they would only wait."""
    port, codes = free_port(), dict[int, int]()
    ranks = {}
    for rank in range(life["world_size"]):
        pid = os.fork()
        if pid == 0:
            become_rank(life, rank, port)
        ranks[pid] = rank
    give_up = time.monotonic() + _LIFE_S
    while len(codes) < len(ranks):
        for pid, rank in ranks.items():
            if rank not in codes and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                codes[rank] = os.waitstatus_to_exitcode(ended[1])
        if -signal.SIGKILL in codes.values() or time.monotonic() > give_up:
            for pid, rank in ranks.items():
                if rank not in codes:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[rank] for rank in sorted(codes)]


if __name__ == "__main__":
    every_life = [live(each) for each in json.loads(sys.argv[1])]
    print(json.dumps(every_life))
