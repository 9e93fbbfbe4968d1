"""Real agents on a machine with AMD's devices that are not there: a double of amd-smi, and a made tree as sysfs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from devices.test_amd_devices import STATIC, metric, sysfs_tree
from live.trials import Ended, Trial

_ARGUMENTS = ("smoke", "--only", "diagnostics,compute", "--device", "cpu", "--nproc-per-node", "1")


def _rows(devices: int = 3, **changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of devices; ``changes``: ``gpu1`` -> what differs there."""
    return [metric(gpu, **changes.get(f"gpu{gpu}", {})) for gpu in range(devices)]


def _machine(folder: Path) -> dict[str, str]:
    """Return the environment of a machine with three MI300X, whose amd-smi answers from files."""
    static = [
        {
            **STATIC,
            "gpu": gpu,
            "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": f"0x{gpu}"},
            "partition": {},
        }
        for gpu in range(3)
    ]
    names = [{"gpu": gpu, "bdf": f"0000:{0x0C + gpu:02x}:00.0", "uuid": f"uuid-{gpu}"} for gpu in range(3)]
    for name, rows in (("metric", _rows()), ("static", static), ("list", names)):
        _write(folder / name, rows)
    tool = folder / "amd-smi"
    tool.write_text(f'#!/bin/sh\nexec cat "{folder}/$1"\n')
    tool.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SEATRIAL_KERNEL_LOG": str(folder / "none")}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace the answer; whoever reads it meanwhile sees the old one or the new one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"gpu_data": rows}))
    new.replace(path)


def _until_compute(trial: Trial) -> None:
    trial.until(lambda event: event["kind"] == "facts" and "before" in [fact["name"] for fact in event["facts"]])


def _texts(ended: Ended, severity: str) -> list[str]:
    own = [finding for finding in ended.report["findings"] if finding["check"] == "diagnostics"]
    return sorted(finding["what"] for finding in own if finding["severity"] == severity)


@pytest.mark.nightly
def test_healthy_devices(tmp_path: Path) -> None:
    ended = Trial(tmp_path / "out", *_ARGUMENTS, env=_machine(tmp_path)).ended()
    assert ended.exit_code == 0, ended.report["findings"]
    assert (_texts(ended, "fail"), _texts(ended, "warn")) == ([], [])
    (node,) = ended.report["gpu_diagnostics"]
    assert node["source"].startswith("amd-smi")
    assert [device["before"]["model"] for device in node["devices"]] == ["AMD Instinct MI300X"] * 3
    assert [device["changes"] for device in node["devices"]] == [{}] * 3
    assert {node["devices"][0][moment]["power_w"] for moment in ("before", "after")} == {640}


@pytest.mark.slow
def test_each_fault_is_named(tmp_path: Path) -> None:
    variables = _machine(tmp_path)
    trial = Trial(tmp_path / "out", *_ARGUMENTS, env=variables)
    _until_compute(trial)
    hot = {"temperature": {"edge": "N/A", "hotspot": {"value": 97, "unit": "C"}, "mem": {"value": 60, "unit": "C"}}}
    errors = {"ecc": {"total_correctable_count": 5, "total_uncorrectable_count": 4, "total_deferred_count": "N/A"}}
    _write(tmp_path / "metric", _rows(2, gpu0=errors, gpu1=hot))  # and the third one has fallen off
    ended = trial.ended()
    assert ended.exit_code == 1
    node = ended.report["nodes"][0]["name"]
    lost, counted = sorted(_texts(ended, "fail"), reverse=True)
    assert counted.startswith(
        f"GPU 0 (AMD Instinct MI300X, 0000:0c:00) of node {node} counted 3 uncorrectable memory errors (ECC) "
    )
    assert lost.startswith(f"GPU 2 (AMD Instinct MI300X, 0000:0e:00) of node {node} was lost ")
    (warm,) = [what for what in _texts(ended, "warn") if "GPU 1 " in what]
    assert "97" in warm


@pytest.mark.root
@pytest.mark.parametrize(
    "fault", ["ecc", *(pytest.param(fault, marks=pytest.mark.nightly) for fault in ("none", "lost"))]
)
def test_the_files_of_the_kernel(fault: str, tmp_path: Path) -> None:
    """In a mount namespace the made tree is /sys/bus/pci/devices, and nothing of the readers is replaced."""
    shell, devices = shutil.which("unshare"), sysfs_tree(tmp_path).parent
    if shell is None:
        pytest.skip("unshare is not installed")
    double = tmp_path / "python"
    double.write_text(
        f'#!/bin/sh\nexec {shell} -m sh -c \'mount --bind {devices} /sys/bus/pci/devices && exec "$0" "$@"\''
        ' "$REAL_PYTHON" "$@"\n'
    )
    double.chmod(0o755)
    variables = {"PATH": "/usr/bin:/bin", "SEATRIAL_KERNEL_LOG": str(tmp_path / "none")}
    trial = Trial(tmp_path / "out", *_ARGUMENTS, env=variables, python=str(double))
    _until_compute(trial)
    device = devices / "0000:0c:00.0"
    if fault == "ecc":
        (device / "ras" / "umc_err_count").write_text("ue: 5\nce: 9\n")
    elif fault == "lost":
        shutil.rmtree(device)
    ended = trial.ended()
    what = {"none": [], "ecc": ["counted 3 uncorrectable memory errors (ECC)"], "lost": ["was lost"]}[fault]
    assert [text for text in what if text in "".join(_texts(ended, "fail"))] == what
    assert ended.exit_code == bool(what), ended.report["findings"]
    (node,) = ended.report["gpu_diagnostics"]
    assert node["source"].endswith("in sysfs")
