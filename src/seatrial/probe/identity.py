"""Who this process is, by its environment alone: a rank, the one process of a node, or nobody's.

Each launcher leaves its own words in the environment, and a later one finds those of an earlier one still standing:
mpirun inside a Slurm job, torchrun in a PyTorchJob. So the families are asked in an order in which the innermost comes
first; nestings that are known to be harmless are passed over, and any other disagreement is refused, both sides told.
Facts and their sources: docs/environments.md.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from seatrial.errors import RequestError
from seatrial.probe.variables import Environ, address, below, contradiction, optional, required, shown

__all__ = ["Identity", "identify"]

# Slurm numbers these steps from the top: the shell of salloc (LaunchParameters=use_interactive_step) and the batch
# script. The first has SLURM_PROCID=0 and SLURM_STEP_NUM_TASKS=1, and is no task.
_SLURM_SHELL_STEPS = ("4294967290", "4294967291")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the environment says. None: it does not say."""

    launcher: str
    """``torchrun``, ``openmpi``, ``hydra``, ``slurm``, ``env``, ``seatrial``, ``pytorchjob``, ``trainjob``,
    ``indexed-job`` or ``none``."""
    level: Literal["rank", "node", "none"]
    """``node``: one process that is to start the ranks of its node. ``none``: a person's shell, or a launcher's."""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    nnodes: int | None = None
    nproc_per_node: int | None = None
    """Of a node-level process; None: one for each device."""
    master_addr: str | None = None
    master_port: int | None = None
    note: str = ""
    """Why this is nobody's process although something looks like it, in words; empty when nothing does."""


def identify(environ: Environ) -> Identity:
    """Ask the families in order. Raises RequestError where two disagree, or where one contradicts itself."""
    answers: list[tuple[_Family, Identity]] = []
    for family in _FAMILIES:
        if answers and family.name in answers[0][0].inside:
            continue
        identity = family.read(environ)
        if identity is not None:
            answers.append((family, identity))
    if not answers:
        return Identity(launcher="none", level="none", note=_note(environ))
    first = answers[0]
    for other in answers[1:]:
        if not _agree(first[1], other[1]):
            raise RequestError(
                f"the environment names two places for this process: {_place(*first)} and {_place(*other)};"
                " unset the variables of the one that did not start it."
            )
    return first[1]


def _agree(first: Identity, other: Identity) -> bool:
    if first.level == other.level:
        return all(
            one is None or another is None or one == another
            for one, another in (
                (first.rank, other.rank),
                (first.world_size, other.world_size),
                (first.node_rank, other.node_rank),
                (first.nnodes, other.nnodes),
            )
        )
    # Ranks in the pods of an Indexed Job; each pod has at least one, so its number is below theirs.
    return (
        other.launcher == "indexed-job"
        and other.node_rank is not None
        and first.world_size is not None
        and other.node_rank < first.world_size
    )


# The families. Each answers None where it did not start this process.


def _seatrial(environ: Environ) -> Identity | None:
    """Our own marker, in everything that we render."""
    names = ("SEATRIAL_NODE_RANK", "SEATRIAL_NNODES", "SEATRIAL_NPROC_PER_NODE")
    sign = next((name for name in names if name in environ), None)
    return None if sign is None else _node(environ, "seatrial", sign, *names)


def _torchrun(environ: Environ) -> Identity | None:
    return _rank(environ, "torchrun", "TORCHELASTIC_RUN_ID", node_rank="GROUP_RANK", nnodes="GROUP_WORLD_SIZE")


def _openmpi(environ: Environ) -> Identity | None:
    # OMPI_COMM_WORLD_NODE_RANK is the local rank over all jobs, not the number of the node.
    return _rank(
        environ,
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        rank="OMPI_COMM_WORLD_RANK",
        world_size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    )


def _hydra(environ: Environ) -> Identity | None:
    """MPICH and Intel MPI. ``PMI_RANK`` alone is also what ``srun --mpi=pmi2`` sets."""
    if "PMI_RANK" in environ and "MPI_LOCALRANKID" not in environ:
        mine = (environ["PMI_RANK"], environ.get("PMI_SIZE"))
        if mine == (environ.get("SLURM_PROCID"), environ.get("SLURM_STEP_NUM_TASKS")):
            return None
        raise RequestError(
            f"PMI_RANK={shown(environ['PMI_RANK'])} is set, but neither MPI_LOCALRANKID (MPICH, Intel MPI) nor the"
            " SLURM_PROCID of srun that would go with it; start it with mpirun, or unset PMI_RANK."
        )
    return _rank(
        environ,
        "hydra",
        "PMI_RANK",
        rank="PMI_RANK",
        world_size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_world_size="MPI_LOCALNRANKS",
    )


