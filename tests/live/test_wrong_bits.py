"""Bits that are really wrong in one rank of a trial: the rank is named, rank 0 included, and the clean twin passes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from live.trials import kill_left, trial

pytestmark = pytest.mark.slow

ONLY = ("smoke", "--only", "compute,bootstrap,training", "--nproc-per-node", "3")


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        ("flip@training/step 20 optimizer:0", "training", "the replicas are no longer equal"),
        ("flip@training/look at parameters:2", "training", "the replicas are no longer equal"),
        ("flip-product@compute:1", "compute", "rank 1 returns wrong results of fp32"),
    ],
)
def test_only_the_rank_with_wrong_bits_is_named(tmp_path: Path, fault: str, check: str, words: str) -> None:
    ended = trial(tmp_path, *ONLY, plant=[fault])
    (finding,) = ended.grave()
    assert (ended.exit_code, finding["severity"], finding["check"]) == (1, "fail", check)
    assert finding["culprit"]["ranks"] == [int(fault[-1])]
    assert words in finding["what"]


def test_a_device_with_wrong_gradients_is_named_alone(tmp_path: Path) -> None:
    options = ("smoke", "--only", "compute", "--nproc-per-node", "1")
    ended = trial(tmp_path, *options, plant=["flip-gradient@compute:0"])
    (finding,) = ended.grave()
    assert (ended.exit_code, finding["culprit"]["ranks"]) == (1, [0])
    assert "rank 0 returns wrong results of convolution" in finding["what"]


@pytest.mark.timeout(180)  # three trials
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_wrong_gradient_reduced_by_all_is_named(tmp_path: Path, num_ranks: int) -> None:
    """From before the training, from within it, and rank 0 too; the replicas stay equal and learn as they should."""
    options = ("smoke", "--only", "bootstrap,training", "--nproc-per-node", str(num_ranks))
    for number, fault in enumerate(("flip-gradient@training:1", "flip-gradient@training/step 20 forward:0")):
        ended = trial(tmp_path / str(number), *options, plant=[fault])
        (finding,) = ended.grave()
        assert (ended.exit_code, finding["severity"], finding["check"]) == (1, "fail", "training")
        assert finding["culprit"]["ranks"] == [int(fault[-1])]
        assert "returns a wrong convolution" in finding["what"]
        assert any(f"rank {fault[-1]}" in line and "gradients" in line for line in finding["evidence"])
    ended = trial(tmp_path / "clean", *options)
    assert ended.exit_code == 0, ended.report["findings"]


def test_the_clean_twin_passes(tmp_path: Path) -> None:
    ended = trial(tmp_path, *ONLY)
    assert ended.exit_code == 0, ended.report["findings"]


def test_a_rank_with_another_correct_library_is_not_blamed(tmp_path: Path) -> None:
    """Started by hand, as torchrun would, with oneDNN held to older instructions in the last rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
    job |= {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "by-hand"}
    command = [sys.executable, "-m", "seatrial", "run", "smoke", "--only", "bootstrap,training", "--device", "cpu"]
    ranks = [
        subprocess.Popen(
            [*command, "--json", "--out", str(tmp_path)],
            env={**os.environ, **job, "RANK": rank, "LOCAL_RANK": rank, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, settings in (("0", {}), ("1", {}), ("2", {"ONEDNN_MAX_CPU_ISA": "SSE41"}))
    ]
    try:
        outputs = [rank.communicate(timeout=55) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
        kill_left(tmp_path)
    assert [rank.returncode for rank in ranks] == [0, 0, 0], outputs
    report = json.loads(outputs[0][0])
    assert report["acceptance"]["status"] == "PASS", report["findings"]
    assert "gradients of rank 2 not compared, as no other rank computes alike" in str(report["acceptance"])
