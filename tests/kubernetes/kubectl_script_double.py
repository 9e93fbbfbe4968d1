"""A double of kubectl for tests without a cluster: a shell script with fixed answers."""

from __future__ import annotations

import shlex
from pathlib import Path

PODS, EVENTS, LOGS = "*/pods'?'*", "*/events'?'*", "*/log'?'*"
"""Patterns of the calls that list pods or Events, and of those that read a log."""


def log_of(pod: str) -> str:
    """The pattern of the calls that read the log of this pod, which may be a pattern of its own."""
    return f"*/pods/{pod}/log'?'*"


def scripted(folder: Path, *cases: tuple[str, str]) -> str:
    """The path of a program that runs the shell code of the first pattern that fits its words (as ``case`` has it)."""
    file = folder / "kubectl-double"
    branches = "\n".join(f"{pattern}) {code} ;;" for pattern, code in cases)
    calls = shlex.quote(str(folder / "calls"))
    file.write_text(
        f'#!/bin/sh\necho "$*" >> {calls}\ncase "$*" in\n{branches}\n*) echo "no case for $*" >&2; exit 9 ;;\nesac\n'
    )
    file.chmod(0o755)
    return str(file)
