"""The structures that NVML fills, with the layouts of nvml.h (NVIDIA/go-nvml, gen/nvml/nvml.h)."""

from __future__ import annotations

import ctypes
from typing import Any


class _Versioned(ctypes.Structure):
    """A structure whose first field holds its size and version."""

    VERSION = 1

    @classmethod
    def new(cls) -> Any:
        made: Any = cls()
        made.version = ctypes.sizeof(cls) | cls.VERSION << 24
        return made


class Temperature(_Versioned):
    """nvmlTemperature_v1_t."""

    _fields_ = (("version", ctypes.c_uint), ("sensor", ctypes.c_uint), ("temperature", ctypes.c_int))


class Margin(_Versioned):
    """nvmlMarginTemperature_v1_t."""

    _fields_ = (("version", ctypes.c_uint), ("margin", ctypes.c_int))


class Memory(_Versioned):
    """nvmlMemory_v2_t."""

    VERSION = 2
    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class OldMemory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Repair(_Versioned):
    """nvmlRepairStatus_v1_t."""

    _fields_ = (("version", ctypes.c_uint), ("channel", ctypes.c_uint), ("tpc", ctypes.c_uint))


class Sram(_Versioned):
    """nvmlEccSramErrorStatus_v1_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        *((f"count{number}", ctypes.c_ulonglong) for number in range(11)),
        ("threshold_exceeded", ctypes.c_uint),
    )


class Fabric(_Versioned):
    """nvmlGpuFabricInfo_v2_t."""

    VERSION = 2
    _fields_ = (
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_uint8 * 16),
        ("status", ctypes.c_int),
        ("clique", ctypes.c_uint32),
        ("state", ctypes.c_uint8),
        ("health", ctypes.c_uint32),
    )


class OldFabric(ctypes.Structure):
    """nvmlGpuFabricInfo_t."""

    health = 0
    """It has no health mask."""
    _fields_ = (
        ("cluster", ctypes.c_uint8 * 16),
        ("status", ctypes.c_int),
        ("clique", ctypes.c_uint32),
        ("state", ctypes.c_uint8),
    )


class Utilization(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Process(ctypes.Structure):
    """nvmlProcessInfo_t, version 2 and 3."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class OldProcess(ctypes.Structure):
    """nvmlProcessInfo_v1_t."""

    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong))


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "id", "subsystem")),
        ("address", ctypes.c_char * 32),
    )
