"""The identity of this process, from its environment alone: a rank, the one process of a node, or neither.

Each launcher leaves its variables in the environment, and an inner launcher inherits those of an outer one: mpirun
inside a Slurm job, torchrun in a PyTorchJob. So the families of variables are read in an order in which the innermost
comes first. Nestings known to be harmless are passed over; any other disagreement is refused, with both sides named.
Facts and their sources: docs/environments.md.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from seatrial.environment.variables import Environ, address, below, contradiction, optional, required, shown
from seatrial.errors import RequestError

# Slurm numbers these steps from the top: the shell of salloc (LaunchParameters=use_interactive_step) and the batch
# script. The first has SLURM_PROCID=0 and SLURM_STEP_NUM_TASKS=1, and is no task.
_SLURM_SHELL_STEPS = ("4294967290", "4294967291")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The content of the environment. None: it does not say."""

    launcher: str
    """``torchrun``, ``openmpi``, ``hydra``, ``slurm``, ``env``, ``seatrial``, ``pytorchjob``, ``trainjob``,
    ``indexed-job`` or ``none``."""
    level: Literal["rank", "node", "none"]
    """``rank``: one rank. ``node``: the one process of a node, which starts its ranks. ``none``: a person's shell, or a
    launcher's."""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    nnodes: int | None = None
    nproc_per_node: int | None = None
    """Ranks that a node-level process starts; None: one per device."""
    master_addr: str | None = None
    master_port: int | None = None
    note: str = ""
    """Reason, in words, why this is neither rank nor node although some variables suggest it; empty when none do."""


def identify(environ: Environ) -> Identity:
    """Read the families in order. Raises RequestError where two disagree, or where one contradicts itself."""
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
                f"the environment gives this process two identities: {_described(*first)} and {_described(*other)};"
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


# The families. Each returns None where its launcher did not start this process.


