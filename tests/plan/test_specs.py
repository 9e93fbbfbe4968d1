"""The device table: sound, unambiguous, and readable as TOML and as JSON."""

from __future__ import annotations

import json
import math
import sys
import zipfile
from pathlib import Path

import pytest

from seatrial.plan.specs import find, highest_memory_peak, highest_peak, specs
from seatrial.plan.tables import load_table

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


def test_nothing_attainable_is_above_its_peak_and_every_figure_has_a_source() -> None:
    for spec in specs():
        for dtype, attainable in spec.attainable_tflops.items():
            assert 0.4 * spec.peak_tflops[dtype] < attainable < spec.peak_tflops[dtype], spec.model
        assert ("measured" in spec.source) == bool(spec.attainable_tflops), spec.model


def test_the_highest_peak_is_that_of_the_fastest_device() -> None:
    assert highest_peak("bf16") == max(spec.peak_tflops["bf16"] for spec in specs())
    assert highest_peak("fp6") == math.inf


def test_each_device_has_a_memory_and_none_is_faster_than_the_highest_peak() -> None:
    peaks = {spec.model: spec.memory_peak_gbps for spec in specs()}
    assert all(300 <= peak <= highest_memory_peak() for peak in peaks.values())
    assert peaks["A100 SXM 40GB"] < peaks["A100 SXM 80GB"] < peaks["H100 SXM"] < peaks["H200 SXM"]


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="levels/none"):
        load_table("levels/none")


def test_a_bundle_reads_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "bundle.zip"
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr("seatrial/__init__.py", "")
        archive.writestr("seatrial/plan/__init__.py", "")
        archive.writestr("seatrial/plan/specs.json", json.dumps({"device": [{"model": "from the bundle"}]}))
    for module in [name for name in sys.modules if name.partition(".")[0] == "seatrial"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(bundle)
    assert load_table("specs") == {"device": [{"model": "from the bundle"}]}
    for module in [name for name in sys.modules if name.partition(".")[0] == "seatrial"]:
        monkeypatch.delitem(sys.modules, module)
