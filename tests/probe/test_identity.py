"""Who a process is: one test per recorded environment, and whatever else an environment may hold.

docs/environments.md says which environments were recorded from running launchers, and which are from documentation.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seatrial.errors import RequestError
from seatrial.probe.identity import Identity, identify

Environ = dict[str, str]


def _of(text: str) -> Environ:
    return dict(word.split("=", 1) for word in text.split())


def _without(environ: Environ, *names: str) -> Environ:
    return {name: value for name, value in environ.items() if name not in names}


# Where nothing else is said: two nodes with two ranks each, and this is the fourth rank.
MASTER = _of("MASTER_ADDR=node0 MASTER_PORT=29500")
TORCHRUN = MASTER | _of(
    "RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2 ROLE_RANK=3 ROLE_NAME=default"
    " ROLE_WORLD_SIZE=4 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=0"
    " TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_ERROR_FILE=/tmp/error.json TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM"
    " TORCH_NCCL_ASYNC_ERROR_HANDLING=1 OMP_NUM_THREADS=1"
)
OPENMPI = _of(
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2"
    " OMPI_COMM_WORLD_NODE_RANK=1 OMPI_UNIVERSE_SIZE=4 PMIX_RANK=3"
)
OPENMPI_4 = OPENMPI | _of("OMPI_MCA_orte_ess_num_procs=4 OMPI_MCA_ess=env PMIX_ID=24837.3 PMIX_NAMESPACE=24837")
OPENMPI_5 = OPENMPI | _of("OMPI_VERSION=5.0.11 OMPI_TOOL_NAME=mpirun PRTE_LAUNCHED=1 PMIX_NAMESPACE=prterun-node0-47@1")
HYDRA = _of("PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2")
MPICH = HYDRA | _of("PMI_FD=9 PMI_HOSTNAME=node1 HYDI_CONTROL_FD=7")
INTEL = HYDRA | _of("I_MPI_MPIRUN=mpirun I_MPI_HYDRA_BOOTSTRAP=ssh HYDRA_BSTRAP_LOCALHOST=node0")
SLURM_JOB = _of(
    "SLURM_CLUSTER_NAME=test SLURM_JOB_ID=1 SLURM_JOBID=1 SLURM_JOB_NODELIST=n[0-1] SLURM_NODELIST=n[0-1]"
    " SLURM_NNODES=2 SLURM_JOB_NUM_NODES=2 SLURM_JOB_CPUS_PER_NODE=1(x2) SLURM_JOB_PARTITION=main SLURM_JOB_NAME=bash"
    " SLURM_JOB_USER=runner SLURM_JOB_UID=10001 SLURM_JOB_GID=10001 SLURM_SUBMIT_DIR=/home SLURM_SUBMIT_HOST=login"
)
SALLOC = SLURM_JOB | _of("SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_TASKS_PER_NODE=2(x2)")
SBATCH = SALLOC | _of(
    "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0 SLURM_TASK_PID=47 SLURM_CPUS_ON_NODE=1"
    " SLURM_CPUS_PER_TASK=1 SLURM_MEM_PER_NODE=500 SLURMD_NODENAME=n0"
)
SALLOC_STEP = SBATCH | _of(
    "SLURM_STEP_ID=4294967290 SLURM_STEPID=4294967290 SLURM_STEP_NODELIST=n0 SLURM_STEP_NUM_NODES=1"
    " SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_PTY_PORT=39933"
)
# srun -N2 --ntasks-per-node=1
SRUN_1 = SLURM_JOB | _of(
    "SLURMD_NODENAME=n1 SLURM_PROCID=1 SLURM_NODEID=1 SLURM_GTIDS=1 SLURM_TOPOLOGY_ADDR=n1 SLURM_TASK_PID=47"
    " SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_NTASKS=2 SLURM_NPROCS=2 SLURM_STEP_NODELIST=n[0-1]"
    " SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 SLURM_TASKS_PER_NODE=1(x2) SLURM_STEP_TASKS_PER_NODE=1(x2)"
    " SLURM_NTASKS_PER_NODE=1 SLURM_CPUS_ON_NODE=1 SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 SLURM_SRUN_COMM_HOST=127.0.0.1"
    " SLURM_SRUN_COMM_PORT=33333 SLURM_CONF=/etc/slurm.conf SLURM_UMASK=0022 SLURM_PRIO_PROCESS=0"
)
SRUN_0 = SRUN_1 | _of("SLURMD_NODENAME=n0 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_GTIDS=0 SLURM_TOPOLOGY_ADDR=n0")
SRUN_UNEQUAL = SRUN_1 | _of("SLURM_STEP_NUM_NODES=4 SLURM_STEP_NUM_TASKS=7 SLURM_STEP_TASKS_PER_NODE=2(x3),1")
SRUN_OF_HYDRA = SRUN_0 | _of("SLURM_NTASKS=1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1")
PYTORCHJOB = _of(
    "PYTHONUNBUFFERED=1 MASTER_ADDR=job-master-0 MASTER_PORT=23456 PET_MASTER_ADDR=job-master-0 PET_MASTER_PORT=23456"
    " WORLD_SIZE=4 RANK=1 PET_NPROC_PER_NODE=2 PET_NODE_RANK=1 PET_NNODES=2"
)
ELASTIC = _of("PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=job-worker-0:23456 PET_MAX_RESTARTS=3")
PYTORCHJOB_OLD = _of("MASTER_ADDR=job-master-0 MASTER_PORT=23456 RANK=1 WORLD_SIZE=2")
INDEXED = _of("JOB_COMPLETION_INDEX=1")
TRAINJOB = INDEXED | _of(
    "PET_NNODES=2 PET_NPROC_PER_NODE=4 PET_NODE_RANK=1 PET_MASTER_ADDR=tj-node-0-0.tj PET_MASTER_PORT=29500"
)
MARKER = _of("SEATRIAL_NODE_RANK=1 SEATRIAL_NNODES=2 SEATRIAL_NPROC_PER_NODE=4")
SUBMITIT = MASTER | _of("RANK=1 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1")

AT_NODE0 = ("node0", 29500)
NONE = (None, None)
Pair = tuple[int | None, int | None]
Host = tuple[str | None, int | None]


def _rank(launcher: str, world: Pair, local: Pair, node: Pair = NONE, master: Host = NONE) -> Identity:
    """A rank; each pair is a number and how many there are."""
    return Identity(
        launcher=launcher,
        level="rank",
        rank=world[0],
        world_size=world[1],
        local_rank=local[0],
        local_world_size=local[1],
        node_rank=node[0],
        nnodes=node[1],
        master_addr=master[0],
        master_port=master[1],
    )


def _node(launcher: str, node: Pair, nproc_per_node: int | None = None, master: Host = NONE) -> Identity:
    return Identity(
        launcher=launcher,
        level="node",
        node_rank=node[0],
        nnodes=node[1],
        nproc_per_node=nproc_per_node,
        master_addr=master[0],
        master_port=master[1],
    )


IN_TORCHRUN = _rank("torchrun", (3, 4), (1, 2), (1, 2), AT_NODE0)
IN_OPENMPI = _rank("openmpi", (3, 4), (1, 2))
IN_SRUN = _rank("slurm", (1, 2), (0, 1), (1, 2))
IN_ENV = _rank("env", (1, 2), (0, 1), master=AT_NODE0)
IN_PYTORCHJOB = _node("pytorchjob", (1, 2), 2, ("job-master-0", 23456))
IN_TRAINJOB = _node("trainjob", (1, 2), 4, ("tj-node-0-0.tj", 29500))
NOBODY = Identity(launcher="none", level="none")

PLACES: dict[str, tuple[Environ, Identity]] = {
    "torchrun": (TORCHRUN, IN_TORCHRUN),
    "Open MPI 4": (OPENMPI_4, IN_OPENMPI),
    "Open MPI 5": (OPENMPI_5, IN_OPENMPI),
    "Open MPI with -x MASTER_ADDR": (OPENMPI_4 | MASTER, _rank("openmpi", (3, 4), (1, 2), master=AT_NODE0)),
    "MPICH": (MPICH, _rank("hydra", (3, 4), (1, 2))),
    "Intel MPI": (INTEL, _rank("hydra", (3, 4), (1, 2))),
    "srun, rank 0": (SRUN_0, _rank("slurm", (0, 2), (0, 1), (0, 2))),
    "srun, rank 1": (SRUN_1, IN_SRUN),
    "srun, nodes of different size": (
        SRUN_UNEQUAL | _of("SLURM_PROCID=6 SLURM_NODEID=3"),
        _rank("slurm", (6, 7), (0, 1), (3, 4)),
    ),
    "srun --mpi=pmi2": (SRUN_1 | _of("PMI_RANK=1 PMI_SIZE=2 PMI_JOBID=1.0"), IN_SRUN),
    "srun of two tasks in a job of four": (SRUN_1 | _of("SLURM_NTASKS=4"), IN_SRUN),
    "submitit without Slurm": (SUBMITIT, IN_ENV),
    "env:// of one rank a node": (
        MASTER | _of("RANK=1 WORLD_SIZE=2"),
        _rank("env", (1, 2), NONE, master=AT_NODE0),
    ),
    "PyTorchJob of an operator without PET_": (
        PYTORCHJOB_OLD,
        _rank("env", (1, 2), NONE, master=("job-master-0", 23456)),
    ),
    "PyTorchJob": (PYTORCHJOB, IN_PYTORCHJOB),
    "PyTorchJob, auto": (
        PYTORCHJOB | _of("PET_NPROC_PER_NODE=auto WORLD_SIZE=2"),
        _node("pytorchjob", (1, 2), None, ("job-master-0", 23456)),
    ),
    "PyTorchJob, elastic of a fixed size": (PYTORCHJOB | ELASTIC | _of("PET_NNODES=2:2"), IN_PYTORCHJOB),
    "PyTorchJob where somebody starts ranks": (
        PYTORCHJOB | _of("RANK=2 LOCAL_RANK=0"),
        _rank("env", (2, 4), (0, None), master=("job-master-0", 23456)),
    ),
    "TrainJob": (TRAINJOB, IN_TRAINJOB),
    "TrainJob, numProcPerNode left out": (
        TRAINJOB | _of("PET_NPROC_PER_NODE=auto"),
        _node("trainjob", (1, 2), None, ("tj-node-0-0.tj", 29500)),
    ),
    "TrainJob with leftovers in the image": (TRAINJOB | _of("LOCAL_RANK=0 MASTER_ADDR=localhost"), IN_TRAINJOB),
    "Indexed Job": (INDEXED, _node("indexed-job", (1, None))),
    "Indexed Job with our marker": (INDEXED | MARKER, _node("seatrial", (1, 2), 4)),
    "JobSet": (INDEXED | MASTER, _node("indexed-job", (1, None), None, AT_NODE0)),
    "our marker of one node": (_of("SEATRIAL_NODE_RANK=0"), _node("seatrial", (0, None))),
    # One inside another.
    "torchrun in a PyTorchJob": (PYTORCHJOB | TORCHRUN, IN_TORCHRUN),
    "torchrun in an elastic PyTorchJob": (ELASTIC | _of("PET_NNODES=1:4") | TORCHRUN, IN_TORCHRUN),
    "torchrun in a TrainJob": (TRAINJOB | TORCHRUN, IN_TORCHRUN),
    "torchrun --standalone in each pod": (_of("JOB_COMPLETION_INDEX=7") | TORCHRUN, IN_TORCHRUN),
    "torchrun under srun": (SRUN_1 | TORCHRUN, IN_TORCHRUN),
    "torchrun under mpirun": (OPENMPI_4 | _of("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2") | TORCHRUN, IN_TORCHRUN),
    "torchrun under hydra": (MPICH | _of("PMI_RANK=1 PMI_SIZE=2") | TORCHRUN, IN_TORCHRUN),
    "torchrun under a launcher that is not whole": (_of("PMI_RANK=1") | TORCHRUN, IN_TORCHRUN),
    "Open MPI in an sbatch job": (SBATCH | OPENMPI_4, IN_OPENMPI),
    "Open MPI on another node of a Slurm job": (SRUN_0 | OPENMPI_5, IN_OPENMPI),
    "hydra bootstrapped by srun": (
        SRUN_OF_HYDRA | MPICH | _of("PMI_RANK=1"),
        _rank("hydra", (1, 4), (1, 2)),
    ),
    "submitit in Slurm": (SRUN_1 | SUBMITIT, _rank("slurm", (1, 2), (0, 1), (1, 2), AT_NODE0)),
    "Open MPI with env:// of the same rank": (
        OPENMPI_4 | MASTER | _of("RANK=3 LOCAL_RANK=1 WORLD_SIZE=4"),
        _rank("openmpi", (3, 4), (1, 2), master=AT_NODE0),
    ),
    "Open MPI in the launcher of a TrainJob": (_of("JOB_COMPLETION_INDEX=0") | OPENMPI_4, IN_OPENMPI),
    "env:// in an Indexed Job": (INDEXED | SUBMITIT, IN_ENV),
    "our marker over all": (
        PYTORCHJOB | SRUN_1 | OPENMPI_4 | MPICH | TORCHRUN | _of("PET_NNODES=1:9") | MARKER,
        _node("seatrial", (1, 2), 4, AT_NODE0),
    ),
    # None of them.
    "nothing": ({}, NOBODY),
    "a shell": (_of("HOME=/root PATH=/bin MASTER_ADDR=left"), NOBODY),
    "a default of torchrun in a shell": (_of("PET_NPROC_PER_NODE=4"), NOBODY),
}


@pytest.mark.parametrize(("environ", "expected"), PLACES.values(), ids=PLACES)
def test_a_recorded_environment(environ: Environ, expected: Identity) -> None:
    assert identify(environ) == expected


IN_SLURM_SHELL = "this is a shell of Slurm job 1, not a task; srun starts tasks"
OF_MPIJOB = "of an MPIJob, not a rank; mpirun starts ranks"
LEFT = "is passed over as left behind"
SHELLS: dict[str, tuple[Environ, str]] = {
    "batch shell": (SBATCH, IN_SLURM_SHELL),
    "salloc shell": (SALLOC, IN_SLURM_SHELL),
    "salloc shell that is a step": (SALLOC_STEP, IN_SLURM_SHELL),
    "MPIJob launcher": (
        _of("K_MPI_JOB_ROLE=launcher OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile NVIDIA_VISIBLE_DEVICES="),
        f"this is the launcher {OF_MPIJOB}",
    ),
    "MPIJob worker": (_of("K_MPI_JOB_ROLE=worker"), f"this is the worker {OF_MPIJOB}"),
    "RANK alone": (_of("RANK=3"), f"RANK=3 without WORLD_SIZE, MASTER_ADDR {LEFT}"),
    "no MASTER_ADDR": (_of("RANK=3 WORLD_SIZE=8"), f"RANK=3, WORLD_SIZE=8 without MASTER_ADDR {LEFT}"),
    "LOCAL_RANK alone": (_of("LOCAL_RANK=0"), f"LOCAL_RANK=0 without RANK, WORLD_SIZE, MASTER_ADDR {LEFT}"),
    "a raw value": ({"RANK": "\x1b[2J\n"}, rf"RANK='\x1b[2J\n' without WORLD_SIZE, MASTER_ADDR {LEFT}"),
    "two of them": (SALLOC | _of("RANK=0"), f"{IN_SLURM_SHELL}; RANK=0 without WORLD_SIZE, MASTER_ADDR {LEFT}"),
}


@pytest.mark.parametrize(("environ", "note"), SHELLS.values(), ids=SHELLS)
def test_what_only_looks_like_a_rank_is_told(environ: Environ, note: str) -> None:
    assert identify(environ) == Identity(launcher="none", level="none", note=note)


ENV_3_OF_8 = MASTER | _of("RANK=3 WORLD_SIZE=8")
BY_ENV = "rank 3 of 8 by env (RANK)"
BY_OPENMPI = "rank 3 of 4 by openmpi (OMPI_COMM_WORLD_RANK)"
BY_SLURM = "rank 1 of 2 by slurm (SLURM_PROCID)"
DISAGREEMENTS: dict[str, tuple[Environ, str, str]] = {
    "env:// left over under mpirun": (
        OPENMPI_4 | _of("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2") | ENV_3_OF_8,
        "rank 0 of 2 by openmpi (OMPI_COMM_WORLD_RANK)",
        BY_ENV,
    ),
    "the same rank of another world": (OPENMPI_5 | ENV_3_OF_8, BY_OPENMPI, BY_ENV),
    "env:// left over under hydra": (MPICH | ENV_3_OF_8, "rank 3 of 4 by hydra (PMI_RANK)", BY_ENV),
    "env:// left over under srun": (SRUN_1 | ENV_3_OF_8, BY_SLURM, BY_ENV),
    "Open MPI and hydra": (OPENMPI_4 | MPICH | _of("PMI_RANK=0"), BY_OPENMPI, "rank 0 of 4 by hydra (PMI_RANK)"),
    "mpirun in a PyTorchJob": (OPENMPI_4 | PYTORCHJOB, BY_OPENMPI, "node 1 of 2 by pytorchjob (PET_NODE_RANK)"),
    "srun in a TrainJob": (SRUN_1 | TRAINJOB, BY_SLURM, "node 1 of 2 by trainjob (PET_NODE_RANK)"),
    "a TrainJob whose pods count differently": (
        TRAINJOB | _of("JOB_COMPLETION_INDEX=0"),
        "node 1 of 2 by trainjob (PET_NODE_RANK)",
        "node 0 by indexed-job (JOB_COMPLETION_INDEX)",
    ),
    "an env:// that the image brings into every pod": (
        INDEXED | MASTER | _of("RANK=0 WORLD_SIZE=1"),
        "rank 0 of 1 by env (RANK)",
        "node 1 by indexed-job (JOB_COMPLETION_INDEX)",
    ),
}


@pytest.mark.parametrize(("environ", "one", "another"), DISAGREEMENTS.values(), ids=DISAGREEMENTS)
def test_two_places_are_refused_and_both_are_named(environ: Environ, one: str, another: str) -> None:
    with pytest.raises(RequestError) as refused:
        identify(environ)
    assert str(refused.value) == (
        f"the environment names two places for this process: {one} and {another};"
        " unset the variables of the one that did not start it."
    )


CONTRADICTIONS: list[tuple[Environ, str]] = [
    (TORCHRUN | _of("RANK=4"), "RANK=4 and WORLD_SIZE=4 in the environment contradict"),
    (OPENMPI_4 | _of("OMPI_COMM_WORLD_LOCAL_RANK=2"), "OMPI_COMM_WORLD_LOCAL_RANK=2 and OMPI_COMM_WORLD_LOCAL_SIZE=2"),
    (MASTER | _of("RANK=0 WORLD_SIZE=2 LOCAL_RANK=2"), "LOCAL_RANK=2 and WORLD_SIZE=2"),
    (TORCHRUN | _of("GROUP_RANK=2"), "GROUP_RANK=2 and GROUP_WORLD_SIZE=2"),
    (TRAINJOB | _of("PET_NODE_RANK=2"), "PET_NODE_RANK=2 and PET_NNODES=2"),
    (MARKER | _of("SEATRIAL_NODE_RANK=2"), "SEATRIAL_NODE_RANK=2 and SEATRIAL_NNODES=2"),
    (PYTORCHJOB | _of("RANK=0"), "RANK=0 and PET_NODE_RANK=1"),
    (SRUN_1 | _of("SLURM_LOCALID=1"), "SLURM_LOCALID=1 and SLURM_STEP_TASKS_PER_NODE='1(x2)'"),
    (SRUN_1 | _of("SLURM_STEP_TASKS_PER_NODE=2"), "SLURM_NODEID=1 and SLURM_STEP_TASKS_PER_NODE=2"),
    (SRUN_1 | _of("SLURM_STEP_TASKS_PER_NODE=1(y2)"), "SLURM_STEP_TASKS_PER_NODE='1(y2)' in the environment: a list"),
    (SRUN_1 | _of("SLURM_PROCID=one"), "SLURM_PROCID=one in the environment: a whole number from 0"),
    (SRUN_1 | _of("SLURM_PROCID=1.0"), "SLURM_PROCID='1.0' in"),
    (MPICH | _of("PMI_RANK=-1"), "PMI_RANK=-1 in"),
    (MPICH | {"PMI_SIZE": "9" * 5000}, f"PMI_SIZE='{'9' * 40}'... in"),
    (TRAINJOB | _of("PET_NODE_RANK="), "PET_NODE_RANK='' in"),
    (_of("JOB_COMPLETION_INDEX="), "JOB_COMPLETION_INDEX='' in"),
    (_of("JOB_COMPLETION_INDEX=٣"), r"JOB_COMPLETION_INDEX='\u0663' in"),
    (MASTER | {"RANK": " 0", "WORLD_SIZE": "1"}, "RANK=' 0' in"),
    (MASTER | {"RANK": "0\n", "WORLD_SIZE": "1"}, r"RANK='0\n' in"),
    (MASTER | {"RANK": "\udcff", "WORLD_SIZE": "1"}, r"RANK='\udcff' in"),
    (MASTER | _of("RANK=0 WORLD_SIZE=0"), "WORLD_SIZE=0 in the environment: a whole number from 1"),
    (PYTORCHJOB | _of("PET_NPROC_PER_NODE=gpus"), "PET_NPROC_PER_NODE=gpus in"),
    # What Kubernetes puts into every pod when a Service is called master.
    (OPENMPI_4 | _of("MASTER_PORT=tcp://10.0.0.1:80"), "MASTER_PORT='tcp://10.0.0.1:80' in"),
    (TORCHRUN | _of("MASTER_PORT=65536"), "MASTER_PORT=65536 in the environment: a whole number from 1 to 65535"),
    (TORCHRUN | _of("MASTER_ADDR="), "MASTER_ADDR='' in the environment: a host name"),
    (TORCHRUN | {"MASTER_ADDR": "a b"}, "MASTER_ADDR='a b' in"),
    (PYTORCHJOB | _of("PET_NNODES=1:4"), "PET_NNODES=1:4 in the environment: only a fixed number"),
    (PYTORCHJOB | _of("PET_NNODES=2:"), "PET_NNODES=2: in the environment: only a fixed number"),
    (_of("PMI_RANK=0 PMI_SIZE=1"), "PMI_RANK=0 is set, but neither MPI_LOCALRANKID"),
    (SRUN_1 | _of("PMI_RANK=1 PMI_SIZE=4"), "PMI_RANK=1 is set, but neither MPI_LOCALRANKID"),
    # Something that goes with the rest is missing.
    (_without(TORCHRUN, "RANK"), "TORCHELASTIC_RUN_ID is set in the environment and RANK, which"),
    (
        _without(OPENMPI_4, "OMPI_COMM_WORLD_SIZE"),
        "OMPI_COMM_WORLD_RANK is set in the environment and OMPI_COMM_WORLD_S",
    ),
    (_without(MPICH, "PMI_SIZE"), "PMI_RANK is set in the environment and PMI_SIZE, which"),
    (
        _without(SRUN_1, "SLURM_STEP_NUM_TASKS"),
        "SLURM_PROCID is set in the environment and SLURM_STEP_NUM_TASKS, which",
    ),
    (_of("SEATRIAL_NNODES=2"), "SEATRIAL_NNODES is set in the environment and SEATRIAL_NODE_RANK, which"),
    (_without(TRAINJOB, "PET_NNODES"), "other PET_ variables are set and PET_NNODES is not"),
    # A PyTorchJob without a Master.
    (_of("PET_NNODES=2"), "other PET_ variables are set and PET_NODE_RANK is not"),
    (ELASTIC | _of("PET_NNODES=2:2"), "other PET_ variables are set and PET_NODE_RANK is not"),
    # RANK may count pods here, and nothing tells.
    (ENV_3_OF_8 | _of("PET_NPROC_PER_NODE=2"), "other PET_ variables are set and PET_NNODES is not"),
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
    environ = _without({name: value for one in recorded for name, value in one.items()}, *lost) | more
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
def test_slurm_tells_the_tasks_of_each_node_folded_or_not(tasks: list[int], data: st.DataObject) -> None:
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
        assert identify(SRUN_1 | _of(place + step)) == _rank(
            "slurm", (rank, sum(tasks)), (0, count), (node_rank, len(tasks))
        )