def _seatrial(environ: Environ) -> Identity | None:
    """Read our own variables, which are in everything that seatrial renders."""
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
    """Read the variables of MPICH and Intel MPI. ``srun --mpi=pmi2`` also sets ``PMI_RANK``."""
    if "PMI_RANK" in environ and "MPI_LOCALRANKID" not in environ:
        pmi_identity = (environ["PMI_RANK"], environ.get("PMI_SIZE"))
        if pmi_identity == (environ.get("SLURM_PROCID"), environ.get("SLURM_STEP_NUM_TASKS")):
            return None
        raise RequestError(
            f"PMI_RANK={shown(environ['PMI_RANK'])} is set, but neither MPI_LOCALRANKID (MPICH, Intel MPI) nor the"
            " SLURM_PROCID of srun that would belong to it; start it with mpirun, or unset PMI_RANK."
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
    identity = _rank(
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
    if identity is None or identity.node_rank is None or "SLURM_STEP_TASKS_PER_NODE" not in environ:
        return identity
    tasks = _slurm_tasks(environ, identity.node_rank)
    below(environ, "SLURM_LOCALID", identity.local_rank, "SLURM_STEP_TASKS_PER_NODE", tasks)
    return dataclasses.replace(identity, local_world_size=tasks)


def _env_init(environ: Environ) -> Identity | None:
    """Read the variables of torch's env://, set by a person, submitit or a launcher without variables that name it."""
    return _rank(environ, "env", "RANK") if _has_env_init(environ) and not _pod_of_operator(environ) else None


def _operator(environ: Environ) -> Identity | None:
    """Read the variables of PyTorchJob (``RANK`` is the number of the pod) and TrainJob (no ``RANK``): one process per
    node."""
    if not _pod_of_operator(environ):
        return None
    least, colon, most = environ.get("PET_NNODES", "1").partition(":")
    if colon and most != least:
        raise RequestError(
            f"PET_NNODES={shown(environ['PET_NNODES'])} in the environment: only a fixed number of nodes can be"
            " accepted; leave elasticPolicy out."
        )
    for name in ("PET_NNODES", "PET_NODE_RANK"):
        if name not in environ:
            raise RequestError(
                f"other PET_ variables are set and {name} is not, so this pod does not know its node rank;"
                " give the PyTorchJob a Master and leave elasticPolicy out."
            )
    identity = _node(
        {**environ, "PET_NNODES": least},
        "pytorchjob" if "RANK" in environ else "trainjob",
        "PET_NODE_RANK",
        "PET_NODE_RANK",
        "PET_NNODES",
        None if environ.get("PET_NPROC_PER_NODE") in ("auto", "gpu", "cpu") else "PET_NPROC_PER_NODE",
        # The operator's variable has priority: the image may set MASTER_ADDR.
        prefix="PET_" if "PET_MASTER_ADDR" in environ else "",
    )
    if optional(environ, "RANK") not in (None, identity.node_rank):
        # A launcher inside the pod numbered its ranks, or the image sets RANK.
        raise contradiction(environ, "RANK", "PET_NODE_RANK")
    return identity


def _indexed_job(environ: Environ) -> Identity | None:
    """Read the variable of an Indexed Job or a JobSet, whose number of nodes is not in the environment."""
    if "JOB_COMPLETION_INDEX" not in environ:
        return None
    return _node(environ, "indexed-job", "JOB_COMPLETION_INDEX", "JOB_COMPLETION_INDEX")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    name: str
    sign: str
    """The variable by which messages name the family."""
    read: Callable[[Environ], Identity | None]
    inside: frozenset[str] = frozenset()
    """Families that this one is known to run inside: their variables belong to another process."""


_OTHERS = frozenset({"openmpi", "hydra", "slurm", "env", "operator", "indexed-job"})
# Inside a Slurm job every rank of mpirun has the SLURM_PROCID of the task, or of the shell, that started it there.
_MPI_INSIDE = frozenset({"slurm"})
_FAMILIES = (
    _Family(name="seatrial", sign="SEATRIAL_NODE_RANK", read=_seatrial, inside=_OTHERS | {"torchrun"}),
    _Family(name="torchrun", sign="TORCHELASTIC_RUN_ID", read=_torchrun, inside=_OTHERS),
    _Family(name="openmpi", sign="OMPI_COMM_WORLD_RANK", read=_openmpi, inside=_MPI_INSIDE),
    _Family(name="hydra", sign="PMI_RANK", read=_hydra, inside=_MPI_INSIDE),
    _Family(name="slurm", sign="SLURM_PROCID", read=_slurm),
    _Family(name="env", sign="RANK", read=_env_init),
    _Family(name="operator", sign="PET_NODE_RANK", read=_operator),
    _Family(name="indexed-job", sign="JOB_COMPLETION_INDEX", read=_indexed_job),
)
"""The innermost first."""


def _described(family: _Family, identity: Identity) -> str:
    number, count = (
        (identity.rank, identity.world_size) if identity.level == "rank" else (identity.node_rank, identity.nnodes)
    )
    of = "" if count is None else f" of {count}"
    return f"{identity.level} {number}{of} by {identity.launcher} ({family.sign})"


def _has_env_init(environ: Environ) -> bool:
    return all(name in environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def _pod_of_operator(environ: Environ) -> bool:
    """Return whether RANK next to PET_ variables counts pods: it does, unless LOCAL_RANK shows that ranks were started
    here."""
    if _has_env_init(environ):
        return "LOCAL_RANK" not in environ and any(name.startswith("PET_") for name in environ)
    return "PET_NODE_RANK" in environ or "PET_NNODES" in environ


def _note(environ: Environ) -> str:
    notes = []
    if "SLURM_JOB_ID" in environ:
        notes.append(f"this is a shell of Slurm job {shown(environ['SLURM_JOB_ID'])}, not a task; srun starts tasks")
    if "K_MPI_JOB_ROLE" in environ:
        notes.append(f"this is the {shown(environ['K_MPI_JOB_ROLE'])} of an MPIJob, not a rank; mpirun starts ranks")
    leftover = [name for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") if name in environ]
    if leftover:
        values = ", ".join(f"{name}={shown(environ[name])}" for name in leftover)
        missing = ", ".join(name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name not in environ)
        notes.append(f"{values} without {missing} is ignored as left over")
    return "; ".join(notes)


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
    """Return a rank from the variables with these names; None where ``sign`` is not set.

    Args:
        environ: The environment.
        launcher: Value of ``Identity.launcher``.
        sign: Variable that shows that this launcher started the process.
        rank: Variable with the rank. The other names alike; None: the launcher has no such variable.
        world_size: Number of ranks.
        local_rank: Rank on its node.
        local_world_size: Ranks on this node.
        node_rank: Number of the node.
        nnodes: Number of nodes.
    """
    if sign not in environ:
        return None
    identity = Identity(
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
    below(environ, rank, identity.rank, world_size, identity.world_size)
    below(environ, local_rank, identity.local_rank, world_size, identity.world_size)
    below(environ, local_rank, identity.local_rank, local_world_size, identity.local_world_size)
    below(environ, node_rank, identity.node_rank, nnodes, identity.nnodes)
    return identity


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
    """Return the one process of a node from the variables with these names.

    Args:
        environ: The environment.
        launcher: Value of ``Identity.launcher``.
        sign: Variable that shows that this launcher started the process.
        node_rank: Variable with the number of the node. The other names alike; None: the launcher has no such variable.
        nnodes: Number of nodes.
        nproc_per_node: Ranks to start on each node.
        prefix: Prefix of MASTER_ADDR and MASTER_PORT.
    """
    identity = Identity(
        launcher=launcher,
        level="node",
        node_rank=required(environ, node_rank, sign),
        nnodes=optional(environ, nnodes, least=1),
        nproc_per_node=optional(environ, nproc_per_node, least=1),
        master_addr=address(environ, f"{prefix}MASTER_ADDR"),
        master_port=optional(environ, f"{prefix}MASTER_PORT", least=1, most=65535),
    )
    below(environ, node_rank, identity.node_rank, nnodes, identity.nnodes)
    return identity


def _slurm_tasks(environ: Environ, node_rank: int) -> int:
    """Return the number of tasks on a node: ``2(x3),1`` is 2, 2, 2, 1. The list is never expanded: its counts may be
    huge."""
    text = environ["SLURM_STEP_TASKS_PER_NODE"]
    nodes_to_skip = node_rank
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part)
        if match is None:
            raise RequestError(
                f"SLURM_STEP_TASKS_PER_NODE={shown(text)} in the environment: expected a list such as 2(x3),1;"
                " start the ranks with srun."
            )
        nodes_to_skip -= int(match[2] or 1)
        if nodes_to_skip < 0:
            return int(match[1])
    raise contradiction(environ, "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE")
