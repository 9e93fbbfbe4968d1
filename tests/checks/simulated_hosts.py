"""Simulated fleets: what the ranks of healthy nodes report to ``inventory`` and ``host``; tests change parts of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.measurement import Fact, Measurement

H200 = "NVIDIA H200"
MEASUREMENTS = {"shm_free": "GB", "memory_available": "GB", "open_files": "1", "device_memory_used": "GB"}
Bend = Callable[[int, int, dict[str, Any]], None]
"""(node, local rank, its report): changes the report in place."""


def rank_of(node: int, local_rank: int = 0, per_node: int = 8) -> int:
    return node * per_node + local_rank


def _seen(nodes: int, per_node: int, *, agent_per_rank: bool, device: str) -> dict[int, RankRecord]:
    return {
        rank: RankRecord(
            rank=rank,
            node=f"n{rank // per_node}",
            node_rank=rank if agent_per_rank else rank // per_node,
            local_rank=rank % per_node,
            device=device,
            kind=device,
        )
        for rank in range(nodes * per_node)
    }


def inventory_fleet(
    nodes: int,
    per_node: int = 8,
    bend: Bend | None = None,
    *,
    dead: Collection[int] = (),
    unreported: Collection[int] = (),
    device_type: str = "cuda",
    agent_per_rank: bool = False,
) -> Evidence:
    """Return a fleet. Dead ranks reported nothing and did not finish; ``unreported`` ones finished all the same."""
    records = []
    seen = _seen(nodes, per_node, agent_per_rank=agent_per_rank, device=H200)
    for rank in seen:
        node, local_rank = divmod(rank, per_node)
        facts: dict[str, Any] = {
            "device": H200,
            "device_id": f"9d1f0000-0000-{node:04x}-{local_rank:04x}-000000000001",
            "index": local_rank,
            "memory_bytes": 150_754_820_096,
            "visible": per_node,
            "visibility": "",
            "driver": "570.86.15",
            "toolkit": "CUDA 12.8",
            "nccl": "2.26.2",
            "torch": "2.7.0+cu128",
            "python": "3.12.3",
            "kernel": "6.8.0-60-generic",
            "cpu": "Intel(R) Xeon(R) Platinum 8480+",
            "cores": 24,
            "boot_id": f"boot-{node}",
            "machine": f"n{node} boot-{node} 4026531840 25",
        }
        if bend is not None:
            bend(node, local_rank, facts)
        if rank not in dead and rank not in unreported:
            records.append(Fact(check="inventory", name="inventory", value=facts, rank=rank))
    asked = tuple(rank for rank in seen if rank not in dead)
    return Evidence(
        ranks=seen, asked=asked, measurements=(), facts=tuple(records), backend="nccl", device_type=device_type
    )


def host_fleet(
    nodes: int,
    per_node: int = 8,
    bend: Bend | None = None,
    *,
    dead: Collection[int] = (),
    device_type: str = "cuda",
    backend: str = "nccl",
    agent_per_rank: bool = False,
) -> Evidence:
    """Return a fleet. ``bend`` gets the facts of the node, those of the process, and the measurements by name."""
    records, measurements = [], []
    seen = _seen(nodes, per_node, agent_per_rank=agent_per_rank, device=H200)
    for rank in seen:
        node, local_rank = divmod(rank, per_node)
        facts: dict[str, Any] = {
            "environment": "none",
            "shm": {"size_bytes": 10**12, "free_bytes": 10**12},
            "memory": {"total_bytes": 2 * 10**12, "available_bytes": 10**12},
            "cgroup": {"path": "/", "memory_limit_bytes": None, "memory_left_bytes": None, "quota_cores": None},
            "memlock_bytes": None,
            "locks_any": False,
            "rdma": ["mlx5_0"],
            "name": {"name": f"n{node}", "addresses": [f"10.0.0.{node % 250}"], "own": f"10.0.0.{node % 250}"},
            "clock": [0.01 * (node % 7), 0.05],
            "leftovers": [],
            "has_loopback": True,
            "interface": "eth0",
            "mtu": 9000,
            "chosen": {},
            "process": {
                "machine": f"n{node} boot-{node} 4026531840 25",
                "network": f"boot-{node} 4026531840",
                "affinity": "0-191",
                "device_used_known": device_type != "cpu",
            },
            "measurements": {"shm_free": 1000.0, "memory_available": 1000.0, "open_files": 1048576.0},
        }
        if device_type != "cpu":
            facts["measurements"]["device_memory_used"] = 0.6
        if bend is not None:
            bend(node, local_rank, facts)
        process, values = facts.pop("process"), facts.pop("measurements")
        if rank in dead:
            continue
        records.append(Fact(check="host", name="process", value=process, rank=rank))
        if local_rank == 0:
            records.append(Fact(check="host", name="host", value=facts, rank=rank))
        for name, value in values.items():
            if value is not None and (local_rank == 0 or name == "device_memory_used"):
                measurements.append(
                    Measurement(check="host", name=name, value=value, unit=MEASUREMENTS[name], rank=rank)
                )
    asked = tuple(rank for rank in seen if rank not in dead)
    return Evidence(
        ranks=seen,
        asked=asked,
        measurements=tuple(measurements),
        facts=tuple(records),
        backend=backend,
        device_type=device_type,
    )
