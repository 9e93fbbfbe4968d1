"""The devices and processes of this machine for a target request. Never imports torch."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import dataclass
from pathlib import Path

from seatrial.environment.identity import Identity
from seatrial.errors import RequestError
from seatrial.probe.accelerators import count_accelerators
from seatrial.probe.cpu import usable_cores
from seatrial.probe.torch_install import TorchInstall, find_torch

_CPU_PROCESSES = 2
_MAX_CPU_PROCESSES = 512
_MPI_LAUNCHERS = ("openmpi", "hydra", "slurm")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalResources:
    """What this machine provides, as far as the request leaves it open."""

    device: str
    """``cpu``, ``cuda`` or ``rocm``."""
    backend: str
    """The requested backend, which may be ``auto``."""
    nproc_per_node: int
    """The number of ranks: the requested one, one for each accelerator, or two on the CPU."""
    because: str
    """Where the device and the number of accelerators come from, as a phrase."""
    env: dict[str, str]
    """Variables that the ranks need on this machine."""


def local_resources(
    *,
    device: str,
    backend: str,
    nproc_per_node: int | None,
    processes_by: str = "",
    python: str,
    on_one_node: bool = True,
    started: bool = False,
    sysfs: Path = Path("/sys"),
) -> LocalResources:
    """Return the device, and one process for each accelerator or two CPU processes. Raises RequestError.

    Args:
        device: ``auto``, ``cpu``, ``cuda`` or ``rocm``.
        backend: ``auto``, ``gloo``, ``nccl`` or ``mpi``.
        nproc_per_node: the number of processes that was requested; None: decide it here.
        processes_by: ``cpu``: a process for each core, unless ``nproc_per_node`` is a number.
        python: the interpreter of the ranks, whose torch decides between CUDA and ROCm.
        on_one_node: all ranks are on this machine.
        started: a launcher has started the processes, and may show each one a different device
            (``srun --gpus-per-task=1``).
        sysfs: where the kernel lists the devices.
    """
    if nproc_per_node is not None and nproc_per_node < 1:
        raise RequestError(f"--nproc-per-node {nproc_per_node}: expected at least 1.")
    torch = find_torch(python)
    decided, count, because = _device(device, torch, sysfs)
    if backend == "nccl" and decided == "cpu":
        raise RequestError("--backend nccl: NCCL moves data between GPUs only; with --device cpu use --backend gloo.")
    if processes_by == "cpu" and decided != "cpu":
        raise RequestError(
            f"--nproc-per-node cpu counts cores, and the ranks would use {decided} ({because}); add --device cpu, or"
            " give a number."
        )
    if decided == "cpu":
        processes = nproc_per_node or (usable_cores() if processes_by == "cpu" else _CPU_PROCESSES)
        if processes > _MAX_CPU_PROCESSES:
            raise RequestError(
                f"--nproc-per-node {processes}: at most {_MAX_CPU_PROCESSES} CPU processes may run on one machine;"
                f" it has {usable_cores()} cores."
            )
    else:
        processes = nproc_per_node or count
        if processes > count and not (started and count == 1):
            raise RequestError(
                f"--nproc-per-node {processes}: this machine shows {count} accelerators ({because});"
                " ask for fewer processes, or for --device cpu."
            )
    env = {}
    loopback = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
    if on_one_node and decided == "cpu" and loopback:
        # The host name may resolve to any address; with one machine loopback always works.
        env["GLOO_SOCKET_IFNAME"] = sorted(loopback)[0]
    return LocalResources(device=decided, backend=backend, nproc_per_node=processes, because=because, env=env)


def require_mpi_launcher(backend: str, identity: Identity, command: str, *, min_ranks: int) -> None:
    """Raise RequestError for ``--backend mpi`` unless MPI's launcher has started at least ``min_ranks`` ranks.

    ``command`` is the word after ``seatrial``.
    """
    if backend != "mpi":
        return
    if importlib.util.find_spec("seatrial.mpi") is None:
        raise RequestError("--backend mpi: this copy of seatrial has no MPI backend; install seatrial[mpi] here.")
    typed = f"mpirun -np 2 seatrial {command} ... --backend mpi"
    if identity.level != "rank" or identity.launcher not in _MPI_LAUNCHERS:
        starter = "no launcher" if identity.level == "none" else identity.launcher
        raise RequestError(
            f"--backend mpi: MPI's own launcher must start the ranks, and {starter} has started this one; type {typed}."
        )
    if identity.world_size is not None and identity.world_size < min_ranks:
        raise RequestError(
            f"--backend mpi: {identity.launcher} has started {identity.world_size} process, and at least {min_ranks}"
            f" are needed here; type {typed}."
        )


def _device(device: str, torch: TorchInstall, sysfs: Path) -> tuple[str, int, str]:
    built = "rocm" if torch.hip else "cuda" if torch.cuda else "cpu"
    words = "the CPU only" if built == "cpu" else built
    if device == "cpu":
        return "cpu", 0, "--device cpu"
    if device in ("cuda", "rocm") and built != device:
        raise RequestError(
            f"--device {device}: torch {torch.version} is built for {words};"
            f" install a torch built for {device}, name its interpreter with --python, or use --device {built}."
        )
    vendor = {"cuda": "nvidia", "rocm": "amd", "cpu": ""}[built]
    accelerators = count_accelerators(first=vendor or "nvidia", sysfs=sysfs)
    # A CPU trial on a GPU machine would answer PASS for devices that were never tested.
    if accelerators.problem and (device == "auto" or accelerators.count == 0):
        raise RequestError(f"--device {device}: {accelerators.problem}")
    if accelerators.count == 0:
        if device == "auto":
            return "cpu", 0, accelerators.source
        raise RequestError(f"--device {device}: {accelerators.source}; check the driver, or use --device cpu.")
    if accelerators.vendor != vendor:
        raise RequestError(
            f"this machine has {accelerators.count} {accelerators.vendor} devices ({accelerators.source}), but torch"
            f" {torch.version} is built for {words}; install a torch built for them, or use --device cpu to test"
            " the CPUs only."
        )
    return built, accelerators.count, accelerators.source
