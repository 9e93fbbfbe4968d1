"""Builds the double of NVML (nvml_double.c) with gcc, and writes the text file that its answers come from."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

VARIABLE = "SEATRIAL_NVML_DOUBLE"
Answers = dict[str, object]


def build(folder: Path, *, without: Iterable[str] = ()) -> Path:
    """Return the library, built in ``folder`` under its real name, without some functions."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    library = folder / "libnvidia-ml.so.1"
    absent = [f"-D{name}=absent_{name}" for name in without]
    source = Path(__file__).with_name("nvml_double.c")
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-D_GNU_SOURCE", *absent]
    subprocess.run([compiler, *options, "-o", library, source], check=True, timeout=60)
    return library


def h100(index: int, **changes: object) -> Answers:
    """Return a healthy H100 of eight, with the totals of a machine that has worked for months.

    The numbers are like those that real ones show: replays from 106 to 150, 7,015 s at the power limit, idle at 345
    MHz (NVIDIA/k8s-test-infra, hardware captures). ``changes``: other answers; dots are written as ``__``.
    """
    answers: Answers = {
        "nvmlDeviceGetUUID": f"GPU-{index:08d}-aaaa-bbbb-cccc-000000000000",
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetSerial": f"16500000000{index:02d}",
        "nvmlDeviceGetVbiosVersion": "96.00.99.00.01",
        "bus": f"00000000:{0x17 + index:02X}:00.0",
        "nvmlDeviceGetTemperature.0": 29,
        "nvmlDeviceGetMarginTemperature": 58,
        "field.194": -2,
        "field.82": 37,
        "nvmlDeviceGetUtilizationRates": 0,
        "nvmlDeviceGetClockInfo.1": 345,
        "nvmlDeviceGetClockInfo.2": 2619,
        "nvmlDeviceGetMaxClockInfo.1": 1980,
        "nvmlDeviceGetPowerUsage": 68920,
        "nvmlDeviceGetEnforcedPowerLimit": 700000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700000,
        "nvmlDeviceGetCurrPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetComputeMode": 0,
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetMigMode": 0,
        "nvmlDeviceGetEccMode": 1,
        "nvmlDeviceGetCurrentClocksEventReasons": 1,
        "memory.total": 85520809984,
        "memory.used": 503316480,
        "repair.channel": 0,
        "repair.tpc": 0,
        "sram.exceeded": 0,
        "fabric.state": 3,
        "fabric.status": 0,
        "fabric.health": 0,
        "processes": "none",
        "links": 18,
        "remote": "00000000:C1:00.0",
        **{f"field.{field}": 0 for field in (3, 4, 29, 30, 142, 143, 144, 145, 161, 162, 163, 230)},
        **{f"nvmlDeviceGetMemoryErrorCounter.{error}.0.{place}": 0 for error in (0, 1) for place in (2, 7)},
        "field.90": 26562,
        "field.94": 106 + index,
        "field.74": 7_015_662_857_000,
        **{f"field.{field}": 0 for field in (75, 76, 77, 78, 79, 269, 270, 271)},
        "field.80": 7_015_662_857_000,  # as on an H200: below the application clocks, by the power limit
    }
    return {**answers, **{key.replace("__", "."): value for key, value in changes.items()}}


def write_later(path: Path, devices: Iterable[Mapping[str, object]], *, from_snapshot: int) -> None:
    """Write answers that take the place of those in ``path`` from a snapshot on, counted from 1 in each process.

    A watch takes one before the trial, one when each step begins, and one at the end.
    """
    write(path.with_name(f"{path.name}.from-{from_snapshot}"), devices)


def write(path: Path, devices: Iterable[Mapping[str, object]], **system: object) -> None:
    """Write the answers of a machine; those who read it meanwhile see the old ones or the new ones."""
    sections = [("system", {"driver": "580.105.08", "count": len(devices := list(devices)), **system})]
    sections += [(str(index), dict(device)) for index, device in enumerate(devices)]
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in answers.items()) for name, answers in sections
    )
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    os.replace(new, path)
