"""InfiniBand and RoCE ports from /sys/class/infiniband: state, rate and counters of errors."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from seatrial.devices.state import NetworkPort

ERROR_COUNTERS: dict[str, str] = {
    "symbol_error": "symbol errors",
    "link_error_recovery": "link error recoveries",
    "link_downed": "times that the link went down",
    "port_rcv_errors": "receive errors",
    "port_xmit_discards": "discarded packets",
    "local_link_integrity_errors": "local link integrity errors",
    "excessive_buffer_overrun_errors": "buffer overruns",
    "rx_icrc_encapsulated": "RoCE packets with a wrong checksum",
    "local_ack_timeout_err": "timeouts of acknowledgments",
    "packet_seq_err": "packets out of sequence",
    "out_of_sequence": "packets out of sequence at the receiver",
    "rnr_nak_retry_err": "exceeded retries of a receiver that was not ready",
    "roce_adp_retrans": "adaptive retransmissions of RoCE",
}
"""File in ``counters`` or ``hw_counters`` -> what it counts (kernel documentation, sysfs-class-infiniband; mlx5)."""


def read_ports(sysfs: Path = Path("/sys"), dev: Path = Path("/dev")) -> tuple[NetworkPort, ...]:
    """Return all ports, in the order of their names.

    A container sees the ports of its whole machine here, those of other containers too.
    """
    files = {
        _text(verbs / "ibdev"): dev / "infiniband" / verbs.name for verbs in sysfs.glob("class/infiniband_verbs/*")
    }
    ports = []
    for folder in sorted((sysfs / "class" / "infiniband").glob("*/ports/*")):
        device, counters = folder.parent.parent.name, dict[str, int]()
        for name in ERROR_COUNTERS:
            for kind in ("counters", "hw_counters"):
                with contextlib.suppress(OSError, ValueError):
                    counters.setdefault(name, int((folder / kind / name).read_text()))
        state, physical = _text(folder / "state"), _text(folder / "phys_state")
        rate = re.match(r"[0-9]+(\.[0-9]+)?", _text(folder / "rate"))
        ports.append(
            NetworkPort(
                name=f"{device}/{folder.name}",
                state=state.partition(": ")[2] or state,
                physical_state=physical.partition(": ")[2] or physical,
                rate_gbit_per_s=float(rate[0]) if rate else None,
                link_layer=_text(folder / "link_layer"),
                counters=counters,
                usable=device not in files
                or os.access(files[device], os.R_OK | os.W_OK)
                # An interface that this network namespace has: ranks may use the port by TCP.
                or any((folder.parent.parent / "device" / "net").glob("*")),
            )
        )
    return tuple(ports)


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()[:80]
    except OSError:
        return ""
