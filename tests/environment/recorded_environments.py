"""What launchers leave in the environment, and who that is.

docs/environments.md says which were recorded from running launchers, and which are from documentation.
"""

from __future__ import annotations

from seatrial.environment.identity import Identity

Environ = dict[str, str]


def of(text: str) -> Environ:
    return dict(word.split("=", 1) for word in text.split())


def without(environ: Environ, *names: str) -> Environ:
    return {name: value for name, value in environ.items() if name not in names}


# Where nothing else is said: two nodes with two ranks each, and this is the fourth rank.
MASTER = of("MASTER_ADDR=node0 MASTER_PORT=29500")
TORCHRUN = MASTER | of(
    "RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2 ROLE_RANK=3 ROLE_NAME=default"
    " ROLE_WORLD_SIZE=4 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=0"
    " TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_ERROR_FILE=/tmp/error.json TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM"
    " TORCH_NCCL_ASYNC_ERROR_HANDLING=1 OMP_NUM_THREADS=1"
)
OPENMPI = of(
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2"
    " OMPI_COMM_WORLD_NODE_RANK=1 OMPI_UNIVERSE_SIZE=4 PMIX_RANK=3"
)
OPENMPI_4 = OPENMPI | of("OMPI_MCA_orte_ess_num_procs=4 OMPI_MCA_ess=env PMIX_ID=24837.3 PMIX_NAMESPACE=24837")
OPENMPI_5 = OPENMPI | of("OMPI_VERSION=5.0.11 OMPI_TOOL_NAME=mpirun PRTE_LAUNCHED=1 PMIX_NAMESPACE=prterun-node0-47@1")
HYDRA = of("PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2")
MPICH = HYDRA | of("PMI_FD=9 PMI_HOSTNAME=node1 HYDI_CONTROL_FD=7")
INTEL = HYDRA | of("I_MPI_MPIRUN=mpirun I_MPI_HYDRA_BOOTSTRAP=ssh HYDRA_BSTRAP_LOCALHOST=node0")
SLURM_JOB = of(
    "SLURM_CLUSTER_NAME=test SLURM_JOB_ID=1 SLURM_JOBID=1 SLURM_JOB_NODELIST=n[0-1] SLURM_NODELIST=n[0-1]"
    " SLURM_NNODES=2 SLURM_JOB_NUM_NODES=2 SLURM_JOB_CPUS_PER_NODE=1(x2) SLURM_JOB_PARTITION=main SLURM_JOB_NAME=bash"
    " SLURM_JOB_USER=runner SLURM_JOB_UID=10001 SLURM_JOB_GID=10001 SLURM_SUBMIT_DIR=/home SLURM_SUBMIT_HOST=login"
)
SALLOC = SLURM_JOB | of("SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_TASKS_PER_NODE=2(x2)")
SBATCH = SALLOC | of(
    "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0 SLURM_TASK_PID=47 SLURM_CPUS_ON_NODE=1"
    " SLURM_CPUS_PER_TASK=1 SLURM_MEM_PER_NODE=500 SLURMD_NODENAME=n0"
)
SALLOC_STEP = SBATCH | of(
    "SLURM_STEP_ID=4294967290 SLURM_STEPID=4294967290 SLURM_STEP_NODELIST=n0 SLURM_STEP_NUM_NODES=1"
    " SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_PTY_PORT=39933"
)
# srun -N2 --ntasks-per-node=1
SRUN_1 = SLURM_JOB | of(
    "SLURMD_NODENAME=n1 SLURM_PROCID=1 SLURM_NODEID=1 SLURM_GTIDS=1 SLURM_TOPOLOGY_ADDR=n1 SLURM_TASK_PID=47"
    " SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_NTASKS=2 SLURM_NPROCS=2 SLURM_STEP_NODELIST=n[0-1]"
    " SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 SLURM_TASKS_PER_NODE=1(x2) SLURM_STEP_TASKS_PER_NODE=1(x2)"
    " SLURM_NTASKS_PER_NODE=1 SLURM_CPUS_ON_NODE=1 SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 SLURM_SRUN_COMM_HOST=127.0.0.1"
    " SLURM_SRUN_COMM_PORT=33333 SLURM_CONF=/etc/slurm.conf SLURM_UMASK=0022 SLURM_PRIO_PROCESS=0"
)
SRUN_0 = SRUN_1 | of("SLURMD_NODENAME=n0 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_GTIDS=0 SLURM_TOPOLOGY_ADDR=n0")
SRUN_UNEQUAL = SRUN_1 | of("SLURM_STEP_NUM_NODES=4 SLURM_STEP_NUM_TASKS=7 SLURM_STEP_TASKS_PER_NODE=2(x3),1")
SRUN_OF_HYDRA = SRUN_0 | of("SLURM_NTASKS=1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1")
PYTORCHJOB = of(
    "PYTHONUNBUFFERED=1 MASTER_ADDR=job-master-0 MASTER_PORT=23456 PET_MASTER_ADDR=job-master-0 PET_MASTER_PORT=23456"
    " WORLD_SIZE=4 RANK=1 PET_NPROC_PER_NODE=2 PET_NODE_RANK=1 PET_NNODES=2"
)
ELASTIC = of("PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=job-worker-0:23456 PET_MAX_RESTARTS=3")
PYTORCHJOB_OLD = of("MASTER_ADDR=job-master-0 MASTER_PORT=23456 RANK=1 WORLD_SIZE=2")
INDEXED = of("JOB_COMPLETION_INDEX=1")
TRAINJOB = INDEXED | of(
    "PET_NNODES=2 PET_NPROC_PER_NODE=4 PET_NODE_RANK=1 PET_MASTER_ADDR=tj-node-0-0.tj PET_MASTER_PORT=29500"
)
MARKER = of("SEATRIAL_NODE_RANK=1 SEATRIAL_NNODES=2 SEATRIAL_NPROC_PER_NODE=4")
SUBMITIT = MASTER | of("RANK=1 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1")

