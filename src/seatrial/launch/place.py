"""From where-options to facts: which device, how many processes, which Python. Never imports torch."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import dataclass
from pathlib import Path

from seatrial.errors import RequestError
from seatrial.probe.accelerators import count_accelerators
from seatrial.probe.cpu import usable_cores
from seatrial.probe.identity import Identity
from seatrial.probe.torch_install import TorchInstall, find_torch

__all__ = ["Place", "choose", "see_that_mpi_started"]

_CPU_PROCESSES = 2
_MOST_CPU_PROCESSES = 512
_MPI_LAUNCHERS = ("openmpi", "hydra", "slurm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The decisions, and in a few words why."""

    device: str
    backend: str
    nproc_per_node: int
    because: str
    env: dict[str, str]


def choose(
    *,
    device: str,
    backend: str,
    nproc_per_node: int | None,
    python: str,
    alone: bool = True,
    started: bool = False,
    sysfs: Path = Path("/sys"),
) -> Place:
    """Decide for this machine: one process per accelerator, else two CPU processes. Raises RequestError.

    ``alone``: all ranks are on this machine. ``started``: a launcher has started the processes, and may show each of
    them a device of its own (``srun --gpus-per-task=1``).
    """
    if nproc_per_node is not None and nproc_per_node < 1:
        raise RequestError(f"--nproc-per-node {nproc_per_node}: at least one process is needed.")
    torch = find_torch(python)
    decided, count, because = _device(device, torch, sysfs)
    if backend == "nccl" and decided == "cpu":
        raise RequestError("--backend nccl: NCCL moves data between GPUs only; with --device cpu use --backend gloo.")
    if decided == "cpu":
        wanted = nproc_per_node or _CPU_PROCESSES
        if wanted > _MOST_CPU_PROCESSES:
            raise RequestError(
                f"--nproc-per-node {wanted}: more than {_MOST_CPU_PROCESSES} CPU processes on one machine are refused;"
                f" it has {usable_cores()} cores."
            )
    else:
        wanted = nproc_per_node or count
        if wanted > count and not (started and count == 1):
            raise RequestError(
                f"--nproc-per-node {wanted}: this machine shows {count} accelerators ({because});"
                " ask for fewer processes, or for --device cpu."
            )
    env = {}
    loopback = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
    if alone and decided == "cpu" and loopback:
        # One machine only: the address that its own name resolves to may be anything, loopback always answers.
        env["GLOO_SOCKET_IFNAME"] = sorted(loopback)[0]
    return Place(device=decided, backend=backend, nproc_per_node=wanted, because=because, env=env)


def see_that_mpi_started(backend: str, identity: Identity, command: str, *, least: int) -> None:
    """Raises RequestError for ``--backend mpi`` where MPI's launcher has not started at least so many ranks.

    ``command``: the word after ``seatrial``.
    """
    if backend != "mpi":
        return
    if importlib.util.find_spec("seatrial.mpi") is None:
        raise RequestError("--backend mpi: the file that travels is built without it; install seatrial[mpi] here.")
    typed = f"mpirun -np 2 seatrial {command} ... --backend mpi"
    if identity.level != "rank" or identity.launcher not in _MPI_LAUNCHERS:
        who = "nobody" if identity.level == "none" else identity.launcher
        raise RequestError(
            f"--backend mpi: MPI's own launcher must start the ranks, and {who} has started this one; type {typed}."
        )
    if identity.world_size is not None and identity.world_size < least:
        raise RequestError(
            f"--backend mpi: {identity.launcher} has started {identity.world_size} process, and at least {least} are"
            f" needed here; type {typed}."
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
    found = count_accelerators(first=vendor or "nvidia", sysfs=sysfs)
    # A CPU trial on a GPU machine would say PASS of devices that nobody looked at.
    if found.problem and (device == "auto" or found.count == 0):
        raise RequestError(f"--device {device}: {found.problem}")
    if found.count == 0:
        if device == "auto":
            return "cpu", 0, found.source
        raise RequestError(f"--device {device}: {found.source}; check the driver, or use --device cpu.")
    if found.vendor != vendor:
        raise RequestError(
            f"this machine has {found.count} {found.vendor} devices ({found.source}), but torch {torch.version} is"
            f" built for {words}; install a torch built for them, or say --device cpu to try the CPUs alone."
        )
    return built, found.count, found.source
