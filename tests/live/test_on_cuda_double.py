"""The branches of a GPU, taken by real commands and real ranks on doubles of CUDA devices (``tests/cuda_double``)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_double.install import environment
from live.trainings import Training
from live.trials import Ended, trial

LAUNCHED = Path(__file__).parents[1] / "cuda_double" / "launched_on_device.py"
PLAN = """
level = "smoke"
[compute]
gpu_size = 256
[memory]
gpu_copy_bytes = 16_777_216
host_copy_bytes = 16_777_216
gpu_share = 0.02
[collectives]
gpu_sizes = [8, 65_536]
"""
"""The level ``smoke`` with sizes that a host computes in a second."""


def on_doubles(tmp_path: Path, only: str, *, plant: str = "", fault: str = "") -> Ended:
    plan = tmp_path / "small.toml"
    plan.write_text(PLAN)
    variables = environment(tmp_path / "double", fault=fault)
    return trial(tmp_path / "out", str(plan), "--only", only, plant=[plant] if plant else [], env=variables)


def named(ended: Ended) -> list[tuple[str, list[int]]]:
    return [(finding["culprit"]["kind"], finding["culprit"]["ranks"]) for finding in ended.grave()]


@pytest.mark.nightly
def test_compute_memory_and_collectives_measure(tmp_path: Path) -> None:
    ended = on_doubles(tmp_path, "inventory,host,compute,memory,bootstrap,collectives")
    measured = {(entry["name"], entry.get("variant", "")): entry["value"] for entry in ended.report["measurements"]}
    assert {measured["wrong_elements", dtype] for dtype in ("bf16", "fp32", "convolution")} == {0}
    assert all(measured["copy_gbps", kind] > 0 for kind in ("device", "host_to_device", "device_to_host"))
    assert measured["wrong_words", "random"] == 0
    assert ("busbw", "all_reduce") in measured
    # Two doubles share the cores of the host, so one may be slower than the other; nothing else may be found.
    assert all("slow" in finding["what"] for finding in ended.grave()), ended.report["findings"]


def test_an_error_that_a_later_call_reports_names_the_device(tmp_path: Path) -> None:
    ended = on_doubles(tmp_path, "compute", fault="1:12:an illegal memory access was encountered")
    assert ended.exit_code == 1, ended.report["findings"]
    (finding,) = ended.grave()
    assert finding["culprit"]["ranks"] == [1]
    assert "CUDA error: an illegal memory access was encountered" in finding["what"]


@pytest.mark.nightly
def test_a_full_device_is_named(tmp_path: Path) -> None:
    ended = on_doubles(tmp_path, "compute", plant="memory@compute:0")
    assert ended.exit_code == 1
    (finding,) = ended.grave()
    assert finding["culprit"]["ranks"] == [0]
    assert "out of memory on rank 0" in finding["what"]


@pytest.mark.nightly
def test_a_wrong_product_is_named(tmp_path: Path) -> None:
    ended = on_doubles(tmp_path, "compute", plant="flip-product@compute:1")
    assert ended.exit_code == 1
    assert any("wrong results of" in finding["what"] and "bf16" in finding["what"] for finding in ended.grave())
    assert {rank for _, ranks in named(ended) for rank in ranks} == {1}


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_train_on_a_device_ends_and_resumes_with_the_same_bits(tmp_path: Path) -> None:
    variables = environment(tmp_path / "double", devices=1)
    recipe = ("train", "digits", "--model", "mlp", "--device", "cuda", "--schedule", "constant")
    saved = ("--checkpoint-dir", str(tmp_path / "checkpoints"))
    to = ("--out", str(tmp_path / "reports"))
    whole = Training(tmp_path, *recipe, *to, "--max-steps", "12", env=variables).ended()
    assert whole.exit_code == 0, whole.errors
    assert Training(tmp_path, *recipe, *to, *saved, "--max-steps", "6", env=variables).ended().exit_code == 0
    resumed = Training(tmp_path, *recipe, *to, *saved, "--max-steps", "12", env=variables).ended()
    assert "resumed from the checkpoint of step 6" in resumed.output, resumed.errors
    digests = re.findall(r"\b[0-9a-f]{64}$", whole.output + resumed.output, re.MULTILINE)
    assert len(digests) == 2, resumed.output
    assert digests[0] == digests[1]


@pytest.mark.nightly
def test_launch_two_processes_on_two_devices(tmp_path: Path) -> None:
    output = launched(tmp_path, devices=2)
    found = re.findall(r"rank (\d) of 2 on cuda:(\d), nccl, sum (\S+)", output)
    assert [(rank, device) for rank, device, _ in sorted(found)] == [("0", "0"), ("1", "1")], output
    assert found[0][2] == found[1][2]


@pytest.mark.nightly
def test_launch_two_processes_on_one_device(tmp_path: Path) -> None:
    # --device cpu: seatrial gives each rank of a GPU run a device for itself, and this script shares one.
    output = launched(tmp_path, "--device", "cpu", devices=1)
    assert sorted(re.findall(r"rank (\d) of 2 on cuda:0, gloo", output)) == ["0", "1"], output


def launched(tmp_path: Path, *options: str, devices: int) -> str:
    command = [sys.executable, "-m", "seatrial", "launch", "--nproc-per-node", "2", "--output", "all", *options]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out"), str(LAUNCHED)],
        env={**os.environ, **environment(tmp_path / "double", devices=devices)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
