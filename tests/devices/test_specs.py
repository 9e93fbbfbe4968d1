"""The device table: sound, unambiguous, and readable inside a zip."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import seatrial
from seatrial.checks import compute
from seatrial.devices.specs import find, highest_memory_peak, highest_peak, specs

NAMES = {
    "NVIDIA A100-SXM4-40GB": "A100 SXM 40GB",
    "NVIDIA A100-SXM4-80GB": "A100 SXM 80GB",
    "NVIDIA A100 80GB PCIe": "A100 PCIe 80GB",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H200": "H200 SXM",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA B200": "B200 SXM",
    "NVIDIA B300 SXM6 AC": "B300 SXM",
    "NVIDIA GB200": "GB200",
    "NVIDIA L40S": "L40S",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI355X": "MI355X",
}


@pytest.mark.parametrize(("name", "model"), NAMES.items())
def test_names_of_drivers_are_found(name: str, model: str) -> None:
    spec = find(name)
    assert spec is not None
    assert spec.model == model


@pytest.mark.parametrize(
    "name",
    ["", "NVIDIA H100", "NVIDIA H200 NVL", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA L40", "AMD Radeon Graphics"],
)
def test_another_device_or_a_slice_of_one_is_unknown(name: str) -> None:
    assert find(name) is None


def test_a_name_belongs_to_one_row() -> None:
    patterns = [name for spec in specs() for name in spec.names]
    assert len(patterns) == len(set(patterns))
    for spec in specs():
        for name in spec.names:
            assert find(name.replace("*", "X")) is spec


def test_no_healthy_device_is_near_the_limit_of_its_model() -> None:
    """What healthy devices keep up with the timed shape (bench/results/gpu_first_hour.json; gpu-fryer)."""
    healthy = {"NVIDIA H200": 678, "NVIDIA H100 80GB HBM3": 730, "NVIDIA GH200 480GB": 705, "NVIDIA GB200": 1550}
    for name, tflops in {**healthy, "NVIDIA A100-PCIE-40GB": 224}.items():
        spec = find(name)
        assert spec is not None
        assert tflops >= 1.1 * compute.params.Params().fraction * spec.attainable_tflops["bf16"], name


def test_attainable_rates_are_below_the_peak_and_have_a_source() -> None:
    for spec in specs():
        for dtype, attainable in spec.attainable_tflops.items():
            assert 0.4 * spec.peak_tflops[dtype] < attainable < spec.peak_tflops[dtype], spec.model
        assert (spec.source == "datasheet") != bool(spec.attainable_tflops), spec.model


def test_the_highest_peak_is_that_of_the_fastest_device() -> None:
    assert highest_peak("bf16") == max(spec.peak_tflops["bf16"] for spec in specs())
    assert highest_peak("fp6") == math.inf


def test_each_device_has_a_plausible_memory_bandwidth() -> None:
    peaks = {spec.model: spec.memory_peak_gbps for spec in specs()}
    assert all(300 <= peak <= highest_memory_peak() for peak in peaks.values())
    assert peaks["A100 SXM 40GB"] < peaks["A100 SXM 80GB"] < peaks["H100 SXM"] < peaks["H200 SXM"]


def test_the_table_is_read_from_a_zip(tmp_path: Path) -> None:
    bundle = Path(shutil.make_archive(str(tmp_path / "bundle"), "zip", Path(seatrial.__file__).parents[1], "seatrial"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from seatrial.devices import specs; print(specs.__file__, len(specs.specs()))"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(bundle)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    path, count = done.stdout.split()
    assert path.startswith(str(bundle)), done.stderr
    assert int(count) == len(specs())