AT_NODE0 = ("node0", 29500)
NONE = (None, None)
Pair = tuple[int | None, int | None]
Host = tuple[str | None, int | None]


def a_rank(launcher: str, world: Pair, local: Pair, node: Pair = NONE, master: Host = NONE) -> Identity:
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


def a_node(launcher: str, node: Pair, nproc_per_node: int | None = None, master: Host = NONE) -> Identity:
    return Identity(
        launcher=launcher,
        level="node",
        node_rank=node[0],
        nnodes=node[1],
        nproc_per_node=nproc_per_node,
        master_addr=master[0],
        master_port=master[1],
    )


IN_TORCHRUN = a_rank("torchrun", (3, 4), (1, 2), (1, 2), AT_NODE0)
IN_OPENMPI = a_rank("openmpi", (3, 4), (1, 2))
IN_SRUN = a_rank("slurm", (1, 2), (0, 1), (1, 2))
IN_ENV = a_rank("env", (1, 2), (0, 1), master=AT_NODE0)
IN_PYTORCHJOB = a_node("pytorchjob", (1, 2), 2, ("job-master-0", 23456))
IN_TRAINJOB = a_node("trainjob", (1, 2), 4, ("tj-node-0-0.tj", 29500))
NOBODY = Identity(launcher="none", level="none")

