"""Runs of the scripts in examples/, shared by their tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def run(folder: Path, *command: str, env: dict[str, str] | None = None) -> str:
    """Run a command to its end on two cores, so that each of two ranks has one thread; return its output."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=850,  # the timeout of a test comes first
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lives_and_output(folder: Path, *each: dict[str, Any]) -> tuple[list[list[int]], str]:
    """Run scripts as ranks, once for each dict (forked_ranks.py); return the exit codes of each life by rank, and what
    all of them printed."""
    helper = str(Path(__file__).with_name("forked_ranks.py"))
    output = run(folder, sys.executable, helper, json.dumps(each), env={"OMP_NUM_THREADS": "1"})
    codes: list[list[int]] = json.loads(output.splitlines()[-1])
    return codes, output


def lives(folder: Path, *each: dict[str, Any]) -> list[list[int]]:
    """Run scripts as ranks, once for each dict; return the exit codes of each life by rank."""
    return lives_and_output(folder, *each)[0]


def content(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


def assert_same_bits(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same_bits(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same_bits(left, right)
    else:
        assert one == other
