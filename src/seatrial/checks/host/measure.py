"""Measurements and facts that the host check takes on each node."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from seatrial.checks.host.params import Params
from seatrial.environment import identity
from seatrial.errors import RequestError
from seatrial.probe import cgroup, cpu, host, ifname, names, network
from seatrial.rank.context import Context

_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
_LAUNCHERS_WITHOUT_RANK = ("openmpi", "hydra", "slurm", "indexed-job")
"""Launchers that set none of ``_RANK_VARIABLES``."""
_MOST_NAMES = 16
"""The largest number of names in one list of a fact."""
_GB = 1e9


def measure(context: Context, params: Params) -> None:
    """Report the process of each rank and its device; the first rank of each node also reports the node."""
    context.phase("read the process")
    used_bytes = _device_used_bytes(context)
    context.fact(
        "process",
        {
            "machine": host.machine_identity(),
            "network": host.network_identity(),
            "affinity": cpu.affinity(),
            "device_used_known": used_bytes is not None,
        },
    )
    if used_bytes is not None:
        context.measurement("device_memory_used", used_bytes / _GB, "GB", "low")
    if context.local_rank == 0:
        context.phase("read the node")
        _measure_node(context, params)


def _measure_node(context: Context, params: Params) -> None:
    control_group = cgroup.read_cgroup()
    memory, available_bytes = host.memory(), host.memory_available()
    shm = host.shared_memory()
    open_files, memlock_bytes = host.soft_limit("nofile"), host.soft_limit("memlock")
    if shm is not None:
        context.measurement("shm_free", shm.free_bytes / _GB, "GB", "high")
    if available_bytes is not None:
        context.measurement("memory_available", available_bytes / _GB, "GB", "high")
    if open_files is not None:
        context.measurement("open_files", open_files, "1", "high")
    if context.clock is not None:
        context.measurement("clock_offset", context.clock[0], "ms")
    resolved = names.resolve(socket.gethostname(), params.resolve_timeout_s)
    context.fact(
        "host",
        {
            "environment": host.detect_runtime(os.environ),
            "shm": asdict(shm) if shm else None,
            "memory": asdict(memory) if memory else None,
            "cgroup": asdict(control_group) if control_group else None,
            "open_files": open_files,
            "memlock_bytes": memlock_bytes,
            "locks_any": host.can_lock_any_memory(),
            "rdma": list(host.rdma_devices()[:_MOST_NAMES]),
            "name": asdict(resolved),
            "clock": list(context.clock) if context.clock else None,
            "leftovers": leftover_variables(os.environ, context.rank, context.world_size),
            "has_loopback": _has_loopback(),
            **_network_facts(context.address),
        },
    )


def _device_used_bytes(context: Context) -> int | None:
    """Return the bytes in use on the device beyond what torch has reserved: our context, and other processes.

    None for CPUs, and for a device that shares the host's memory: it counts all processes of the host as its users.
    """
    if context.device.type != "cuda":
        return None
    import torch

    index = context.device.index
    if getattr(torch.cuda.get_device_properties(index), "is_integrated", 0):
        return None
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    return max(0, int(total_bytes - free_bytes - torch.cuda.memory_reserved(index)))


def _has_loopback() -> bool | None:
    """Return whether the loopback interface is up, over which a host reaches itself; None: not known."""
    interfaces = network.interfaces()
    return None if interfaces is None else any(interface.loopback and interface.usable for interface in interfaces)


def _network_facts(address: str) -> dict[str, Any]:
    """Return the interface that leads to the conductor at ``address``, and those that NCCL and Gloo would choose."""
    interfaces = network.interfaces()
    if interfaces is None:
        return {"interface": None, "mtu": None, "chosen": {}}
    name = network.interface_to(address)
    to_conductor = next((interface for interface in interfaces if interface.name == name), None)
    chosen: dict[str, dict[str, Any]] = {}
    nccl, gloo = os.environ.get("NCCL_SOCKET_IFNAME"), os.environ.get("GLOO_SOCKET_IFNAME")
    if nccl is not None and ifname.is_set(nccl):
        taken = ifname.nccl_interfaces(nccl, interfaces)
        chosen["NCCL_SOCKET_IFNAME"] = _choice(nccl, taken, (), to_conductor, interfaces)
    if gloo is not None and ifname.is_set(gloo):
        taken, unknown = ifname.gloo_interfaces(gloo, interfaces)
        chosen["GLOO_SOCKET_IFNAME"] = _choice(gloo, taken, unknown, to_conductor, interfaces)
    # The loopback leads to no other node.
    leaves_host = to_conductor is not None and not to_conductor.loopback
    return {
        "interface": to_conductor.name if to_conductor and leaves_host else None,
        "mtu": to_conductor.mtu if to_conductor and leaves_host else None,
        "chosen": chosen,
    }


def _choice(
    value: str,
    taken: tuple[str, ...],
    unknown: tuple[str, ...],
    to_conductor: network.Interface | None,
    interfaces: tuple[network.Interface, ...],
) -> dict[str, Any]:
    loopbacks = {interface.name for interface in interfaces if interface.loopback}
    return {
        "value": value[:200],
        "taken": list(taken[:_MOST_NAMES]),
        "unknown": list(unknown[:_MOST_NAMES]),
        "has_own": to_conductor is not None and to_conductor.name in taken,
        "leaves_host": any(name not in loopbacks for name in taken),
    }


def leftover_variables(environ: Mapping[str, str], rank: int, world_size: int) -> list[str]:
    """Return the rank variables that the launcher of this process did not set.

    A script that reads them would assume that it is another rank. ``rank`` and ``world_size`` are those of this trial.
    """
    left = [name for name in _RANK_VARIABLES if name in environ]
    if "SEATRIAL_NNODES" in environ:  # our marker, which comes with the address of the first node
        left = [name for name in left if name != "MASTER_ADDR"]
    try:
        process = identity.identify({name: text for name, text in environ.items() if not name.startswith("SEATRIAL_")})
    except RequestError:
        return left
    if process.launcher == "none":
        return left
    if process.launcher == "env" and (process.rank, process.world_size) != (rank, world_size):
        return left
    if process.launcher in _LAUNCHERS_WITHOUT_RANK:
        # There a user passes the master's address by hand, and a wrapper may set torch's variables correctly.
        ours = {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
        return [name for name in left if name in ours and environ[name] != ours[name]]
    return []
