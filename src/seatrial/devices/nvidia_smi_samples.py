"""Samples of each second from one ``nvidia-smi --loop``, for a node where NVML cannot be loaded by our process.

One process for the whole trial: a new one each second would load the driver's library each time. It ends with the
process that reads it, at the latest when it writes its next line. Fields: ``nvidia-smi --help-query-gpu``.

The samples may take 1 % of a core. The CPU time of a line is measured, and a tool that needs more is started again with
fewer of them.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seatrial.devices.nvml import REASON_BITS
from seatrial.devices.readers import short_bus
from seatrial.devices.state import DeviceSample

_FIELDS = (
    "pci.bus_id",
    "temperature.gpu",
    "utilization.gpu",
    "power.draw",
    "clocks.sm",
    "memory.used",
    "pcie.link.gen.current",
    "pcie.link.width.current",
)
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The reasons for a lower clock as a mask: the name since driver 535, and the one before."""
_FIRST_LINE_S = 10.0
_CPU_SHARE = 0.01
"""Share of a core that the tool may take."""
_MEASURED_READINGS = 5
"""Readings of all devices after which its CPU time is known."""
_CPU_UNIT_S = 1 / os.sysconf("SC_CLK_TCK")
"""In which the kernel counts CPU time: a hundredth of a second."""
_LONGEST_PERIOD_S = 60
_MOST_BYTES = 1 << 16
"""Bytes of its output that are kept: the last ones."""
_MOST_PIECES = 16
"""Pieces that are read at once: a tool that prints without end must not keep us."""
_NUMBER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """An open loop."""

    read: Callable[[], tuple[DeviceSample, ...]]
    """Returns the last sample of each device, each only once; never waits."""
    remarks: Callable[[], Mapping[str, str]]
    """Returns ``Reader.remarks``."""
    close: Callable[[], None]


def open_samples(tool: str, uuids: Mapping[str, str]) -> Samples | None:
    """Return the samples; None: the tool gives none.

    Args:
        tool: path of nvidia-smi.
        uuids: PCI address -> UUID of each device.
    """
    deadline = time.monotonic() + _FIRST_LINE_S
    for reasons in _REASONS:
        stream = _Stream([tool, f"--query-gpu={','.join((*_FIELDS, reasons))}", "--format=csv,noheader,nounits"])
        if stream.has_line(deadline):
            read = partial(_samples, stream, uuids)
            return Samples(read=read, remarks=stream.remarks, close=stream.end)
        stream.end()
    return None


def period_of(cpu_s: float) -> int:
    """Return the seconds between two readings of which each takes ``cpu_s`` seconds of CPU time."""
    return max(1, min(_LONGEST_PERIOD_S, math.ceil(cpu_s / _CPU_SHARE)))


class _Stream:
    """The lines of a tool that prints each second, or more rarely."""

    def __init__(self, argv: list[str]) -> None:
        self._argv = argv
        self._process: subprocess.Popen[bytes] | None = None
        self.cpu_s: float | None = None
        """CPU time of one reading, once it is known."""
        self._begin(1)

    def _begin(self, period_s: int) -> None:
        self._buffer, self._period_s = b"", period_s
        self._readings: int | None = None
        self._cpu_before_s = 0.0
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [*self._argv, f"--loop={period_s}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )

    def count(self, readings: int) -> None:
        """Count how often all devices were read since the last call; start the tool again if that costs too much."""
        if self._process is None or self.cpu_s is not None or (now_s := _cpu_s(self._process.pid)) is None:
            return
        if self._readings is None:
            self._readings, self._cpu_before_s = 0, now_s  # the first one has loaded the driver's library
            return
        self._readings += readings
        if self._readings >= _MEASURED_READINGS:
            # The kernel's count may leave out nearly one of its units.
            self.cpu_s = (now_s - self._cpu_before_s + _CPU_UNIT_S) / self._readings
            if (period_s := period_of(self.cpu_s)) > self._period_s:
                self.end()
                self._begin(period_s)

    def remarks(self) -> dict[str, str]:
        """Return why there are fewer samples than one each second."""
        if self._period_s == 1 or self.cpu_s is None:
            return {}
        why = f"nvidia-smi takes {self.cpu_s * 1000:.0f} ms of CPU time for one: one every {self._period_s} s"
        return {"samples of each second": why}

    def has_line(self, deadline: float) -> bool:
        """Wait for the first line, which stays to be read; whether it came and is no sentence about a wrong field."""
        while b"\n" not in self._buffer:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._process is None or not self._read(left_s):
                return False
        return self._buffer.partition(b"\n")[0].count(b",") == len(_FIELDS)

    def lines(self) -> list[str]:
        """Return the lines that have come; never waits."""
        for _ in range(_MOST_PIECES):
            if self._process is None or not self._read(0.0):
                break
        *lines, self._buffer = self._buffer.split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def end(self) -> None:
        """End the tool. One that waits inside the driver is not waited for."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
            self._process = None

    def _read(self, timeout_s: float) -> bool:
        """Read what is there; whether it was anything."""
        assert self._process is not None and self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            return False
        piece = os.read(self._process.stdout.fileno(), _MOST_BYTES)
        self._buffer = (self._buffer + piece)[-_MOST_BYTES:]
        return bool(piece)


def _samples(stream: _Stream, uuids: Mapping[str, str]) -> tuple[DeviceSample, ...]:
    samples, readings = dict[str, DeviceSample](), Counter[str]()
    for line in stream.lines():
        values = [value.strip() for value in line.split(",")]
        uuid = uuids.get(short_bus(values[0]))
        if len(values) == len(_FIELDS) + 1 and uuid is not None:
            samples[uuid] = _sample(uuid, values)
            readings[uuid] += 1
    if samples:
        stream.count(max(readings.values()))
    return tuple(samples.values())


def _cpu_s(pid: int) -> float | None:
    """Return the CPU time of a process of ours, with that of children which have ended: it may be a script."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) * _CPU_UNIT_S
    except (OSError, ValueError, IndexError):
        return None


def _sample(uuid: str, values: list[str]) -> DeviceSample:
    degrees, percent, watts, mhz, mebibytes, generation, width = map(_number, values[1:-1])
    try:
        mask = int(values[-1], 16)
    except ValueError:
        mask = None
    return DeviceSample(
        uuid=uuid,
        temperature_c=degrees,
        utilization_percent=percent,
        power_w=watts,
        sm_mhz=mhz,
        memory_used_bytes=None if mebibytes is None else int(mebibytes) << 20,
        pcie_generation=None if generation is None else int(generation),
        pcie_width=None if width is None else int(width),
        throttle_reasons=None if mask is None else tuple(name for bit, name in REASON_BITS.items() if mask & bit),
    )


def _number(text: str) -> float | None:
    """Return a number below a million; ``[N/A]`` and other words are none."""
    return float(text) if _NUMBER.fullmatch(text) else None
