"""The ranks of ``seatrial train --spawn``, as real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import seatrial
from seatrial.environment.self_location import module_argv
from seatrial.targets.kubernetes.pod_failures import MET
from seatrial.training.defaults import make_recipe
from seatrial.util.ports import free_port
from seatrial.worker import train_spawn
from seatrial.worker.train_spec import Spawn, TrainSpec


@pytest.mark.nightly
def test_ranks_import_nothing_from_the_working_folder(tmp_path: Path) -> None:
    """Python 3.10 knows no PYTHONSAFEPATH, and an empty one is none: multiprocessing's own start looks there first."""
    folder, marker = tmp_path / "shared", tmp_path / "imported"
    folder.mkdir()
    for name in ("multiprocessing", "torch", "json", "socket", "random", "seatrial", "runpy", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write({name!r} + ' ')\n")
    recipe = make_recipe("synthetic-1x2x2-2", model="toy", max_steps=2, global_batch_size=2, num_samples=8)
    spec = TrainSpec(recipe=recipe, device="cpu", spawn=Spawn(nnodes=1, node_rank=0, nproc_per_node=2))
    done = subprocess.run(
        [sys.executable, *module_argv("another python", "seatrial.worker.train_main")[1:], spec.to_json()],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"},
            "PYTHONPATH": str(Path(seatrial.__file__).parents[1]),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        },
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "digests of all ranks equal" in done.stdout
    assert not marker.exists(), marker.read_text()


def test_signals_to_a_whole_job_end_no_training_before_it_saves(tmp_path: Path) -> None:
    """Launchers send SIGUSR1 and SIGUSR2 to all, and systemd SIGTERM and then SIGHUP, which may come first."""
    recipe = make_recipe("digits", model="toy", epochs=100_000, lr=0.01)
    checkpoints = tmp_path / "checkpoints"
    node = Spawn(nnodes=1, node_rank=0, nproc_per_node=2)
    spec = TrainSpec(recipe=recipe, device="cpu", spawn=node, checkpoint_dir=str(checkpoints), save_every=1)
    environ = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    process = subprocess.Popen(
        [*module_argv(sys.executable, "seatrial.worker.train_main"), spec.to_json()],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def signal_all(*numbers: signal.Signals) -> None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for number in numbers:
            for pid in (process.pid, *map(int, children)):
                os.kill(pid, number)

    try:
        until = time.monotonic() + 50
        while not list(checkpoints.glob("step-*")):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        signal_all(signal.SIGUSR1, signal.SIGUSR2)
        time.sleep(0.5)
        signal_all(signal.SIGTERM, signal.SIGHUP)
        printed = process.communicate(timeout=50)[0]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, printed
    assert "the training is saved" in printed


def test_each_rank_that_could_not_say_why_it_ended_is_told(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By these lines the logs of many nodes show on which one the fault was."""
    monkeypatch.setattr(train_spawn, "_FAILURE_GRACE_S", 2.0)
    acts = ["os.kill(os.getpid(), 9)", "os._exit(7)", "os._exit(1)", "signal.raise_signal(34)", "time.sleep(60)"]
    node = Spawn(nnodes=2, node_rank=1, nproc_per_node=len(acts))
    processes = [
        subprocess.Popen([sys.executable, "-c", f"import os, signal, time; {act}"], stderr=subprocess.DEVNULL)
        for act in acts
    ]
    try:
        assert train_spawn._wait_for_ranks(processes, [], node) == 1
    finally:
        for process in processes:
            process.kill()
            process.wait()
    # One says itself why it ends with 1, and one was ended here.
    assert sorted(filter(None, capfd.readouterr().err.splitlines())) == [
        "seatrial: rank 5 was killed by SIGKILL",
        "seatrial: rank 6 ended with exit code 7",
        "seatrial: rank 8 was killed by SIGRTMIN",
    ]


_PARENT = """
import subprocess, sys
from seatrial.worker import train_spawn
from seatrial.worker.train_spec import Spawn
ranks = [subprocess.Popen([sys.executable, "-c", "import os; os.abort()"], stderr=subprocess.DEVNULL)]
train_spawn._wait_for_ranks(ranks, [], Spawn(nnodes=2, node_rank=0, nproc_per_node=1))
"""
_RANK = """
from seatrial.training.defaults import make_recipe
from seatrial.worker.train_report import TrainReporter
from seatrial.worker.train_spec import TrainSpec
recipe = make_recipe("synthetic-1x2x2-2", model="toy", max_steps=2, global_batch_size=2, num_samples=8)
TrainReporter(TrainSpec(recipe=recipe, device="cpu"), 3, 4, bool).print_of_rank("failed in load data: x")
"""
_MEETS = _RANK.replace('print_of_rank("failed in load data: x")', 'ready(open_device("cpu", 0, 1), "gloo", 0, 1)')
_MEETS = f"""
from seatrial.rank.device import open_device
from seatrial.worker.train_rank import suppress_numpy_warning
suppress_numpy_warning()
{_MEETS}"""


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (_PARENT, b"\nseatrial: rank 0 was killed by SIGABRT\n"),
        (_RANK, b"\nseatrial: rank 3 of 4 failed in load data: x\n"),
    ],
    ids=["parent", "rank"],
)
def test_a_line_that_names_a_rank_is_written_at_once(program: str, line: bytes) -> None:
    """Other ranks write into the same pipe, C++ without the end of the line."""
    assert _written(program) == line


def test_a_rank_that_met_is_found_behind_half_a_line() -> None:
    """Else its crash, or its lack of memory, would read as one of a rank that still connects."""
    assert MET.findall(b"half a line" + _written(_MEETS)) == [b"3"]


def _written(program: str) -> bytes:
    """Return all that a program writes to standard error, by one call."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {**os.environ, "PYTHONPATH": str(Path(seatrial.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
    with ours, theirs:
        subprocess.run([sys.executable, "-c", program], stderr=theirs.fileno(), env=env, timeout=50, check=True)
        theirs.close()
        line = ours.recv(4_000)
        assert ours.recv(4_000) == b""
    return line
