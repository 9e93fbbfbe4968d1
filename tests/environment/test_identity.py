"""The identity of a process: one test per recorded environment, and everything else that an environment may contain."""

from __future__ import annotations

import re

import pytest
from environment.recorded_environments import (
    ELASTIC,
    INDEXED,
    MARKER,
    MASTER,
    MPICH,
    OPENMPI_4,
    OPENMPI_5,
    PLACES,
    PYTORCHJOB,
    SALLOC,
    SALLOC_STEP,
    SBATCH,
    SRUN_1,
    TORCHRUN,
    TRAINJOB,
    Environ,
    a_rank,
    of,
    without,
)
from hypothesis import example, given
from hypothesis import strategies as st

from seatrial.environment.identity import Identity, identify
from seatrial.errors import RequestError


@pytest.mark.parametrize(("environ", "expected"), PLACES.values(), ids=PLACES)
def test_a_recorded_environment(environ: Environ, expected: Identity) -> None:
    assert identify(environ) == expected


IN_SLURM_SHELL = "this is a shell of Slurm job 1, not a task; srun starts tasks"
OF_MPIJOB = "of an MPIJob, not a rank; mpirun starts ranks"
LEFT = "is ignored as left over"
SHELLS: dict[str, tuple[Environ, str]] = {
    "batch shell": (SBATCH, IN_SLURM_SHELL),
    "salloc shell": (SALLOC, IN_SLURM_SHELL),
    "salloc shell that is a step": (SALLOC_STEP, IN_SLURM_SHELL),
    "MPIJob launcher": (
        of("K_MPI_JOB_ROLE=launcher OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile NVIDIA_VISIBLE_DEVICES="),
        f"this is the launcher {OF_MPIJOB}",
    ),
    "MPIJob worker": (of("K_MPI_JOB_ROLE=worker"), f"this is the worker {OF_MPIJOB}"),
    "RANK alone": (of("RANK=3"), f"RANK=3 without WORLD_SIZE, MASTER_ADDR {LEFT}"),
    "no MASTER_ADDR": (of("RANK=3 WORLD_SIZE=8"), f"RANK=3, WORLD_SIZE=8 without MASTER_ADDR {LEFT}"),
    "LOCAL_RANK alone": (of("LOCAL_RANK=0"), f"LOCAL_RANK=0 without RANK, WORLD_SIZE, MASTER_ADDR {LEFT}"),
    "a raw value": ({"RANK": "\x1b[2J\n"}, rf"RANK='\x1b[2J\n' without WORLD_SIZE, MASTER_ADDR {LEFT}"),
    "two of them": (SALLOC | of("RANK=0"), f"{IN_SLURM_SHELL}; RANK=0 without WORLD_SIZE, MASTER_ADDR {LEFT}"),
}


@pytest.mark.parametrize(("environ", "note"), SHELLS.values(), ids=SHELLS)
def test_variables_that_only_look_like_a_rank_are_noted(environ: Environ, note: str) -> None:
    assert identify(environ) == Identity(launcher="none", level="none", note=note)


ENV_3_OF_8 = MASTER | of("RANK=3 WORLD_SIZE=8")
BY_ENV = "rank 3 of 8 by env (RANK)"
BY_OPENMPI = "rank 3 of 4 by openmpi (OMPI_COMM_WORLD_RANK)"
BY_SLURM = "rank 1 of 2 by slurm (SLURM_PROCID)"
DISAGREEMENTS: dict[str, tuple[Environ, str, str]] = {
    "env:// left over under mpirun": (
        OPENMPI_4 | of("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2") | ENV_3_OF_8,
        "rank 0 of 2 by openmpi (OMPI_COMM_WORLD_RANK)",
        BY_ENV,
    ),
    "the same rank of another world": (OPENMPI_5 | ENV_3_OF_8, BY_OPENMPI, BY_ENV),
    "env:// left over under hydra": (MPICH | ENV_3_OF_8, "rank 3 of 4 by hydra (PMI_RANK)", BY_ENV),
    "env:// left over under srun": (SRUN_1 | ENV_3_OF_8, BY_SLURM, BY_ENV),
    "Open MPI and hydra": (OPENMPI_4 | MPICH | of("PMI_RANK=0"), BY_OPENMPI, "rank 0 of 4 by hydra (PMI_RANK)"),
    "mpirun in a PyTorchJob": (OPENMPI_4 | PYTORCHJOB, BY_OPENMPI, "node 1 of 2 by pytorchjob (PET_NODE_RANK)"),
    "srun in a TrainJob": (SRUN_1 | TRAINJOB, BY_SLURM, "node 1 of 2 by trainjob (PET_NODE_RANK)"),
    "a TrainJob whose pods count differently": (
        TRAINJOB | of("JOB_COMPLETION_INDEX=0"),
        "node 1 of 2 by trainjob (PET_NODE_RANK)",
        "node 0 by indexed-job (JOB_COMPLETION_INDEX)",
    ),
    "an env:// that the image brings into every pod": (
        INDEXED | MASTER | of("RANK=0 WORLD_SIZE=1"),
        "rank 0 of 1 by env (RANK)",
        "node 1 by indexed-job (JOB_COMPLETION_INDEX)",
    ),
}


