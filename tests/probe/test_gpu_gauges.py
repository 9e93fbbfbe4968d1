"""What a GPU says of itself: AMD's from a tree of files, NVIDIA's from a double of its library with the same calls.

The double is called as the library is, by C's rules; nothing here was said by a GPU.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from seatrial.probe import gpu_gauges
from seatrial.probe.gpu_gauges import nvml_gauges, open_gauges

_HANDLE = 0x7FFF00001234
_UNKNOWN, _NOT_SUPPORTED = 6, 3


class NvmlDouble:
    """One GPU, known by its UUID and its place, as functions of C."""

    def __init__(self, **without: int) -> None:
        """``without``: a function's name, and the code that it returns instead."""
        self._kept: list[Any] = []
        text, number = ctypes.c_char_p, ctypes.c_uint
        wide, place, pointer = ctypes.POINTER(ctypes.c_ulonglong), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
        narrow = ctypes.POINTER(number)

        def find(*names: bytes) -> Any:
            def found(name: bytes, device: Any) -> int:
                device[0] = _HANDLE
                return 0 if name in names else _UNKNOWN

            return found

        def put(value: int, *asked: int, code: int = 0) -> Any:
            """Writes the value where the last pointer leads, for the right device and question."""

            def told(device: int, *others: Any) -> int:
                assert device == _HANDLE
                which = [other for other in others if isinstance(other, int)]
                assert which == list(asked)
                next(other for other in others if other is not None and not isinstance(other, int))[0] = value
                return code

            return told

        functions: dict[str, tuple[list[Any], Any]] = {
            "nvmlInit_v2": ([], lambda: 0),
            "nvmlDeviceGetHandleByUUID": ([text, place], find(b"GPU-1b2c")),
            "nvmlDeviceGetHandleByPciBusId_v2": ([text, place], find(b"0000:65:00.0")),
            "nvmlDeviceGetClockInfo": ([pointer, number, narrow], put(1980, 1)),
            "nvmlDeviceGetTemperature": ([pointer, number, narrow], put(61, 0)),
            "nvmlDeviceGetEnforcedPowerLimit": ([pointer, narrow], put(700_000)),
            "nvmlDeviceGetComputeRunningProcesses_v3": ([pointer, narrow, pointer], put(3, code=7)),
            "nvmlDeviceGetCurrentClocksThrottleReasons": ([pointer, wide], put(0x44)),
        }
        for name, (arguments, function) in functions.items():
            answer = (lambda code: lambda *_: code)(without[name]) if name in without else function
            callback = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(answer)
            self._kept.append(callback)
            # As a library's function is called: nothing says here what its arguments are.
            address = ctypes.cast(callback, ctypes.c_void_p).value
            assert address is not None
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int)(address))


WHOLE = {"gpu_mhz": 1980, "gpu_celsius": 61, "gpu_limit_w": 700, "gpu_processes": 3, "reasons": 0x44}


@pytest.mark.parametrize("identity", ["1b2c", "GPU-1b2c", "0000:65:00"])
def test_each_gauge_of_nvidia_by_uuid_or_place(identity: str) -> None:
    read = nvml_gauges(NvmlDouble(), identity)
    assert read is not None
    assert read() == WHOLE


@pytest.mark.parametrize(
    ("function", "gauge"),
    [
        ("nvmlDeviceGetClockInfo", "gpu_mhz"),
        ("nvmlDeviceGetEnforcedPowerLimit", "gpu_limit_w"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "gpu_processes"),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", "reasons"),
    ],
)
def test_what_a_gpu_does_not_support_or_a_driver_does_not_know_is_left_out(function: str, gauge: str) -> None:
    library = NvmlDouble(**{function: _NOT_SUPPORTED})
    for _ in range(2):
        read = nvml_gauges(library, "1b2c")
        assert read is not None
        assert read() == {name: value for name, value in WHOLE.items() if name != gauge}
        library = NvmlDouble()
        delattr(library, function)


@pytest.mark.parametrize("library", [NvmlDouble(nvmlInit_v2=9), NvmlDouble()])
def test_without_a_driver_or_that_gpu_there_are_no_gauges(library: NvmlDouble) -> None:
    assert nvml_gauges(library, "another") is None


def test_without_the_library_there_are_no_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_gauges, "_LIBRARY", "libno-such-library.so.1")
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
