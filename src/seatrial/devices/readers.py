"""The readers of devices: which sources there are for each vendor, and the first of them that answers.

A new source is a new file of this folder with ``open_reader() -> Reader``, which raises UnreadableError, and its name
in ``SOURCES``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.devices.state import DeviceSample, DeviceState, Vendor

SOURCES: Mapping[Vendor, tuple[str, ...]] = {
    "nvidia": ("nvml", "nvidia_smi"),
    "amd": ("amd_smi", "rocm_smi", "amd_sysfs"),
}
"""Vendor -> modules of this folder, in the order in which they are tried."""

# PCI vendor, and the classes of its accelerators: VGA, 3D, other display (MI50 to MI250), processing accelerator
# (MI300). An AMD VGA device may be the display of a desktop, which needs no compute driver.
_ON_BUS: Mapping[Vendor, tuple[str, tuple[str, ...]]] = {
    "nvidia": ("0x10de", ("0x0300", "0x0302", "0x0380", "0x1200")),
    "amd": ("0x1002", ("0x0302", "0x0380", "0x1200")),
}


TWIN = "another device has the same"
"""Reason for a UUID that is none."""


class UnreadableError(Exception):
    """A source that cannot be read here; the text says why, as a phrase: ``libnvidia-ml.so.1 cannot be loaded``."""

    def __init__(self, why: str, lost: str = "") -> None:
        """``lost``: PCI address of the device that the source itself calls lost, as ``DeviceState.bus`` has it."""
        super().__init__(why)
        self.lost = lost


def nothing() -> None:
    """Do nothing: a source that has started no process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """An open source. No function raises for what a device answers; ``states`` raises UnreadableError where the source
    itself does not answer, which says nothing of any device."""

    source: str
    """Name of the source with its version: ``NVML 580.95.05``."""
    states: Callable[[], tuple[DeviceState, ...]]
    """Reads everything, some milliseconds a device."""
    samples: Callable[[], tuple[DeviceSample, ...]] | None
    """Reads the few values of each second; None: this source gives none."""
    topology: Callable[[], Mapping[str, str]]
    """Returns ``NodeState.topology``."""
    remarks: Callable[[], Mapping[str, str]] = dict
    """Returns what is not checked as often as it should be -> why."""
    close: Callable[[], None] = nothing
    """Ends what it has started."""


def open_readers(
    sysfs: Path = Path("/sys"), *, expected: Vendor | None = None
) -> tuple[tuple[Reader, ...], dict[str, str]]:
    """Return a reader for each vendor that has devices here, and why a vendor's devices cannot be read.

    ``expected``: the vendor whose devices the ranks use, whether or not the PCI bus shows any.
    """
    readers, problems = list[Reader](), dict[str, str]()
    for vendor, sources in SOURCES.items():
        reasons = list[str]()
        for source in sources:
            if importlib.util.find_spec(f"seatrial.devices.{source}") is None:
                continue
            try:
                readers.append(importlib.import_module(f"seatrial.devices.{source}").open_reader())
            except UnreadableError as error:
                reasons.append(str(error))
                continue
            break
        else:
            if reasons and (vendor == expected or on_bus(vendor, sysfs)):
                problems[f"{vendor.upper()} devices"] = "; ".join(reasons)
    return tuple(readers), problems


def distinct_uuids(names: Sequence[tuple[str, str]]) -> list[str]:
    """Return the UUIDs of (UUID, PCI address) pairs; one that several devices have gets the address, or a number."""
    counts = Counter(uuid for uuid, _ in names)
    return [
        uuid if counts[uuid] == 1 else f"{uuid} at {address or number}" for number, (uuid, address) in enumerate(names)
    ]


def on_bus(vendor: Vendor, sysfs: Path = Path("/sys")) -> int:
    """Return how many devices of a vendor are on the PCI bus."""
    wanted, classes = _ON_BUS[vendor]
    count = 0
    for device in (sysfs / "bus" / "pci" / "devices").glob("*"):
        with contextlib.suppress(OSError):
            count += (device / "vendor").read_text().strip() == wanted and (device / "class").read_text()[:6] in classes
    return count


def short_bus(address: str) -> str:
    """Return a PCI address as ``DeviceState.bus`` has it: ``00000000:17:00.0``, ``PCI:0000:17:00`` -> ``0000:17:00``.

    Text that is no PCI address becomes empty.
    """
    parts = address.lower().removeprefix("pci:").partition(".")[0].split(":")
    if len(parts) == 2:
        parts = ["0", *parts]
    try:
        domain, bus, device = (int(part, 16) for part in parts)
    except ValueError:
        return ""
    if not (0 <= domain < 1 << 32 and 0 <= bus < 1 << 8 and 0 <= device < 1 << 8):
        return ""
    return f"{domain:04x}:{bus:02x}:{device:02x}"