@pytest.mark.parametrize(("environ", "one", "another"), DISAGREEMENTS.values(), ids=DISAGREEMENTS)
def test_two_places_are_refused_and_both_are_named(environ: Environ, one: str, another: str) -> None:
    with pytest.raises(RequestError) as refused:
        identify(environ)
    assert str(refused.value) == (
        f"the environment gives this process two identities: {one} and {another};"
        " unset the variables of the one that did not start it."
    )


CONTRADICTIONS: list[tuple[Environ, str]] = [
    (TORCHRUN | of("RANK=4"), "RANK=4 and WORLD_SIZE=4 in the environment contradict"),
    (OPENMPI_4 | of("OMPI_COMM_WORLD_LOCAL_RANK=2"), "OMPI_COMM_WORLD_LOCAL_RANK=2 and OMPI_COMM_WORLD_LOCAL_SIZE=2"),
    (MASTER | of("RANK=0 WORLD_SIZE=2 LOCAL_RANK=2"), "LOCAL_RANK=2 and WORLD_SIZE=2"),
    (TORCHRUN | of("GROUP_RANK=2"), "GROUP_RANK=2 and GROUP_WORLD_SIZE=2"),
    (TRAINJOB | of("PET_NODE_RANK=2"), "PET_NODE_RANK=2 and PET_NNODES=2"),
    (MARKER | of("SEATRIAL_NODE_RANK=2"), "SEATRIAL_NODE_RANK=2 and SEATRIAL_NNODES=2"),
    (PYTORCHJOB | of("RANK=0"), "RANK=0 and PET_NODE_RANK=1"),
    (SRUN_1 | of("SLURM_LOCALID=1"), "SLURM_LOCALID=1 and SLURM_STEP_TASKS_PER_NODE='1(x2)'"),
    (SRUN_1 | of("SLURM_STEP_TASKS_PER_NODE=2"), "SLURM_NODEID=1 and SLURM_STEP_TASKS_PER_NODE=2"),
    (
        SRUN_1 | of("SLURM_STEP_TASKS_PER_NODE=1(y2)"),
        "SLURM_STEP_TASKS_PER_NODE='1(y2)' in the environment: expected a list",
    ),
    (SRUN_1 | of("SLURM_PROCID=one"), "SLURM_PROCID=one in the environment: expected a whole number from 0"),
    (SRUN_1 | of("SLURM_PROCID=1.0"), "SLURM_PROCID='1.0' in"),
    (MPICH | of("PMI_RANK=-1"), "PMI_RANK=-1 in"),
    (MPICH | {"PMI_SIZE": "9" * 5000}, f"PMI_SIZE='{'9' * 40}'... in"),
    (TRAINJOB | of("PET_NODE_RANK="), "PET_NODE_RANK='' in"),
    (of("JOB_COMPLETION_INDEX="), "JOB_COMPLETION_INDEX='' in"),
    (of("JOB_COMPLETION_INDEX=٣"), r"JOB_COMPLETION_INDEX='\u0663' in"),
    (MASTER | {"RANK": " 0", "WORLD_SIZE": "1"}, "RANK=' 0' in"),
    (MASTER | {"RANK": "0\n", "WORLD_SIZE": "1"}, r"RANK='0\n' in"),
    (MASTER | {"RANK": "\udcff", "WORLD_SIZE": "1"}, r"RANK='\udcff' in"),
    (MASTER | of("RANK=0 WORLD_SIZE=0"), "WORLD_SIZE=0 in the environment: expected a whole number from 1"),
    (PYTORCHJOB | of("PET_NPROC_PER_NODE=gpus"), "PET_NPROC_PER_NODE=gpus in"),
    # What Kubernetes puts into every pod when a Service is called master.
    (OPENMPI_4 | of("MASTER_PORT=tcp://10.0.0.1:80"), "MASTER_PORT='tcp://10.0.0.1:80' in"),
    (
        TORCHRUN | of("MASTER_PORT=65536"),
        "MASTER_PORT=65536 in the environment: expected a whole number from 1 to 65535",
    ),
    (TORCHRUN | of("MASTER_ADDR="), "MASTER_ADDR='' in the environment: expected a host name"),
    (TORCHRUN | {"MASTER_ADDR": "a b"}, "MASTER_ADDR='a b' in"),
    (
        PYTORCHJOB | of("PET_NNODES=1:4"),
        "PET_NNODES=1:4 in the environment: only a fixed number of nodes can be accepted; leave elasticPolicy out.",
    ),
    (PYTORCHJOB | of("PET_NNODES=2:"), "PET_NNODES=2: in the environment: only a fixed number"),
    (of("PMI_RANK=0 PMI_SIZE=1"), "PMI_RANK=0 is set, but neither MPI_LOCALRANKID"),
    (SRUN_1 | of("PMI_RANK=1 PMI_SIZE=4"), "PMI_RANK=1 is set, but neither MPI_LOCALRANKID"),
    # Something that goes with the rest is missing.
    (without(TORCHRUN, "RANK"), "TORCHELASTIC_RUN_ID is set in the environment but RANK, which"),
    (
        without(OPENMPI_4, "OMPI_COMM_WORLD_SIZE"),
        "OMPI_COMM_WORLD_RANK is set in the environment but OMPI_COMM_WORLD_S",
    ),
    (without(MPICH, "PMI_SIZE"), "PMI_RANK is set in the environment but PMI_SIZE, which"),
    (
        without(SRUN_1, "SLURM_STEP_NUM_TASKS"),
        "SLURM_PROCID is set in the environment but SLURM_STEP_NUM_TASKS, which",
    ),
    (of("SEATRIAL_NNODES=2"), "SEATRIAL_NNODES is set in the environment but SEATRIAL_NODE_RANK, which"),
    (without(TRAINJOB, "PET_NNODES"), "other PET_ variables are set and PET_NNODES is not"),
    # A PyTorchJob without a Master.
    (of("PET_NNODES=2"), "other PET_ variables are set and PET_NODE_RANK is not"),
    (ELASTIC | of("PET_NNODES=2:2"), "other PET_ variables are set and PET_NODE_RANK is not"),
    # RANK may count pods here, and nothing tells.
    (ENV_3_OF_8 | of("PET_NPROC_PER_NODE=2"), "other PET_ variables are set and PET_NNODES is not"),
]


