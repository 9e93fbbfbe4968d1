"""The options of every command that starts ranks: where they run, and on what."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.request.comm_profiles import PROFILES
from seatrial.targets.option import Option, process_count
from seatrial.targets.registry import TARGETS

TARGET_OPTIONS = (
    Option(flags=("--on",), name="target", help="Where to run. Default: local.", default="local", metavar="TARGET"),
    Option(
        flags=("--nproc-per-node",),
        name="nproc_per_node",
        help="Processes on each node: a number; gpu, cpu: one for each accelerator, core; auto (default): as gpu, or 2"
        " without accelerators.",
        type=process_count,
        metavar="M",
    ),
    Option(
        flags=("--device",),
        name="device",
        help="auto (accelerators, else the CPU), cuda, rocm or cpu.",
        type=("auto", "cuda", "rocm", "cpu"),
        default="auto",
        metavar="DEVICE",
    ),
    Option(
        flags=("--backend",),
        name="backend",
        help="auto (NCCL on GPUs, Gloo on CPUs), nccl, gloo or mpi.",
        type=("auto", "nccl", "gloo", "mpi"),
        default="auto",
        metavar="BACKEND",
    ),
    Option(
        flags=("--python",),
        name="python",
        help="Python of the ranks. Default: the one that runs seatrial; on ssh hosts python3 of a login shell.",
        metavar="PATH",
    ),
    Option(
        flags=("--env",),
        name="env",
        help="Environment variable of the ranks; repeatable.",
        metavar="NAME=VALUE",
        multiple=True,
    ),
    Option(
        flags=("--comm-profile",),
        name="comm_profile",
        help="Set the variables of NCCL, MPI and their transports for this kind of network.",
        type=tuple(PROFILES),
        rare=True,
    ),
    Option(
        flags=("--comm-debug",),
        name="comm_debug",
        help="Turn on debug logging of NCCL and PyTorch (NCCL_DEBUG=INFO, TORCH_DISTRIBUTED_DEBUG=INFO).",
        flag=True,
        rare=True,
    ),
    Option(flags=("--dry-run",), name="dry_run", help="Print what would be executed, and start nothing.", flag=True),
)
"""The options that all targets take; a target adds those in ``Target.options``."""


UNPROTECTED = Option(
    flags=("--unprotected",),
    name="unprotected",
    help="Under torchrun, mpirun or srun over several machines: run without a secret (docs/environments.md).",
    flag=True,
    rare=True,
    only_typed=True,
)
"""The option of the commands whose processes meet by the environment of another launcher."""


def options_of_targets() -> Mapping[str, tuple[Option, ...]]:
    """Return the options of the targets, under one heading for each set of targets that takes them."""
    takers: dict[Option, list[str]] = {}
    for target in TARGETS.values():
        for option in target.options:
            takers.setdefault(option, []).append(target.name)
    groups: dict[str, tuple[Option, ...]] = {}
    for option, names in takers.items():
        heading = f"With --on {', '.join(names)}"
        groups[heading] = (*groups.get(heading, ()), option)
    return groups
