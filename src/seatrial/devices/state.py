"""The state of a device, and of everything that a node knows about its devices: what readers return.

A reader is one file of this folder for one source (``nvml.py``, ``nvidia_smi.py``, ...). It returns a ``DeviceState``
for each device and never raises for what a device or a driver answers: a value that it cannot get is None, or missing
from a mapping, and ``unavailable`` has the reason. ``readers.py`` lists the readers of each vendor in the order in
which they are tried. A reader travels to the nodes, so it imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Vendor = Literal["nvidia", "amd"]

LOST = "lost"
RESET_REQUIRED = "reset required"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """Everything that one source says about one device at one moment."""

    vendor: Vendor
    index: int
    """Number in the driver's order, from 0. A visibility variable does not change it."""
    uuid: str
    """Identity in all snapshots of a node: the UUID, else the serial number or the PCI address."""
    bus: str = ""
    """PCI address without function: ``0000:17:00``, lower case, four digits of domain. Empty where it is not known."""
    model: str = ""
    serial: str = ""
    driver: str = ""
    """Version of the kernel driver."""
    vbios: str = ""
    numa_node: int | None = None
    """NUMA node of the host that it is attached to."""
    problem: str = ""
    """A state that the vendor documents as broken: ``lost``, ``reset required``, ``a power cable is missing``, ``an
    interrupt is lost``. Empty: none of them."""

    temperature_c: float | None = None
    """Temperature of the GPU; AMD: that of its hot spot."""
    memory_temperature_c: float | None = None
    slowdown_c: float | None = None
    """Temperature at which the device slows itself down, by its own driver."""
    margin_k: float | None = None
    """Kelvin that are left until it slows down, as the driver says it."""
    utilization_percent: float | None = None
    """Share of the last moment in which it executed anything."""
    sm_mhz: float | None = None
    sm_max_mhz: float | None = None
    memory_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    """The limit that holds now."""
    power_default_limit_w: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Names of ``THROTTLE`` that hold now; None: not known."""
    throttled_ns: Mapping[str, int] = field(default_factory=dict)
    """Name of ``THROTTLE`` -> nanoseconds for which it has held since the driver was loaded, counted by the device."""

    throttled_ticks: Mapping[str, int] = field(default_factory=dict)
    """Name of ``THROTTLE`` -> for how many of ``ticks`` it has held, of a device that counts in ticks."""
    ticks: int | None = None

    counters: Mapping[str, int] = field(default_factory=dict)
    """Name of ``COUNTERS`` -> its value, which only ever grows. Totals over all links, channels or banks."""
    link_counters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Name of ``COUNTERS`` -> its value of each NVLink by number; -1: that link did not say it."""
    nvlink_fec_history: tuple[int, ...] = ()
    """How often the error correction of all NVLinks found 0, 1, ... 15 wrong symbols at once, and corrected them."""
    broken: tuple[str, ...] = ()
    """Names of ``BROKEN`` that hold now."""
    recovery_action: str | None = None
    """The action that the driver asks for: ``none``, ``reset``, ``reboot``, ``drain p2p``, ``drain and reset``,
    ``recover imex``."""
    ecc_enabled: bool | None = None

    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    """The highest that device and slot support together."""
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks: int | None = None
    """Links between devices (NVLink, XGMI) that the device has."""
    nvlinks_active: int | None = None
    nvlink_gbps: float | None = None
    """Speed of the slowest active link, GB/s."""
    fabric_state: str | None = None
    """``not supported``, ``not started``, ``in progress``, ``completed``, ``failed: <status>``."""
    fabric_clique: str = ""
    """Fabric and part of it (clique) whose devices reach one another by NVLink: ``<uuid>.<clique>``; empty: in none."""

    mig: bool | None = None
    """Whether the device is divided into slices (MIG; AMD: a partition mode other than SPX)."""
    compute_mode: str | None = None
    """``default``, ``exclusive process``, ``prohibited``."""
    persistence: bool | None = None
    processes: tuple[int, ...] | None = None
    """Process ids that compute on it, as the driver numbers them (in a container: often none)."""

    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Name of a field, or of a counter, that has no value -> why: ``not supported``, ``not permitted``, ..."""


THROTTLE: Mapping[str, str] = {
    "application_clocks": "held at a clock that a user set (application clocks)",
    "power_cap": "at its power limit (SW power cap)",
    "hw_slowdown": "slowed by its hardware (HW slowdown)",
    "sync_boost": "held at the clock of other GPUs of its group (sync boost)",
    "sw_thermal": "too hot (SW thermal slowdown)",
    "hw_thermal": "too hot (HW thermal slowdown)",
    "thermal": "too hot (thermal policy)",
    "power_brake": "slowed at the request of its power supply (HW power brake)",
    "display_clock": "held at the clock of a display",
    "board_limit": "at a limit of its board",
    "reliability": "held down to stay reliable (voltage)",
    "low_utilization": "slow because it had little to do",
}
"""Why a device's clock is lower than it could be, as a finding says it. ``thermal``: both slowdowns by heat, where a
driver does not count each by itself. AMD: ``power_cap`` is PPT, ``hw_thermal`` is PROCHOT and the thermal limits of
socket, memory and regulators together."""

COUNTERS: Mapping[str, str] = {
    "ecc_corrected": "corrected memory errors (ECC)",
    "ecc_uncorrected": "uncorrectable memory errors (ECC)",
    "ecc_corrected_dram": "of them corrected ones in DRAM",
    "ecc_corrected_sram": "of them corrected ones in SRAM",
    "ecc_uncorrected_dram": "of them uncorrectable ones in DRAM",
    "ecc_uncorrected_sram": "of them uncorrectable ones in SRAM",
    "ecc_deferred": "deferred memory errors (ECC)",
    "rows_remapped_corrected": "memory rows remapped after corrected errors",
    "rows_remapped_uncorrected": "memory rows remapped after uncorrectable errors",
    "pages_retired": "memory pages retired",
    "pcie_replays": "PCIe replays",
    "pcie_recoveries": "PCIe link recoveries",
    "nvlink_crc_errors": "CRC errors of NVLinks",
    "nvlink_replays": "replays of NVLinks",
    "nvlink_recoveries": "recoveries of NVLinks",
    "nvlink_failed_recoveries": "failed recoveries of NVLinks",
    "nvlink_receive_errors": "receive errors of NVLinks",
    "nvlink_malformed_packets": "malformed packets of NVLinks",
    "nvlink_buffer_overruns": "buffer overruns of NVLinks",
    "nvlink_integrity_errors": "local integrity errors of NVLinks",
    "nvlink_discards": "discarded packets of NVLinks",
    "nvlink_effective_errors": "errors of NVLinks that their error correction left",
    "nvlink_symbol_errors": "symbol errors of NVLinks",
    "xgmi_errors": "errors of XGMI links",
}
"""Counters of faults. ``checks/diagnostics/rules.py`` says which of them fail a device when they rise."""

BROKEN: Mapping[str, str] = {
    "row_remap_failure": "a memory row could not be remapped",
    "row_remap_pending": "a remapped memory row waits for a reset",
    "channel_repair_pending": "a repair of a memory channel waits for a reset",
    "tpc_repair_pending": "a repair of a TPC waits for a reset",
    "sram_threshold": "uncorrectable SRAM errors exceeded the threshold of the vendor",
    "pages_pending": "a retired memory page waits for a reset",
    "fabric_degraded_bandwidth": "its NVLink fabric has degraded bandwidth",
    "fabric_route_recovery": "its NVLink fabric recovers a route",
    "fabric_route_unhealthy": "its NVLink fabric has an unhealthy route",
    "fabric_access_timeout": "its NVLink fabric timed out",
    "fabric_configuration": "its NVLink fabric is configured wrongly",
    "fabric_unknown": "its NVLink fabric reports a state that is newer than this seatrial",
    "inforom_corrupt": "its inforom is corrupt",
    "bad_pages_threshold": "its bad memory pages exceeded the threshold of the vendor",
}
"""States that the vendor documents as broken or degraded, as a finding says them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """The few values of a device that are read each second."""

    uuid: str
    temperature_c: float | None = None
    margin_k: float | None = None
    utilization_percent: float | None = None
    power_w: float | None = None
    sm_mhz: float | None = None
    memory_used_bytes: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    problem: str = ""
    """The same as in ``DeviceState``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvent:
    """A line of the kernel log about a device: an XID or SXID of NVIDIA's, or an error of AMD's driver."""

    kind: Literal["xid", "sxid", "off the bus", "amdgpu"]
    bus: str
    """The same as in ``DeviceState``; for an SXID that of the NVSwitch. Empty where the line names none."""
    code: int = 0
    """Number of the XID or SXID; 0 otherwise."""
    text: str
    """The line without its header."""
    seconds: float | None = None
    """Time since the machine was started."""
    subcode: int | None = None
    """Subcode of XID 144 to 150."""
    link: int | None = None
    """NVLink that XID 144 to 150 names."""
    follows: int | None = None
    """XID that this one only follows from, by its own text."""
    fatal: bool | None = None
    """Whether the line calls itself fatal; None: it says neither."""
    old: bool = False
    """Whether it stood in the log before the trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPort:
    """A port of an InfiniBand or RoCE adapter, from /sys/class/infiniband."""

    name: str
    """``mlx5_0/1``."""
    state: str
    """``ACTIVE``, ``DOWN``, ..."""
    physical_state: str = ""
    rate_gbit_per_s: float | None = None
    link_layer: str = ""
    """``InfiniBand`` or ``Ethernet`` (RoCE)."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Name of the file -> its value, only counters of errors."""
    usable: bool = True
    """Whether processes of this account can open its adapter, as far as that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A snapshot of a node: its devices, ports and libraries, and what the kernel logged since the last snapshot."""

    devices: tuple[DeviceState, ...] = ()
    source: str = ""
    """Where the states of the devices come from: ``NVML 580.95.05``, ``nvidia-smi -q -x``, ..."""
    topology: Mapping[str, str] = field(default_factory=dict)
    """``0-1`` -> how devices 0 and 1 are connected: ``NV18``, ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``."""
    kernel_events: tuple[KernelEvent, ...] = ()
    ports: tuple[NetworkPort, ...] = ()
    visible: tuple[str, ...] | None = None
    """``uuid`` of the devices that a visibility variable leaves to the ranks; None: all."""
    not_checked: Mapping[str, str] = field(default_factory=dict)
    """What could not be read at all -> why: ``kernel log`` -> ``/dev/kmsg: not permitted``."""
    silent: bool = False
    """Whether a source did not answer this time: then its devices are as it last said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWindow:
    """One device during one step: its samples, and what changed between the snapshots at both ends."""

    uuid: str
    samples: int = 0
    temperature_max_c: float | None = None
    margin_min_k: float | None = None
    utilization_percent: float | None = None
    """Mean of the samples."""
    power_mean_w: float | None = None
    power_max_w: float | None = None
    sm_mhz: float | None = None
    """Median of the samples in which the device was busy."""
    memory_max_bytes: int | None = None
    pcie_generation: int | None = None
    """The highest that was seen while the device was busy; None: it never was."""
    pcie_width: int | None = None
    """The same for the width."""
    risen: Mapping[str, int] = field(default_factory=dict)
    """Name of ``COUNTERS`` -> by how much it rose, where it did."""
    risen_links: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Name of ``COUNTERS`` -> the NVLinks on which it rose, where they are known."""
    fec_risen: tuple[int, ...] = ()
    """By how much each entry of ``nvlink_fec_history`` rose, up to the last one that did."""
    throttled_ns: Mapping[str, int] = field(default_factory=dict)
    """Name of ``THROTTLE`` -> nanoseconds for which it held, where it did."""
    throttled_share: Mapping[str, float] = field(default_factory=dict)
    """The same as a share of the ticks that the device counted, else of the samples."""
    broken: tuple[str, ...] = ()
    """Names of ``BROKEN`` that hold at the end and did not at the beginning."""
    problem: str = ""
    """``DeviceState.problem`` at the end or in a sample, where there was none at the beginning."""
    recovery_action: str | None = None
    """The action that the driver asks for at the end, where it asked for another one at the beginning."""
    nvlinks_lost: int = 0
    """NVLinks that were active at the beginning and are not at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWindow:
    """One node during one step."""

    check: str
    stage: str = "measure"
    seconds: float = 0.0
    devices: tuple[DeviceWindow, ...] = ()
    kernel_events: tuple[KernelEvent, ...] = ()
    ports: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Name of a port -> name of an error counter -> by how much it rose."""
    ports_down: tuple[str, ...] = ()
    """Ports that were active at the beginning and are not at the end."""
    libraries: tuple[str, ...] = ()
    """Paths of the libnccl and librccl that processes of this node have mapped, where they may be looked at."""
