"""What a GPU says of itself: AMD's from a tree of files, NVIDIA's from a double of its library with the same calls.

The double is called as the library is, by C's rules; nothing here was said by a GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from devices import nvml_double
from devices.nvml_double import h100

from seatrial.probe import gpu_gauges
from seatrial.probe.gpu_gauges import REASONS, open_gauges

WHOLE = {"gpu_mhz": 1980, "gpu_celsius": 61, "gpu_limit_w": 700, "gpu_processes": 3, "reasons": 0x144}
BUSY = h100(
    0,
    nvmlDeviceGetUUID="GPU-1b2c",
    bus="00000000:65:00.0",
    nvmlDeviceGetClockInfo__1=1980,
    nvmlDeviceGetTemperature__0=61,
    nvmlDeviceGetCurrentClocksEventReasons=0x144,
    processes="11 12 13",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_double.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def answers(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gpu_gauges, "LIBRARY", str(library))
    monkeypatch.setenv(nvml_double.VARIABLE, str(tmp_path / "answers"))
    nvml_double.write(tmp_path / "answers", [h100(1), BUSY])
    return tmp_path / "answers"


@pytest.mark.parametrize("identity", ["1b2c", "GPU-1b2c", "0000:65:00"])
def test_each_gauge_of_nvidia_by_uuid_or_place(identity: str, answers: Path) -> None:
    read = open_gauges("nvidia", identity, "")
    assert read is not None
    assert read() == WHOLE


@pytest.mark.parametrize(
    ("key", "gauge"),
    [
        ("nvmlDeviceGetClockInfo.1", "gpu_mhz"),
        ("nvmlDeviceGetEnforcedPowerLimit", "gpu_limit_w"),
        ("processes", "gpu_processes"),
        ("nvmlDeviceGetCurrentClocksEventReasons", "reasons"),
    ],
)
def test_unsupported_gauges_are_left_out(key: str, gauge: str, answers: Path) -> None:
    read = open_gauges("nvidia", "1b2c", "")
    assert read is not None
    nvml_double.write(answers, [h100(1), {**BUSY, key: "!3"}])
    assert read() == {name: value for name, value in WHOLE.items() if name != gauge}


def test_each_bit_of_the_reasons_exists() -> None:
    # nvml.h, nvmlClocksEventReason*: 0x200 and 0x400 are none, and 0x100 is the clock of a display.
    assert list(REASONS) == [0x2, 0x4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x100]


def test_without_a_driver_or_that_gpu_there_are_no_gauges(answers: Path) -> None:
    assert open_gauges("nvidia", "another", "") is None
    nvml_double.write(answers, [BUSY], nvmlInit_v2="!9")
    assert open_gauges("nvidia", "1b2c", "") is None


def test_without_the_library_there_are_no_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_gauges, "LIBRARY", "libno-such-library.so.1")
    assert open_gauges("nvidia", "1b2c", "") is None
    assert open_gauges("cpu", "", "") is None


def test_the_gauges_of_amd_are_files(tmp_path: Path) -> None:
    assert open_gauges("amd", "1b2c", "0000:c1:00", sysfs=tmp_path) is None
    sensors = tmp_path / "bus" / "pci" / "devices" / "0000:c1:00.0" / "hwmon" / "hwmon5"
    sensors.mkdir(parents=True)
    for name, value in {
        "freq1_input": 2_100_000_000,
        "freq2_input": 900_000_000,
        "temp1_input": 45_000,
        "temp2_input": 71_000,
        "power1_cap": 750_000_000,
    }.items():
        (sensors / name).write_text(f"{value}\n")
    read = open_gauges("amd", "1b2c", "0000:c1:00", sysfs=tmp_path)
    assert read is not None
    assert read() == {"gpu_mhz": 2100, "gpu_celsius": 71, "gpu_limit_w": 750}
    (sensors / "freq1_input").unlink()
    assert read() == {"gpu_celsius": 71, "gpu_limit_w": 750}
    assert open_gauges("amd", "1b2c", "", sysfs=tmp_path) is None