def _slurm(environ: Environ) -> Identity | None:
    # A batch shell has SLURM_PROCID=0 too and is no rank: only a step has SLURM_STEP_ID.
    if "SLURM_PROCID" not in environ or environ.get("SLURM_STEP_ID") in (None, *_SLURM_SHELL_STEPS):
        return None
    found = _rank(
        environ,
        "slurm",
        "SLURM_PROCID",
        rank="SLURM_PROCID",
        world_size="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        local_world_size=None,
        node_rank="SLURM_NODEID",
        nnodes="SLURM_STEP_NUM_NODES",
    )
    if found is None or found.node_rank is None or "SLURM_STEP_TASKS_PER_NODE" not in environ:
        return found
    tasks = _slurm_tasks(environ, found.node_rank)
    below(environ, "SLURM_LOCALID", found.local_rank, "SLURM_STEP_TASKS_PER_NODE", tasks)
    return dataclasses.replace(found, local_world_size=tasks)


def _env(environ: Environ) -> Identity | None:
    """What torch calls env://, set by a person, submitit or a launcher that leaves no name of its own."""
    return _rank(environ, "env", "RANK") if _whole(environ) and not _pod_of_operator(environ) else None


def _operator(environ: Environ) -> Identity | None:
    """PyTorchJob (``RANK`` is the number of the pod) and TrainJob (no ``RANK``): one process a node."""
    if not _pod_of_operator(environ):
        return None
    least, colon, most = environ.get("PET_NNODES", "1").partition(":")
    if colon and most != least:
        raise RequestError(
            f"PET_NNODES={shown(environ['PET_NNODES'])} in the environment: only a fixed number of nodes can be"
            " accepted; set minReplicas equal to maxReplicas, or leave elasticPolicy out."
        )
    for name in ("PET_NNODES", "PET_NODE_RANK"):
        if name not in environ:
            raise RequestError(
                f"other PET_ variables are set and {name} is not, so this pod does not know its place;"
                " give the PyTorchJob a Master, or start the ranks with torchrun."
            )
    found = _node(
        {**environ, "PET_NNODES": least},
        "pytorchjob" if "RANK" in environ else "trainjob",
        "PET_NODE_RANK",
        "PET_NODE_RANK",
        "PET_NNODES",
        None if environ.get("PET_NPROC_PER_NODE") in ("auto", "gpu", "cpu") else "PET_NPROC_PER_NODE",
        # The operator's own word comes first: MASTER_ADDR may be one that the image brings along.
        prefix="PET_" if "PET_MASTER_ADDR" in environ else "",
    )
    if optional(environ, "RANK") not in (None, found.node_rank):
        # Somebody's own launcher inside the pod numbered its ranks, or an image brings a RANK along.
        raise contradiction(environ, "RANK", "PET_NODE_RANK")
    return found


def _indexed_job(environ: Environ) -> Identity | None:
    """An Indexed Job or a JobSet: the number of nodes is nowhere in the environment."""
    if "JOB_COMPLETION_INDEX" not in environ:
        return None
    return _node(environ, "indexed-job", "JOB_COMPLETION_INDEX", "JOB_COMPLETION_INDEX")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    name: str
    sign: str
    """The variable that tells a reader of a message which one is meant."""
    read: Callable[[Environ], Identity | None]
    inside: frozenset[str] = frozenset()
    """Families that this one is known to run inside of: whatever they say is about somebody else."""


_OTHERS = frozenset({"openmpi", "hydra", "slurm", "env", "operator", "indexed-job"})
# Inside a Slurm job every rank of mpirun has the SLURM_PROCID of the task, or of the shell, that started it there.
_MPI_INSIDE = frozenset({"slurm"})
_FAMILIES = (
    _Family(name="seatrial", sign="SEATRIAL_NODE_RANK", read=_seatrial, inside=_OTHERS | {"torchrun"}),
    _Family(name="torchrun", sign="TORCHELASTIC_RUN_ID", read=_torchrun, inside=_OTHERS),
    _Family(name="openmpi", sign="OMPI_COMM_WORLD_RANK", read=_openmpi, inside=_MPI_INSIDE),
    _Family(name="hydra", sign="PMI_RANK", read=_hydra, inside=_MPI_INSIDE),
    _Family(name="slurm", sign="SLURM_PROCID", read=_slurm),
    _Family(name="env", sign="RANK", read=_env),
    _Family(name="operator", sign="PET_NODE_RANK", read=_operator),
    _Family(name="indexed-job", sign="JOB_COMPLETION_INDEX", read=_indexed_job),
)
"""The innermost first."""


