"""The trainings of docs/coming-from.md, for real: small files in the published formats, two processes and more."""

from __future__ import annotations

from pathlib import Path

import pytest
from live.trainings import Training, train
from training.small_files import write_cifar10, write_mnist

from seatrial.util.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KNOWN = {
    "mnist, adam, 3 epochs": ("mnist", "3", "--model", "mlp", "--optimizer", "adam", "--lr", "0.001"),
    "fashion-mnist, resnet18, 256 a process": (
        *("fashion-mnist", "--model", "resnet18", "--epochs", "1", "--batch-size", "256", "--seed", "1"),
    ),
    "cifar10, resnet18": ("cifar10", "--model", "resnet18", "--epochs", "1", "--batch-size", "32"),
    "a snapshot every 2 epochs": ("mnist", "4", "2", "--model", "mlp"),
    "demo, basic": ("synthetic-10x1x1-5", "--model", "toy", "--max-steps", "20"),
    "demo, checkpoint": ("synthetic-10x1x1-5", "2", "1", "--model", "toy", "--global-batch-size", "4096"),
    "demo, model parallel": ("mnist", "1", "--model", "mlp", "--strategy", "pipeline"),
    "spawn": ("mnist", "1", "--model", "mlp", "--spawn"),
}
"""Name -> what is typed after ``seatrial train``."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in ("mnist", "fashion-mnist"):
        write_mnist(folder, 512, 64, name=name)
    write_cifar10(folder, 64, 32)
    return folder


@pytest.mark.parametrize("name", KNOWN)
def test_two_processes_train_it_and_end_with_the_same_bits(tmp_path: Path, data: Path, name: str) -> None:
    given = KNOWN[name]
    files = () if given[0].startswith("synthetic") else ("--data", str(data))
    ended = train(tmp_path, "train", *given, *files, "--device", "cpu", "--nproc-per-node", "2")
    assert ended.exit_code == 0, ended.errors
    assert len(ended.digest) == 64
    expected = {"a snapshot every 2 epochs": 2, "demo, checkpoint": 2}.get(name, 0)
    assert len(list(tmp_path.glob("checkpoints/step-*.pt"))) == expected


def test_one_process_with_dataparallel(tmp_path: Path, data: Path) -> None:
    given = ("mnist", "1", "--model", "mlp", "--strategy", "dp", "--nproc-per-node", "1")
    ended = train(tmp_path, "train", *given, "--data", str(data), "--device", "cpu")
    assert ended.exit_code == 0, ended.errors
    assert "digest of the one rank: " in ended.output


@pytest.mark.parametrize("nnodes", [2, 8])
def test_nodes_of_one_process_each_that_are_typed_by_hand(tmp_path: Path, data: Path, nnodes: int) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    init = "env" if nnodes == 2 else f"tcp://127.0.0.1:{place['MASTER_PORT']}"
    given = ("train", "mnist", "1", "--model", "mlp", "--data", str(data), "--device", "cpu", "--batch-size", "16")
    by_hand = ("--spawn", "--nnodes", str(nnodes), "--nproc-per-node", "1", "--init", init)
    nodes = [Training(tmp_path, *given, *by_hand, "--node-rank", str(at), env=place) for at in range(nnodes)]
    ends = [node.ended() for node in nodes]
    assert [ended.exit_code for ended in ends] == [0] * nnodes, ends
    assert len(ends[0].digest) == 64
