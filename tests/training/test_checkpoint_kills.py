"""SIGKILL at any instant of a save: a whole checkpoint is there, and it holds what its step says."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from training import saving_child
from training.saving_child import state_of

from seatrial.training.checkpoint import CheckpointFolder

_LONGEST_S = 0.2
"""Some five saves."""


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, saving_child.__file__, str(tmp_path / "kept")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


def _kill(zygote: subprocess.Popen[str], how: str) -> None:
    assert zygote.stdin is not None
    assert zygote.stdout is not None
    zygote.stdin.write(how + "\n")
    zygote.stdin.flush()
    assert zygote.stdout.readline() == "-9\n"


def _newest(folder: Path) -> int:
    """The step of the newest checkpoint, whose content is compared; -1 when there is none."""
    with CheckpointFolder(folder, note=pytest.fail) as store:
        newest = store.newest()
    if newest is None:
        return -1
    step, state = newest
    expected = state_of(step)
    assert torch.equal(state.pop("model")["weight"], expected.pop("model")["weight"])
    assert state == expected
    return step


def _kill_at_random(zygote: subprocess.Popen[str], folder: Path, num_kills: int) -> None:
    instants = random.Random(17)
    newest, num_cut = -1, 0
    for _ in range(num_kills):
        _kill(zygote, f"at {instants.uniform(0, _LONGEST_S)}")
        num_cut += len(list(folder.glob(".writing-*")))
        now = _newest(folder)
        assert now >= newest
        assert not list(folder.glob(".writing-*"))
        newest = now
    with CheckpointFolder(folder) as store:
        assert store.newest() is not None  # as a training does: what it resumes from is known to be complete
        store.save(newest + 1, state_of(newest + 1))
    assert len(list(folder.glob("step-*"))) == 2
    # Otherwise no kill has hit what is to be tested.
    assert num_cut > num_kills // 4
    assert newest > num_kills // 4


@pytest.mark.slow
def test_a_kill_at_a_random_instant_loses_nothing_that_was_saved(zygote: subprocess.Popen[str], tmp_path: Path) -> None:
    _kill_at_random(zygote, tmp_path / "kept", 20)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_kills_at_random_instants_lose_nothing(zygote: subprocess.Popen[str], tmp_path: Path) -> None:
    _kill_at_random(zygote, tmp_path / "kept", 200)


def test_a_kill_around_each_call_that_commits_loses_nothing(zygote: subprocess.Popen[str], tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    # The third save of each child, when there is something to lose. A save makes two calls of fsync: file and folder.
    for name, number, when, lost in (
        ("fsync", 5, "before", True),
        ("fsync", 5, "after", True),
        ("replace", 3, "before", True),
        ("replace", 3, "after", False),
        ("fsync", 6, "before", False),
        ("fsync", 6, "after", False),
    ):
        before = _newest(folder)
        _kill(zygote, f"call {name} {number} {when}")
        assert _newest(folder) == before + (2 if lost else 3), (name, number, when)
