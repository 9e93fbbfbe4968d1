"""``--on local``: this machine, one agent."""

from __future__ import annotations

from seatrial.launch.job import Command, Processes

__all__ = ["render"]


def render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    """One agent, as a child of the controller."""
    env = {
        "SEATRIAL_CONTROL": control,
        "SEATRIAL_TOKEN": token,
        "SEATRIAL_NODE_RANK": "0",
        "SEATRIAL_KEEP": keep,
        # A torch.py or random.py in the folder where the user stands must not be imported instead of the real one.
        "PYTHONSAFEPATH": "1",
    }
    return (Command(argv=(job.python, "-m", "seatrial.agent.main"), env=env, node_rank=0),)
