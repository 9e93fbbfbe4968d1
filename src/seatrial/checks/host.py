"""Is each node set up for training: shared memory, limits, memory, name, network interfaces, clock, devices in use."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from seatrial.checks._host_judge import judge
from seatrial.checks.base import Check, Held
from seatrial.errors import RequestError
from seatrial.probe import cgroup, cpu, host, identity, ifname, names, network

if TYPE_CHECKING:
    from seatrial.worker.context import Context

__all__ = ["CHECK", "Params"]

_LEFTOVERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
_WITHOUT_RANK = ("openmpi", "hydra", "slurm", "indexed-job")
"""Launchers that set none of these."""
_MOST_NAMES = 16
_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The limits. GB is 10**9 bytes."""

    min_shm_gb: float = 0.9
    """Free in /dev/shm. NCCL's guide asks containers for 1 GB (``--shm-size=1g``); a part of that is soon in use."""
    min_memory_per_rank_gb: float = 0.5
    """Of the host's memory, for each rank of a node, beyond what its processes have taken when this check runs. CPU
    ranks of the level standard took 0.35 GB more."""
    min_open_files: int = 512
    """Of one process, whatever the number of ranks: libraries, data loaders, checkpoints."""
    min_open_files_per_rank: int = 16
    """And for each rank of the world: Gloo and NCCL keep sockets to their peers, in every group anew."""
    min_memlock_gb: float = 1.0
    """Locked memory, where there are RDMA devices: what they send from and receive to must be locked."""
    min_cores_per_rank: float = 1.0
    max_clock_offset_ms: float = 100.0
    """Between the clocks of two nodes: NTP keeps them within a few, and logs and rendezvous go by them."""
    own_context_gb: float = 1.0
    """Allowed for our own context on a device: kernels and driver tables, 0.3 to 0.8 GB on most."""
    max_device_used_gb: float = 1.0
    """In use on a device beyond our own context."""
    resolve_timeout_s: float = 2.0
    """For the answer to what the node's own name stands for."""
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence for a value that cannot be meant."""
        for key, value in asdict(self).items():
            if value < 0:
                raise ValueError(f"{key} is {value:g}; it must not be negative")
        if not 0 < self.resolve_timeout_s < self.timeout_s:
            raise ValueError(
                f"resolve_timeout_s is {self.resolve_timeout_s:g}; it must be above 0 and fit into timeout_s, "
                f"{self.timeout_s:g} s"
            )


def measure(context: Context, params: Params) -> None:
    """Each rank tells its cores and what is in use on its device; the first one of the node tells of the node."""
    context.phase("look at the process")
    used = _device_used_bytes(context)
    place = {"machine": host.machine_identity(), "network": host.network_identity(), "affinity": cpu.affinity()}
    context.fact("place", {**place, "device_used_known": used is not None})
    if used is not None:
        context.figure("device_memory_used", used / _GB, "GB", "low")
    if context.local_rank != 0:
        return
    context.phase("look at the node")
    group = cgroup.read_cgroup()
    memory = host.memory()
    shm = host.shared_memory()
    files, locked = host.limit("nofile").soft, host.limit("memlock").soft
    if shm is not None:
        context.figure("shm_free", shm.free_bytes / _GB, "GB", "high")
    available_bytes = host.memory_available()
    if available_bytes is not None:
        context.figure("memory_available", available_bytes / _GB, "GB", "high")
    if files is not None:
        context.figure("open_files", files, "1", "high")
    if context.clock is not None:
        context.figure("clock_offset", context.clock[0], "ms")
    resolved = names.resolve(socket.gethostname(), params.resolve_timeout_s)
    context.fact(
        "host",
        {
            "environment": host.environment(os.environ),
            "shm": asdict(shm) if shm else None,
            "memory": asdict(memory) if memory else None,
            "cgroup": asdict(group) if group else None,
            "open_files": files,
            "memlock_bytes": locked,
            "locks_any": host.can_lock_any_memory(),
            "rdma": list(host.rdma_devices()[:_MOST_NAMES]),
            "name": asdict(resolved),
            "clock": list(context.clock) if context.clock else None,
            "leftovers": _leftovers(os.environ, context.rank, context.world_size),
            **_network(context.address),
        },
    )


def _device_used_bytes(context: Context) -> int | None:
    """In use on the device beside what torch has reserved: our context, and others. None: it cannot be told apart."""
    if context.device.type != "cuda":
        return None
    import torch

    index = context.device.index
    # A device that shares the host's memory counts all processes of the host as users.
    if getattr(torch.cuda.get_device_properties(index), "is_integrated", 0):
        return None
    free, total = torch.cuda.mem_get_info(index)
    return max(0, int(total - free - torch.cuda.memory_reserved(index)))


def _network(address: str) -> dict[str, Any]:
    """The interface that leads to the conductor, by our address there, and what the two libraries would choose."""
    found = network.interfaces()
    if found is None:
        return {"interface": None, "mtu": None, "chosen": {}}
    name = network.interface_to(address)
    own = next((each for each in found if each.name == name), None)
    chosen: dict[str, dict[str, Any]] = {}
    nccl, gloo = os.environ.get("NCCL_SOCKET_IFNAME"), os.environ.get("GLOO_SOCKET_IFNAME")
    if nccl is not None and ifname.is_set(nccl):
        taken = ifname.nccl_interfaces(nccl, found)
        chosen["NCCL_SOCKET_IFNAME"] = _choice(nccl, taken, (), own, found)
    if gloo is not None and ifname.is_set(gloo):
        taken, unknown = ifname.gloo_interfaces(gloo, found)
        chosen["GLOO_SOCKET_IFNAME"] = _choice(gloo, taken, unknown, own, found)
    routes = own is not None and not own.loopback
    return {
        "interface": own.name if own and routes else None,
        "mtu": own.mtu if own and routes else None,
        "chosen": chosen,
    }


def _choice(
    value: str,
    taken: tuple[str, ...],
    unknown: tuple[str, ...],
    own: network.Interface | None,
    found: tuple[network.Interface, ...],
) -> dict[str, Any]:
    loopback = {each.name for each in found if each.loopback}
    return {
        "value": value[:200],
        "taken": list(taken[:_MOST_NAMES]),
        "unknown": list(unknown[:_MOST_NAMES]),
        "has_own": own is not None and own.name in taken,
        "leaves_host": any(name not in loopback for name in taken),
    }


def _leftovers(environ: Mapping[str, str], rank: int, world_size: int) -> list[str]:
    """Words of a launcher that did not start this process: a script that reads them takes itself for another rank."""
    left = [name for name in _LEFTOVERS if name in environ]
    if "SEATRIAL_NNODES" in environ:  # our own marker: the address of the first node goes with it
        left = [name for name in left if name != "MASTER_ADDR"]
    try:
        found = identity.identify({name: text for name, text in environ.items() if not name.startswith("SEATRIAL_")})
    except RequestError:
        return left
    if found.launcher == "none" or (found.launcher == "env" and (found.rank, found.world_size) != (rank, world_size)):
        return left
    if found.launcher in _WITHOUT_RANK:
        # Their ranks are told the master by hand, and a wrapper may say who they are in torch's words.
        ours = {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
        return [name for name in left if name in ours and environ[name] != ours[name]]
    return []


def limits(params: Params) -> tuple[Held, ...]:
    """What each node is held against."""
    guide = "NCCL's guide: --shm-size=1g in containers"
    context = f"{params.own_context_gb:g} GB for our own context + host.max_device_used_gb"
    files = f"at least {params.min_open_files} + {params.min_open_files_per_rank} a rank of the world"
    memory = f"at least {params.min_memory_per_rank_gb:g} GB a rank of the node"
    rows = (
        ("shm_free, several GPU ranks", f"at least {params.min_shm_gb:g} GB", guide),
        ("shm_free, else", f"at least {params.min_shm_gb:g} GB, only warns", guide),
        ("memory_available", f"{memory}, only warns", "host.min_memory_per_rank_gb"),
        ("open_files", f"{files}, only warns", "host.min_open_files, one socket a peer and group"),
        ("locked memory, RDMA devices", f"at least {params.min_memlock_gb:g} GB, only warns", "host.min_memlock_gb"),
        ("cores", f"at least {params.min_cores_per_rank:g} a rank of the node, only warns", "host.min_cores_per_rank"),
        ("device_memory_used", f"at most {params.own_context_gb + params.max_device_used_gb:g} GB", context),
        ("clock between nodes", f"at most {params.max_clock_offset_ms:g} ms, only warns", "host.max_clock_offset_ms"),
        ("own name, several nodes, gloo", "an address that others can reach", "torch: Gloo tells it to its peers"),
        ("own name, several nodes, else", "as above, only warns", "torchrun tells it to the other nodes"),
        ("*_SOCKET_IFNAME, several nodes", "an interface that leads to other nodes", "NCCL, Gloo: they use no other"),
        ("mtu, several nodes", "alike, only warns", "fleet, majority of the nodes"),
        ("RANK, WORLD_SIZE, ...", "not set by hand, only warns", "scripts take themselves for that rank"),
    )
    return tuple(Held(what=what, limit=limit, origin=origin) for what, limit, origin in rows)


CHECK = Check(name="host", scope="alone", params=Params, measure=measure, judge=judge, limits=limits)