PLACES: dict[str, tuple[Environ, Identity]] = {
    "torchrun": (TORCHRUN, IN_TORCHRUN),
    "Open MPI 4": (OPENMPI_4, IN_OPENMPI),
    "Open MPI 5": (OPENMPI_5, IN_OPENMPI),
    "Open MPI with -x MASTER_ADDR": (OPENMPI_4 | MASTER, a_rank("openmpi", (3, 4), (1, 2), master=AT_NODE0)),
    "MPICH": (MPICH, a_rank("hydra", (3, 4), (1, 2))),
    "Intel MPI": (INTEL, a_rank("hydra", (3, 4), (1, 2))),
    "srun, rank 0": (SRUN_0, a_rank("slurm", (0, 2), (0, 1), (0, 2))),
    "srun, rank 1": (SRUN_1, IN_SRUN),
    "srun, nodes of different size": (
        SRUN_UNEQUAL | of("SLURM_PROCID=6 SLURM_NODEID=3"),
        a_rank("slurm", (6, 7), (0, 1), (3, 4)),
    ),
    "srun --mpi=pmi2": (SRUN_1 | of("PMI_RANK=1 PMI_SIZE=2 PMI_JOBID=1.0"), IN_SRUN),
    "srun of two tasks in a job of four": (SRUN_1 | of("SLURM_NTASKS=4"), IN_SRUN),
    "submitit without Slurm": (SUBMITIT, IN_ENV),
    "env:// of one rank a node": (
        MASTER | of("RANK=1 WORLD_SIZE=2"),
        a_rank("env", (1, 2), NONE, master=AT_NODE0),
    ),
    "PyTorchJob of an operator without PET_": (
        PYTORCHJOB_OLD,
        a_rank("env", (1, 2), NONE, master=("job-master-0", 23456)),
    ),
    "PyTorchJob": (PYTORCHJOB, IN_PYTORCHJOB),
    "PyTorchJob, auto": (
        PYTORCHJOB | of("PET_NPROC_PER_NODE=auto WORLD_SIZE=2"),
        a_node("pytorchjob", (1, 2), None, ("job-master-0", 23456)),
    ),
    "PyTorchJob, elastic of a fixed size": (PYTORCHJOB | ELASTIC | of("PET_NNODES=2:2"), IN_PYTORCHJOB),
    "PyTorchJob where somebody starts ranks": (
        PYTORCHJOB | of("RANK=2 LOCAL_RANK=0"),
        a_rank("env", (2, 4), (0, None), master=("job-master-0", 23456)),
    ),
    "TrainJob": (TRAINJOB, IN_TRAINJOB),
    "TrainJob, numProcPerNode left out": (
        TRAINJOB | of("PET_NPROC_PER_NODE=auto"),
        a_node("trainjob", (1, 2), None, ("tj-node-0-0.tj", 29500)),
    ),
    "TrainJob with leftovers in the image": (TRAINJOB | of("LOCAL_RANK=0 MASTER_ADDR=localhost"), IN_TRAINJOB),
    "Indexed Job": (INDEXED, a_node("indexed-job", (1, None))),
    "Indexed Job with our marker": (INDEXED | MARKER, a_node("seatrial", (1, 2), 4)),
    "JobSet": (INDEXED | MASTER, a_node("indexed-job", (1, None), None, AT_NODE0)),
    "our marker of one node": (of("SEATRIAL_NODE_RANK=0"), a_node("seatrial", (0, None))),
    # One inside another.
    "torchrun in a PyTorchJob": (PYTORCHJOB | TORCHRUN, IN_TORCHRUN),
    "torchrun in an elastic PyTorchJob": (ELASTIC | of("PET_NNODES=1:4") | TORCHRUN, IN_TORCHRUN),
    "torchrun in a TrainJob": (TRAINJOB | TORCHRUN, IN_TORCHRUN),
    "torchrun --standalone in each pod": (of("JOB_COMPLETION_INDEX=7") | TORCHRUN, IN_TORCHRUN),
    "torchrun under srun": (SRUN_1 | TORCHRUN, IN_TORCHRUN),
    "torchrun under mpirun": (OPENMPI_4 | of("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2") | TORCHRUN, IN_TORCHRUN),
    "torchrun under hydra": (MPICH | of("PMI_RANK=1 PMI_SIZE=2") | TORCHRUN, IN_TORCHRUN),
    "torchrun under a launcher that is not whole": (of("PMI_RANK=1") | TORCHRUN, IN_TORCHRUN),
    "Open MPI in an sbatch job": (SBATCH | OPENMPI_4, IN_OPENMPI),
    "Open MPI on another node of a Slurm job": (SRUN_0 | OPENMPI_5, IN_OPENMPI),
    "hydra bootstrapped by srun": (
        SRUN_OF_HYDRA | MPICH | of("PMI_RANK=1"),
        a_rank("hydra", (1, 4), (1, 2)),
    ),
    "submitit in Slurm": (SRUN_1 | SUBMITIT, a_rank("slurm", (1, 2), (0, 1), (1, 2), AT_NODE0)),
    "Open MPI with env:// of the same rank": (
        OPENMPI_4 | MASTER | of("RANK=3 LOCAL_RANK=1 WORLD_SIZE=4"),
        a_rank("openmpi", (3, 4), (1, 2), master=AT_NODE0),
    ),
    "Open MPI in the launcher of a TrainJob": (of("JOB_COMPLETION_INDEX=0") | OPENMPI_4, IN_OPENMPI),
    "env:// in an Indexed Job": (INDEXED | SUBMITIT, IN_ENV),
    "our marker over all": (
        PYTORCHJOB | SRUN_1 | OPENMPI_4 | MPICH | TORCHRUN | of("PET_NNODES=1:9") | MARKER,
        a_node("seatrial", (1, 2), 4, AT_NODE0),
    ),
    # None of them.
    "nothing": ({}, NOBODY),
    "a shell": (of("HOME=/root PATH=/bin MASTER_ADDR=left"), NOBODY),
    "a default of torchrun in a shell": (of("PET_NPROC_PER_NODE=4"), NOBODY),
}
