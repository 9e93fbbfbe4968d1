"""examples/ddp.py: the same bits as ``seatrial train``, whoever starts it, and however often it is killed."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from examples.example_runs import EXAMPLES, TORCHRUN, assert_same_bits, content, lives, run
from launchers.mpiruns import first_mpirun

from seatrial.util.ports import free_port

SCRIPT = str(EXAMPLES / "ddp.py")
SEATRIAL = (sys.executable, "-m", "seatrial")
STEPS_PER_EPOCH = 23
pytestmark = pytest.mark.timeout(300)


def life(folder: Path, *, epochs: int, world_size: int, **strike: Any) -> dict[str, Any]:
    arguments = [SCRIPT, "--epochs", str(epochs), "--checkpoint-dir", str(folder)]
    return {"arguments": arguments, "world_size": world_size, **strike}


def assert_same_files(one: Path, other: Path) -> None:
    for name in ("last.pt", "best.pt"):
        assert_same_bits(content(one / name), content(other / name))


@pytest.mark.slow
def test_it_resumes_to_the_same_bits_after_sigterm_and_a_kill(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    three = {"epochs": 2, "world_size": 3}  # DDP's order of summation shows with three ranks only
    codes = lives(
        tmp_path,
        life(whole, **three),
        life(broken, **three, strike=(1, 13, signal.SIGTERM)),  # all ranks stop at the next exchange, after step 20
        life(broken, **three, strike=(0, 15, signal.SIGKILL)),  # in the second epoch
        life(broken, **three),
    )
    assert codes[:2] == [[0, 0, 0], [143, 143, 143]]
    assert codes[2][0] == -signal.SIGKILL
    assert codes[3] == [0, 0, 0]
    assert_same_files(whole, broken)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_it_resumes_after_a_kill_at_any_step(tmp_path: Path) -> None:
    two = {"epochs": 2, "world_size": 2}
    assert lives(tmp_path, life(tmp_path / "whole", **two)) == [[0, 0]]
    steps = range(1, 2 * STEPS_PER_EPOCH + 1)
    each = []
    for step in steps:
        folder = tmp_path / f"killed-{step}"
        each += [life(folder, **two, strike=(step % 2, step, signal.SIGKILL)), life(folder, **two)]
    codes = lives(tmp_path, *each)
    assert all(-signal.SIGKILL in killed for killed in codes[::2])
    assert codes[1::2] == [[0, 0]] * len(steps)
    for step in steps:
        assert_same_files(tmp_path / "whole", tmp_path / f"killed-{step}")


@pytest.mark.slow
def test_torchrun_and_launch_train_what_seatrial_train_trains(tmp_path: Path) -> None:
    short = (SCRIPT, "--epochs", "1", "--checkpoint-dir")
    run(tmp_path, *TORCHRUN, "2", *short, "torchrun")
    run(tmp_path, *SEATRIAL, "launch", "--nproc-per-node", "2", *short, "launch")
    assert_same_files(tmp_path / "torchrun", tmp_path / "launch")
    train = ("train", "digits", "--epochs", "1", "--device", "cpu", "--nproc-per-node", "2")
    run(tmp_path, *SEATRIAL, *train, "--checkpoint-dir", "train")
    (saved,) = (tmp_path / "train").glob("step-*.pt")
    trained = content(saved)["state"]["model"]
    for own, of_seatrial in zip(content(tmp_path / "launch/last.pt")["model"].values(), trained.values(), strict=True):
        assert_same_bits(own, of_seatrial)


@pytest.mark.mpi
@pytest.mark.nightly
@first_mpirun
def test_mpirun_trains_the_same(tmp_path: Path, mpirun: str) -> None:
    options = ["--allow-run-as-root", "--oversubscribe", "-np", "2"]
    place = {"MASTER_PORT": str(free_port())}
    short = ("--epochs", "1", "--checkpoint-dir")
    run(tmp_path, mpirun, *options, sys.executable, SCRIPT, *short, "mpirun", env=place)
    assert lives(tmp_path, life(tmp_path / "ranks", epochs=1, world_size=2)) == [[0, 0]]
    assert_same_files(tmp_path / "mpirun", tmp_path / "ranks")


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_it_reaches_the_accuracy_of_seatrial_train_with_five_seeds(tmp_path: Path) -> None:
    """Seed by seed, to the last digit that is printed: neither worse nor better than the spread of those seeds."""
    for seed in map(str, range(1, 6)):
        printed = run(tmp_path, *TORCHRUN, "2", SCRIPT, "--seed", seed, "--checkpoint-dir", seed)
        *_, (loss, accuracy) = re.findall(r"^epoch \d+: loss ([0-9.]+), accuracy ([0-9.]+)$", printed, re.MULTILINE)
        train = ("train", "digits", "--seed", seed, "--device", "cpu", "--nproc-per-node", "2")
        (trained,) = re.findall(r"^trained .*$", run(tmp_path, *SEATRIAL, *train), re.MULTILINE)
        assert f": accuracy {accuracy} (" in trained
        assert f", loss {loss}, " in trained
        assert content(tmp_path / seed / "best.pt")["accuracy"] >= float(accuracy) - 1e-4 > 0.9
