"""The hosts of a Slurm job, as Slurm's commands give them."""

from __future__ import annotations

import subprocess

_ANSWER_S = 4.0
"""Agents wait for their controller meanwhile, at most 10 s."""


def hosts_of(node_list: str) -> tuple[str, ...]:
    """Return the address (NodeAddr) of each node of a list such as ``n[0-3]``, in any order; empty without an answer.

    NodeName need not be the name of a host.
    """
    try:
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", f"--nodes={node_list}", "--format=%N %o"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    # A node has a line for each of its partitions.
    pairs = [line.split() for line in done.stdout.splitlines()]
    return tuple({pair[0]: pair[1] for pair in pairs if len(pair) == 2}.values())
