"""The hosts of a Slurm job step, as Slurm's commands give them. A command that gives no answer leaves them unknown."""

from __future__ import annotations

import re
import subprocess

from seatrial.errors import SeatrialError
from seatrial.targets.host_of_node import HostOfNode, HostsMissingError
from seatrial.util.text import all_named

_ANSWER_S = 4.0


def find_step(job: str, name: str) -> str:
    """Return the ID of the step of a job that has this name, such as ``12.0``; empty without an answer.

    Raises SeatrialError where several have it, HostsMissingError where the job has others only. A process of the
    account can start another one, also before ours: its number, its time and what it says of its srun tell nothing.
    """
    if not job:
        return ""
    listed = _answer("squeue", "--all", "--noheader", "--steps", f"--jobs={job}", "--format=%i|%j")
    steps = [
        (step, own) for step, _, own in (line.strip().partition("|") for line in listed) if step.startswith(f"{job}.")
    ]
    found = [step for step, own in steps if own == name]
    if len(found) > 1:
        raise SeatrialError(
            f"{all_named('step', found)} of Slurm's job {job} have the name of this run, so it is not known on which"
            f" host each node is; see who started the others (squeue"
            f" --all --steps --jobs={job}), end them with scancel, and repeat the trial"
        )
    if steps and not found:
        raise HostsMissingError(
            f"of the steps of Slurm's job {job} none has the name of this run, so it is not known on which host each"
            f" node is; see who renamed it (squeue --all --steps --jobs={job}), and repeat the trial"
        )
    return found[0] if found else ""


def hosts_of_step(step: str) -> tuple[HostOfNode, ...]:
    """Return the host of each task of a step (NodeAddr, NodeName), by the number of the task; empty if unknown.

    The layout is that of slurmctld, from which each task has its SLURM_PROCID, and SLURM_NODEID where each node has one
    task. NodeName need not be the name of a host.
    """
    if not step:
        return ()
    names: dict[int, str] = {}
    for line in _answer("sattach", "--layout", step):
        found = re.fullmatch(r"\s*Node \d+ \(([^()\s]+)\), \d+ task\(s\):((?: \d+)*)\s*", line, re.ASCII)
        names |= {int(task): found[1] for task in found[2].split()} if found else {}
    if not names or set(names) != set(range(len(names))):
        return ()
    nodes = ",".join(dict.fromkeys(names.values()))
    # A node has a line for each of its partitions, of which some may be hidden.
    listed = _answer("sinfo", "--all", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %o")
    pairs = [line.split() for line in listed]
    addresses = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    if not set(names.values()) <= addresses.keys():
        return ()
    return tuple(HostOfNode(addresses[names[task]], names[task]) for task in range(len(names)))


def _answer(*argv: str) -> list[str]:
    """Return the lines that a command prints; none if it fails or needs longer than 4 s."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
