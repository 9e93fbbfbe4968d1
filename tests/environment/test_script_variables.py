"""What a script finds in its environment when its agent was itself started by a launcher."""

from __future__ import annotations

from typing import Any

import pytest
from environment.recorded_environments import (
    HYDRA,
    MPICH,
    OPENMPI_4,
    OPENMPI_5,
    SALLOC,
    SALLOC_STEP,
    SBATCH,
    SRUN_0,
    SRUN_1,
    TORCHRUN,
    Environ,
    of,
)

from seatrial.agent.program_ranks import environ_of
from seatrial.environment.identity import identify
from seatrial.protocol.commands import StartProgram

PLACES = {"fourth of 2 x 2": (3, 1, 2, 1, 2), "second of 1 x 2": (1, 1, 2, 0, 1), "third of 3 x 1": (2, 0, 1, 2, 3)}
"""rank, local rank, ranks of the node, node, nodes."""


def script_environ(environ: Environ, place: tuple[int, ...] = PLACES["fourth of 2 x 2"], **changes: Any) -> Environ:
    """What the agent of a node with this environment gives to a script.

    An agent that has one of several ranks of a node was started for it by mpirun.
    """
    ranks = changes.pop("ranks", place[2])
    rank, local_rank, local_world_size, group_rank, nnodes = place
    program = {"watched": False, "world_size": local_world_size * nnodes, "nnodes": nnodes, "group_rank": group_rank}
    meeting = {"master_addr": "10.0.0.1", "master_port": 5000, "spawns": 0, "max_restarts": 3}
    env = changes.pop("env", {})
    start: Any = {
        "run": "20261122-1",
        "gen": 2,
        "env": env,
        "places": [[0, 0]] * ranks,
        "program": {**program, **meeting, **changes},
    }
    whole: StartProgram = start
    return environ_of({**environ, **env}, whole, rank=rank, local_rank=local_rank, local_world_size=local_world_size)


def test_all_that_torchrun_sets_is_set_but_the_store_of_its_agent() -> None:
    # Those two name a file and signals of torchrun's agent, which `@record` does without.
    own = {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
    seen = script_environ(of("OMP_NUM_THREADS=1"))
    assert seen.keys() == TORCHRUN.keys() - own
    changed = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}
    changed |= {"TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"}
    assert {name for name in seen if seen[name] != TORCHRUN[name]} == changed
    assert (seen["TORCHELASTIC_RESTART_COUNT"], seen["TORCHELASTIC_MAX_RESTARTS"]) == ("2", "3")


def test_torchrun_s_variables_of_an_outer_job_are_gone() -> None:
    outer = of("TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_ERROR_FILE=/x TORCHELASTIC_RUN_ID=outer ROLE_RANK=0")
    seen = script_environ(outer)
    assert seen["TORCHELASTIC_RUN_ID"] == "20261122-1"
    assert seen["ROLE_RANK"] == "3"
    assert not {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"} & seen.keys()


def test_what_the_user_sets_for_the_script_wins() -> None:
    asked = {"ROLE_NAME": "trainer", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "TORCHELASTIC_RUN_ID": "mine", "RANK": "9"}
    seen = script_environ(SRUN_1, env=asked)
    assert {name: seen[name] for name in asked} == {**asked, "RANK": "3"}
    assert script_environ(of("TORCH_NCCL_ASYNC_ERROR_HANDLING=0"))["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def test_a_program_that_starts_its_ranks_itself_is_no_rank_of_torchrun() -> None:
    seen = script_environ(TORCHRUN, PLACES["third of 3 x 1"], spawns=4)
    assert not [name for name in seen if name.startswith("TORCHELASTIC_")]
    assert identify(seen).launcher == "env"


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize(
    "agent",
    [SRUN_0, SRUN_1, SBATCH, SALLOC, SALLOC_STEP, SRUN_1 | of("PMI_RANK=1 PMI_SIZE=2 PMI_JOBID=1.0")],
    ids=["srun, rank 0", "srun, rank 1", "sbatch", "salloc", "salloc step", "srun --mpi=pmi2"],
)
def test_slurm_numbers_a_rank_as_rank_does(agent: Environ, place: tuple[int, ...]) -> None:
    rank, local_rank, local_world_size, group_rank, nnodes = place
    seen = script_environ(agent, place)
    assert (seen["SLURM_PROCID"], seen["SLURM_LOCALID"]) == (str(rank), str(local_rank))
    assert {seen["SLURM_NTASKS"], seen["SLURM_NPROCS"]} == {str(local_world_size * nnodes)}
    assert seen["SLURM_NODEID"] == str(group_rank)
    assert seen["SLURM_JOB_NODELIST"] == agent["SLURM_JOB_NODELIST"]
    assert "PMI_RANK" not in seen
    # Without torchrun's variables the same rank is read from Slurm's.
    assert (identify(seen).launcher, identify(seen).rank) == ("torchrun", rank)
    bare = {name: value for name, value in seen.items() if not name.startswith(("TORCHELASTIC_", "MASTER_", "RANK"))}
    identity = identify(bare)
    if "SLURM_STEP_ID" in agent and agent is not SALLOC_STEP:
        assert (identity.launcher, identity.rank, identity.world_size) == ("slurm", rank, local_world_size * nnodes)
        assert (identity.local_rank, identity.local_world_size) == (local_rank, local_world_size)
        assert (identity.node_rank, identity.nnodes) == (group_rank, nnodes)


@pytest.mark.parametrize("mpi", [OPENMPI_4, OPENMPI_5, MPICH], ids=["Open MPI 4", "Open MPI 5", "MPICH"])
def test_mpi_keeps_the_variables_of_its_own_ranks_only(mpi: Environ) -> None:
    """With --on mpirun each rank has an agent that mpirun started, also in a job of Slurm."""
    settings = of("OMPI_MCA_pml=ob1 OMPI_MCA_btl=^openib")
    seen = script_environ(SRUN_0 | mpi | settings, ranks=1)
    assert {name: seen.get(name) for name in mpi} == mpi
    assert (seen["SLURM_PROCID"], seen["SLURM_NTASKS"]) == ("3", "4")
    seen = script_environ(mpi | settings)
    kept = {"OMPI_VERSION", "OMPI_TOOL_NAME", "OMPI_MCA_ess", "PRTE_LAUNCHED"}
    assert (mpi.keys() & seen.keys()) <= kept
    assert {name: seen[name] for name in settings} == settings


def test_a_shell_of_srun_is_no_rank_of_two() -> None:
    """``srun --mpi=pmi2 --pty bash`` is rank 0 of 1; two ranks started there are not."""
    shell = of("PMI_RANK=0 PMI_SIZE=1 PMI_FD=5")
    assert not script_environ(shell, (0, 0, 2, 0, 1)).keys() & HYDRA.keys()
    assert script_environ(shell, (0, 0, 1, 0, 1))["PMI_FD"] == "5"