def _place(family: _Family, identity: Identity) -> str:
    number, count = (
        (identity.rank, identity.world_size) if identity.level == "rank" else (identity.node_rank, identity.nnodes)
    )
    of = "" if count is None else f" of {count}"
    return f"{identity.level} {number}{of} by {identity.launcher} ({family.sign})"


def _whole(environ: Environ) -> bool:
    return all(name in environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def _pod_of_operator(environ: Environ) -> bool:
    """RANK beside PET_ variables counts pods, not ranks, unless LOCAL_RANK says that somebody started ranks here."""
    if _whole(environ):
        return "LOCAL_RANK" not in environ and any(name.startswith("PET_") for name in environ)
    return "PET_NODE_RANK" in environ or "PET_NNODES" in environ


def _note(environ: Environ) -> str:
    said = []
    if "SLURM_JOB_ID" in environ:
        said.append(f"this is a shell of Slurm job {shown(environ['SLURM_JOB_ID'])}, not a task; srun starts tasks")
    if "K_MPI_JOB_ROLE" in environ:
        said.append(f"this is the {shown(environ['K_MPI_JOB_ROLE'])} of an MPIJob, not a rank; mpirun starts ranks")
    left = [name for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") if name in environ]
    if left:
        told = ", ".join(f"{name}={shown(environ[name])}" for name in left)
        missing = ", ".join(name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name not in environ)
        said.append(f"{told} without {missing} is passed over as left behind")
    return "; ".join(said)


# Reading variables.


def _rank(
    environ: Environ,
    launcher: str,
    sign: str,
    *,
    rank: str = "RANK",
    world_size: str = "WORLD_SIZE",
    local_rank: str = "LOCAL_RANK",
    local_world_size: str | None = "LOCAL_WORLD_SIZE",
    node_rank: str | None = None,
    nnodes: str | None = None,
) -> Identity | None:
    """A rank out of the variables of these names; None where ``sign`` is not set."""
    if sign not in environ:
        return None
    found = Identity(
        launcher=launcher,
        level="rank",
        rank=required(environ, rank, sign),
        world_size=required(environ, world_size, sign, least=1),
        local_rank=optional(environ, local_rank),
        local_world_size=optional(environ, local_world_size, least=1),
        node_rank=optional(environ, node_rank),
        nnodes=optional(environ, nnodes, least=1),
        master_addr=address(environ, "MASTER_ADDR"),
        master_port=optional(environ, "MASTER_PORT", least=1, most=65535),
    )
    below(environ, rank, found.rank, world_size, found.world_size)
    below(environ, local_rank, found.local_rank, world_size, found.world_size)
    below(environ, local_rank, found.local_rank, local_world_size, found.local_world_size)
    below(environ, node_rank, found.node_rank, nnodes, found.nnodes)
    return found


def _node(
    environ: Environ,
    launcher: str,
    sign: str,
    node_rank: str,
    nnodes: str | None = None,
    nproc_per_node: str | None = None,
    *,
    prefix: str = "",
) -> Identity:
    """The one process of a node out of the variables of these names; ``prefix``: of those of the master."""
    found = Identity(
        launcher=launcher,
        level="node",
        node_rank=required(environ, node_rank, sign),
        nnodes=optional(environ, nnodes, least=1),
        nproc_per_node=optional(environ, nproc_per_node, least=1),
        master_addr=address(environ, f"{prefix}MASTER_ADDR"),
        master_port=optional(environ, f"{prefix}MASTER_PORT", least=1, most=65535),
    )
    below(environ, node_rank, found.node_rank, nnodes, found.nnodes)
    return found


def _slurm_tasks(environ: Environ, node_rank: int) -> int:
    """How many tasks a node has: ``2(x3),1`` is 2, 2, 2, 1. The counts are never unfolded: they may be any size."""
    text = environ["SLURM_STEP_TASKS_PER_NODE"]
    left = node_rank
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part)
        if match is None:
            raise RequestError(
                f"SLURM_STEP_TASKS_PER_NODE={shown(text)} in the environment: a list such as 2(x3),1 is expected;"
                " start the ranks with srun."
            )
        left -= int(match[2] or 1)
        if left < 0:
            return int(match[1])
    raise contradiction(environ, "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE")
