"""What to do about ranks that stand still and about communication that fails: it follows from what was seen. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seatrial.judge.trial import Trial

_BETWEEN_MACHINES = ("network", "links")
"""The checks that tell nodes and links apart."""
_STATE = re.compile(r"state ([A-Za-z])\b")


def waits_for_device(detail: str) -> bool:
    """Return whether a rank stands in the kernel, where a device may be why. ``detail``: the observation."""
    return (found := _STATE.match(detail)) is not None and found[1] == "D"


def frozen_action(detail: str) -> str:
    """Return what to do about a frozen rank. ``detail``: the observation, such as ``state T (stopped)``."""
    state = found[1] if (found := _STATE.match(detail)) else ""
    if state in ("T", "t"):
        return (
            "find out who stopped it: a stop signal (SIGSTOP, a suspended job) or a debugger; no device stops a process"
        )
    if state == "D":
        return "look at the kernel log there: a process that stays in state D waits for a device or a file system"
    return "look at the kernel log there, and for what may have stopped it"


def fabric_action(trial: Trial, nodes: Sequence[str]) -> str:
    """Return what to look at where communication failed and no rank is named. ``nodes``: the nodes of the ranks."""
    if len(nodes) == 1:
        between = (
            "GPUs of that node (NVLink, PCIe" if trial.device_type == "cuda" else "processes of that node (loopback"
        )
        return f"look at what joins the {between}, shared memory), not at the network between nodes"
    action = "look at cables, switches and the network settings between these nodes"
    if not telling_apart(trial, nodes):
        return action
    where = "" if trial.num_nodes() > 2 else ", where there is a third node"
    return f"{action}; the checks {' and '.join(_BETWEEN_MACHINES)} tell node from link{where}"


def telling_apart(trial: Trial, nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the options of a run that tells nodes and links apart; none where this one has done all that can be."""
    planned = trial.plan.get("checks") or ()
    if len(nodes) < 2 or all(name in planned for name in _BETWEEN_MACHINES):
        return ()
    return "--only", ",".join(_BETWEEN_MACHINES)
