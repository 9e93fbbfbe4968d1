"""NCCL's name on Gloo's groups. As unkind as NCCL: tensors of the CPU and two ranks on one device are refused."""

from __future__ import annotations

import functools
import os
import platform
from typing import Any

from cuda_double.driver import Driver

_WITH_TENSORS = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv"),
)


def install_nccl(torch: Any, driver: Driver) -> None:
    """Let ``torch.distributed`` accept the backend ``nccl``."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    real_init, real_new, real_backend = dist.init_process_group, dist.new_group, dist.get_backend
    nccl_groups = set[int]()
    """Identities of the groups that were asked for as NCCL's."""

    def init_process_group(backend: str | None = None, *args: Any, **settings: Any) -> None:
        is_nccl = backend in (None, "nccl")
        settings.pop("device_id", None)
        real_init("gloo" if is_nccl else backend, *args, **settings)
        if is_nccl:
            world: Any = dist.group.WORLD
            nccl_groups.add(id(world))
            try:
                _refuse_shared_device(dist, driver)
            except dist.DistBackendError:
                dist.destroy_process_group()  # NCCL refuses while torch makes the group, so there is none
                raise

    def new_group(ranks: Any = None, timeout: Any = None, backend: str | None = None, **settings: Any) -> Any:
        is_nccl = backend == "nccl" or (backend is None and id(dist.group.WORLD) in nccl_groups)
        settings.pop("device_id", None)
        group = real_new(ranks, timeout, "gloo" if is_nccl else backend, **settings)
        if is_nccl:
            nccl_groups.add(id(group))
        return group

    def get_backend(group: Any = None) -> str:
        known = real_backend(group)
        return "nccl" if id(group or dist.group.WORLD) in nccl_groups else str(known)

    for name in _WITH_TENSORS:
        real = getattr(dist, name)
        double = _refusing_cpu(real, nccl_groups, dist)
        setattr(dist, name, double)
        setattr(dist.distributed_c10d, name, double)
    for double in (init_process_group, new_group, get_backend):
        setattr(dist, double.__name__, double)
        setattr(dist.distributed_c10d, double.__name__, double)
    dist.is_nccl_available = lambda: True


def _refusing_cpu(real: Any, nccl_groups: set[int], dist: Any) -> Any:
    from cuda_double.tensors import CPU, place, tensors_in

    @functools.wraps(real)
    def call(*args: Any, **settings: Any) -> Any:
        group = settings.get("group") or next((one for one in args if isinstance(one, dist.ProcessGroup)), None)
        if id(group or dist.group.WORLD) in nccl_groups and any(
            place(tensor) == CPU for tensor in tensors_in([args, settings])
        ):
            # torch/csrc/distributed/c10d/ProcessGroup.hpp, getBackend
            raise RuntimeError("No backend type associated with device type cpu")
        return real(*args, **settings)

    return call


def _refuse_shared_device(dist: Any, driver: Driver) -> None:
    """Raise as NCCL does where two ranks of a group have one device (src/init.cc: Duplicate GPU detected).

    To NCCL a host is what NCCL_HOSTID says, where it is set (src/misc/utils.cc: getHostHash).
    """
    own = f"{os.environ.get('NCCL_HOSTID') or platform.node()} {driver.numbers[driver.current]}"
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    store.set(f"double/{rank}", own)
    for other in range(dist.get_world_size()):
        if other != rank and store.get(f"double/{other}").decode() == own:
            raise dist.DistBackendError(
                "NCCL error in: ProcessGroupNCCL.cpp, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL"
                " version 2.28.9\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
                f"Last error:\nDuplicate GPU detected : rank {rank} and rank {other} both on CUDA device {os.getpid()}"
            )
