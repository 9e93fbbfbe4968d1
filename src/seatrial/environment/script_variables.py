"""The variables by which a script knows its place, beyond those of torch's ``env://``: torchrun's, Slurm's and MPI's.

An agent inherits the environment of the launcher that started it, and hands it on to several ranks. What numbers the
agent there must not number a rank: libraries such as Lightning and ignite read it before RANK.
"""

from __future__ import annotations

from collections.abc import Mapping

CONDUCT = "SEATRIAL_CONDUCT"
"""Set: the ranks of ``launch`` under mpirun have agents, and the first of them conducts. In pods the exit code of
mpirun is all that is known otherwise, and that of Open MPI 5.0.7 is 0 although it has lost a node."""
CARRIED = "SEATRIAL_SCRIPT"
"""Path of the script that came with a pod."""
_TORCHRUN = "TORCHELASTIC_"
_SLURM_JOB = "SLURM_JOB_ID"
_MPI = (
    "HYDI_",
    "HYDRA_",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_",
    "OMPI_FILE_LOCATION",
    "OMPI_MCA_ess_",
    "OMPI_MCA_orte_",
    "OMPI_UNIVERSE_SIZE",
    "PMIX_",
    "PMI_",
)
"""Beginnings of the names by which MPI in a process finds its launcher and its rank there. Settings of users, such as
OMPI_MCA_pml, are not among them."""
_MPI_RANKS = {"OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "PMI_RANK": "PMI_SIZE", "PMIX_RANK": ""}
"""Variable with the rank in MPI -> variable with the number of ranks."""


def torchrun_variables(environ: Mapping[str, str], *, run: str, restarts: int, max_restarts: int) -> dict[str, str]:
    """Return what torchrun sets beside the variables of ``env://``, for a rank whose RANK etc. ``environ`` holds.

    TORCHELASTIC_USE_AGENT_STORE is not among them: it says that torchrun's agent keeps the store in place of rank 0.
    """
    return {
        "ROLE_RANK": environ["RANK"],
        "ROLE_WORLD_SIZE": environ["WORLD_SIZE"],
        "ROLE_NAME": "default",
        f"{_TORCHRUN}RUN_ID": run,
        f"{_TORCHRUN}RESTART_COUNT": str(restarts),
        f"{_TORCHRUN}MAX_RESTARTS": str(max_restarts),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def in_agreement(environ: Mapping[str, str], *, is_only_rank: bool) -> dict[str, str]:
    """Return ``environ`` with the variables of Slurm as RANK etc. say, and without those of launchers that contradict.

    The variables of MPI stay where the rank is the only one of its agent and they agree with RANK: the launcher then
    started this rank, whose MPI needs them. Those of an outer torchrun always go.
    """
    gone = [name for name in environ if name.startswith(_TORCHRUN)]
    if not is_only_rank or any(_contradicts(environ, rank, size) for rank, size in _MPI_RANKS.items()):
        gone += [name for name in environ if name.startswith(_MPI)]
    kept = {name: value for name, value in environ.items() if name not in gone}
    return kept | (_slurm_variables(kept) if _SLURM_JOB in kept else {})


def _contradicts(environ: Mapping[str, str], rank: str, size: str) -> bool:
    return rank in environ and (
        environ[rank] != environ["RANK"] or environ.get(size, environ["WORLD_SIZE"]) != environ["WORLD_SIZE"]
    )


def _slurm_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a task of srun, as if srun had started this rank."""
    tasks_per_node, nodes = environ["LOCAL_WORLD_SIZE"], environ["GROUP_WORLD_SIZE"]
    first = int(environ["RANK"]) - int(environ["LOCAL_RANK"])
    task = {
        "SLURM_PROCID": environ["RANK"],
        "SLURM_LOCALID": environ["LOCAL_RANK"],
        "SLURM_NODEID": environ["GROUP_RANK"],
        "SLURM_NTASKS": environ["WORLD_SIZE"],
        "SLURM_NPROCS": environ["WORLD_SIZE"],
    }
    per_node = tasks_per_node if nodes == "1" else f"{tasks_per_node}(x{nodes})"
    # Slurm sets these in some places only, and libraries take their presence as a sign.
    step = {
        "SLURM_GTIDS": ",".join(str(first + local_rank) for local_rank in range(int(tasks_per_node))),
        "SLURM_NNODES": nodes,
        "SLURM_NTASKS_PER_NODE": tasks_per_node,
        "SLURM_STEP_NUM_NODES": nodes,
        "SLURM_STEP_NUM_TASKS": environ["WORLD_SIZE"],
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_TASKS_PER_NODE": per_node,
    }
    return task | {name: value for name, value in step.items() if name in environ}