@pytest.mark.parametrize(("environ", "start"), CONTRADICTIONS, ids=[start for _, start in CONTRADICTIONS])
def test_a_family_that_contradicts_itself_is_refused(environ: Environ, start: str) -> None:
    with pytest.raises(RequestError) as refused:
        identify(environ)
    assert str(refused.value).startswith(start)
    _assert_readable(str(refused.value))


NAMES = sorted({"PMI_JOBID", "K_MPI_JOB_ROLE"}.union(ELASTIC, *(environ for environ, _ in PLACES.values())))


def _assert_readable(text: str) -> None:
    """One or two sentences on one printable line, with the name of a variable in them."""
    assert text.isprintable()
    assert len(text) < 400
    assert any(name in text for name in [*NAMES, "PET_"])
    without_values = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "VALUE", text)
    assert len(re.findall(r"[.!?](?= |$)", without_values)) in (1, 2)
    assert text.endswith(".")


VALUES = st.one_of(
    st.integers(-1, 5).map(str),
    # Whatever the bytes were, os.environ has them as text, the undecodable ones as surrogates.
    st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    st.text(),
    st.sampled_from(["auto", "1:4", "2:2", "2(x3),1", "999999999(x999999999)", "4294967290", "9" * 100_000]),
)
ARBITRARY = st.dictionaries(st.sampled_from(NAMES), VALUES)
PILED_UP = st.lists(st.sampled_from([environ for environ, _ in PLACES.values()]), max_size=3)


@given(PILED_UP, st.sets(st.sampled_from(NAMES), max_size=4), ARBITRARY)
@example([SRUN_1], set(), {"SLURM_STEP_TASKS_PER_NODE": "9(x999999999)," * 1000})
def test_any_environment_ends_in_a_place_or_a_sentence(recorded: list[Environ], lost: set[str], more: Environ) -> None:
    environ = without({name: value for one in recorded for name, value in one.items()}, *lost) | more
    try:
        found = identify(environ)
    except RequestError as refused:
        _assert_readable(str(refused))
        return
    assert found.note.isprintable()
    assert found.master_port is None or 0 < found.master_port < 65536
    if found.level == "rank":
        assert found.rank is not None
        assert found.world_size is not None
        assert 0 <= found.rank < found.world_size
        assert found.local_rank is None or 0 <= found.local_rank < (found.local_world_size or found.world_size)
    elif found.level == "node":
        assert found.node_rank is not None
        assert found.nnodes is None or found.node_rank < found.nnodes
        assert found.nproc_per_node is None or found.nproc_per_node > 0
    else:
        assert found == Identity(launcher="none", level="none", note=found.note)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.data())
def test_slurms_task_list_is_read_folded_or_not(tasks: list[int], data: st.DataObject) -> None:
    parts: list[tuple[int, int]] = []
    for count in tasks:
        if parts and parts[-1][0] == count and data.draw(st.booleans()):
            parts[-1] = (count, parts[-1][1] + 1)
        else:
            parts.append((count, 1))
    text = ",".join(f"{count}(x{times})" if times > 1 else f"{count}" for count, times in parts)
    step = f" SLURM_STEP_NUM_TASKS={sum(tasks)} SLURM_STEP_NUM_NODES={len(tasks)} SLURM_STEP_TASKS_PER_NODE={text}"
    for node_rank, count in enumerate(tasks):
        rank = sum(tasks[:node_rank])
        place = f"SLURM_PROCID={rank} SLURM_NODEID={node_rank} SLURM_LOCALID=0"
        assert identify(SRUN_1 | of(place + step)) == a_rank(
            "slurm", (rank, sum(tasks)), (0, count), (node_rank, len(tasks))
        )
