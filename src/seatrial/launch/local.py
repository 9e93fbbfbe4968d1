"""``--on local``: this machine, one agent."""

from __future__ import annotations

import os

from seatrial.launch.job import Command, Processes
from seatrial.probe import own_code

__all__ = ["render"]


def render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    """One agent, as a child of the controller."""
    env = {
        "SEATRIAL_CONTROL": control,
        "SEATRIAL_TOKEN": token,
        "SEATRIAL_NODE_RANK": "0",
        "SEATRIAL_KEEP": keep,
        **own_code.environ_for(os.environ),
    }
    return (Command(argv=own_code.module_argv(job.python, "seatrial.agent.main"), env=env, node_rank=0),)
