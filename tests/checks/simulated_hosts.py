"""Fleets that never were: what the ranks of healthy nodes tell to ``inventory`` and ``host``, to be bent by tests."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from seatrial.verdict.evidence import Evidence, RankSeen
from seatrial.verdict.figures import Fact, Figure

__all__ = ["FIGURES", "H200", "host_fleet", "inventory_fleet", "rank_of"]

H200 = "NVIDIA H200"
FIGURES = {"shm_free": "GB", "memory_available": "GB", "open_files": "1", "device_memory_used": "GB"}
Bend = Callable[[int, int, dict[str, Any]], None]
"""(node, local rank, what it tells): changes it in place."""


def rank_of(node: int, local_rank: int = 0, per_node: int = 8) -> int:
    return node * per_node + local_rank


def _seen(nodes: int, per_node: int, *, agent_per_rank: bool, device: str) -> dict[int, RankSeen]:
    return {
        rank: RankSeen(
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
    silent: Collection[int] = (),
    device_type: str = "cuda",
    agent_per_rank: bool = False,
) -> Evidence:
    """``dead``: ranks that told nothing and did not finish; ``silent``: that finished and told nothing."""
    facts = []
    seen = _seen(nodes, per_node, agent_per_rank=agent_per_rank, device=H200)
    for rank in seen:
        node, local_rank = divmod(rank, per_node)
        told: dict[str, Any] = {
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
            bend(node, local_rank, told)
        if rank not in dead and rank not in silent:
            facts.append(Fact(check="inventory", name="inventory", value=told, rank=rank))
    asked = tuple(rank for rank in seen if rank not in dead)
    return Evidence(ranks=seen, asked=asked, figures=(), facts=tuple(facts), backend="nccl", device_type=device_type)


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
    """What ``bend`` sees holds the facts of the node and of the rank's place, and the figures by name."""
    facts, figures = [], []
    seen = _seen(nodes, per_node, agent_per_rank=agent_per_rank, device=H200)
    for rank in seen:
        node, local_rank = divmod(rank, per_node)
        told: dict[str, Any] = {
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
            "interface": "eth0",
            "mtu": 9000,
            "chosen": {},
            "place": {
                "machine": f"n{node} boot-{node} 4026531840 25",
                "network": f"boot-{node} 4026531840",
                "affinity": "0-191",
                "device_used_known": device_type != "cpu",
            },
            "figures": {"shm_free": 1000.0, "memory_available": 1000.0, "open_files": 1048576.0},
        }
        if device_type != "cpu":
            told["figures"]["device_memory_used"] = 0.6
        if bend is not None:
            bend(node, local_rank, told)
        place, measured = told.pop("place"), told.pop("figures")
        if rank in dead:
            continue
        facts.append(Fact(check="host", name="place", value=place, rank=rank))
        if local_rank == 0:
            facts.append(Fact(check="host", name="host", value=told, rank=rank))
        for name, value in measured.items():
            if value is not None and (local_rank == 0 or name == "device_memory_used"):
                figures.append(Figure(check="host", name=name, value=value, unit=FIGURES[name], rank=rank))
    asked = tuple(rank for rank in seen if rank not in dead)
    return Evidence(
        ranks=seen, asked=asked, figures=tuple(figures), facts=tuple(facts), backend=backend, device_type=device_type
    )
