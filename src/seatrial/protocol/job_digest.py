"""The digest by which an agent knows what it may start.

Among pods, and under the launcher of another one, the host of the first process conducts, and it is trusted with the
verdict alone. So each agent gets this digest in its environment, from the options that the user has typed, and starts
nothing that has another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from seatrial.protocol.commands import NodeStepCommand, StartProgram, StartWorkers

Start = NodeStepCommand | StartWorkers | StartProgram
"""A command by which an agent starts processes."""

VARIABLE = "SEATRIAL_JOB"
"""The variable of an agent with the digest of its job."""


def digest_of_job(
    env: Mapping[str, str],
    argv: Iterable[str] = (),
    args: Iterable[str] = (),
    cwd: str = "",
    script: str = "",
    *,
    watched: bool = False,
    per_node: bool = False,
) -> str:
    """Return the SHA-256, in hexadecimal digits, of what the processes of a job are made from.

    Args:
        env: the variables that they get in addition to the environment of their agent.
        argv: the command of a program; empty for a trial, whose agents start no program.
        args: the arguments of the program.
        cwd: the working folder of the program.
        script: the path of the user's script, or empty.
        watched: whether the program reports phases and results.
        per_node: whether the program starts the processes of its node itself.
    """
    subject = [sorted(env.items()), list(argv), list(args), cwd, script, watched, per_node]
    return hashlib.sha256(json.dumps(subject).encode()).hexdigest()


def digest_of_start(start: Start) -> str:
    """Return the digest of the job that a command belongs to."""
    if start["kind"] != "start_program":
        return digest_of_job(start["env"])
    program = start["program"]
    return digest_of_job(
        start["env"],
        program["argv"],
        program["args"],
        program["cwd"],
        program["script"],
        watched=program["watched"],
        per_node=program["spawns"] != 0,
    )
