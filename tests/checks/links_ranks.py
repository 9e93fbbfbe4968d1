"""Ranks of links as processes that measure one round, with what stands between them."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from checks.lying_store import Lie, lying_store, poisoned

Relay = Callable[[int], AbstractContextManager[int]]
"""From the port of a page to another port in front of it."""
Pause = Callable[[Sequence["subprocess.Popen[str]"], Mapping[int, int]], AbstractContextManager[None]]
"""From the processes and the ports of their pages, by rank."""
_PART = {"fabric": "nodes", "pairs": [], "groups": [], "turns": 1, "at_once": 1, "repeats": 5, "list_below_gbps": None}
_PARAMS = {"cpu_bytes": 65_536, "seconds": 0.05, "pair_timeout_s": 1.0}


def measured(
    size: int,
    *parts: dict[str, Any],
    round_s: float = 60.0,
    lie: str = "",
    lies: Mapping[int, Lie] | None = None,
    poisoned_pair: str = "",
    closed: Sequence[int] = (),
    relays: Mapping[tuple[int, int], Relay] | None = None,
    pauses: Pause | None = None,
) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return measurements and facts of each rank for a round of ``round_s`` seconds.

    Rank 0 tells its peers the ``lie``; its store tells ``lies``, by rank. Nobody listens where the pages of ``closed``
    are said to be. ``relays``: (reader, owner) of a page -> what the reader finds in its place.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [json.dumps(_PARAMS), str(round_s)]
    script = str(Path(__file__).with_name("links_rank.py"))
    with contextlib.ExitStack() as stack:
        if poisoned_pair:
            stack.enter_context(poisoned(port, poisoned_pair))
        running = list[subprocess.Popen[str]]()
        for rank in range(size):
            of_rank = (lies or {}).get(rank)
            store = stack.enter_context(lying_store(port, of_rank)) if of_rank else port
            argv = [sys.executable, script, str(rank), str(size), str(store), *words, "" if rank else lie]
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            running.append(stack.enter_context(process))
            stack.callback(process.kill)
        pages = [json.loads(_pipe(process.stdout).readline()) for process in running]
        ports = {rank: 9 if rank in closed else pages[rank]["port"] for rank in range(size)}
        if pauses is not None:
            stack.enter_context(pauses(running, ports))
        for reader, process in enumerate(running):
            seen_ports = ports | {
                owner: stack.enter_context(relay(ports[owner]))
                for (each, owner), relay in (relays or {}).items()
                if each == reader
            }
            addresses = {str(rank): ["127.0.0.1", seen] for rank, seen in seen_ports.items()}
            asked = json.dumps({"parts": [{**_PART, **part} for part in parts], "addresses": addresses})
            _pipe(process.stdin).write(f"{asked}\n")
            _pipe(process.stdin).flush()
        answers = [process.communicate(timeout=50)[0] for process in running]
    read = [json.loads(text.splitlines()[-1]) for text in answers]
    # Ranks of one step pass the same phases, also where no pair of a turn has them; a small group has fewer turns.
    longest = max((phases for *_, phases in read), key=len)
    assert all(phases == longest[: len(phases)] for *_, phases in read)
    return [(measurements, [fact for fact in facts if fact["name"] != "page"]) for measurements, facts, _ in read]


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
