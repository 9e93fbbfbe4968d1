"""Cases 1 to 5: trainings of others, and the frameworks that they use."""

from __future__ import annotations

from dataclasses import replace

from script_rows.case import Case, on_each
from script_rows.places import LAUNCHED, SCRIPTS

_SNAPSHOT = str(LAUNCHED / "snapshot_ddp.py")
_MULTINODE = "multinode_ddp.py of distributed-mlops-overview"
_TUTORIAL = "PyTorch's ddp-tutorial-series"
_MPIS = ("Open MPI 5", "Open MPI 4", "MPICH")


def _trains(meeting: str, world_size: int) -> Case:
    """All ranks share the 2,048 samples of an epoch in batches of 32, and go on from the snapshot of the first run."""
    steps = 2 * 2048 // 32 // world_size
    return Case(
        id="1a",
        name="trains, and again from its snapshot",
        words=(_SNAPSHOT, meeting, "2"),
        expected=(
            rf"rank 0 of {world_size}: {steps} steps from epoch 0",
            rf"of {world_size}: {steps} steps from epoch 2",
        ),
        times=2,
        instead_of=_MULTINODE,
    )


def _per_node(case: Case) -> Case:
    return replace(case, words=("--nproc-per-node", "2", *case.words))


_OVER_MPI = replace(_trains("mpi", 2), id="1e", name="import seatrial.mpi, BACKEND and mpi://", needs=("mpi4py",))
_NO_MPIRUN = replace(
    _OVER_MPI,
    id="1h",
    name="mpi:// without mpirun is refused",
    expected=("mpirun did not start this process",),
    absent="steps from epoch",
    codes=(1,),
    times=1,
)
_MULTINODE_CASES = (
    *on_each(
        "here", "--on MPICH", "typed under torchrun", "typed under MPICH", "typed under srun", case=_trains("env", 2)
    ),
    *on_each("here, 2 nodes", "ssh, 2 hosts", "slurm, 2 nodes", case=_per_node(_trains("env", 4))),
    *on_each(
        *("--on Open MPI 5", "--on Open MPI 4", "typed under Open MPI 5", "typed under Open MPI 4"),
        case=replace(_trains("ompi-variables", 2), id="1b", env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533"}),
    ),
    replace(
        _trains("ompi-variables", 2),
        id="1b",
        on="Open MPI 4, 2 hosts",
        words=("--nproc-per-node", "1", _SNAPSHOT, "ompi-variables", "2"),
    ),
    Case(
        id="1c",
        name="reads OMPI_*, which MPICH does not set",
        on="--on MPICH",
        words=(_SNAPSHOT, "ompi-variables", "1"),
        expected=(r"Error: rank [01] on \S+ failed with exit code 1: KeyError: 'OMPI_COMM_WORLD_RANK'",),
        codes=(1,),
        instead_of=_MULTINODE,
    ),
    *on_each(
        *("--on Open MPI 5", "here"),
        case=Case(
            id="1d",
            name="backend mpi, which this torch lacks",
            words=(_SNAPSHOT, "mpi-of-torch", "1"),
            expected=(r"Error: rank [01] on \S+ failed .*MPI", "import seatrial.mpi"),
            codes=(1,),
            instead_of=_MULTINODE,
        ),
    ),
    *on_each(*(f"{mpi} alone" for mpi in _MPIS), *(f"--on {mpi}" for mpi in _MPIS), case=_OVER_MPI),
    Case(
        id="1f",
        name="only the import, backend mpi kept: torch refuses",
        on="--on Open MPI 5",
        words=(_SNAPSHOT, "import-only", "1"),
        expected=(r"Error: rank [01] on \S+ failed .*MPI",),
        absent="steps from epoch",
        codes=(1,),
        needs=("mpi4py",),
        instead_of=_MULTINODE,
    ),
    replace(
        _OVER_MPI,
        id="1g",
        name="BACKEND without mpi:// needs the variables of env://",
        on="Open MPI 5 alone",
        words=(_SNAPSHOT, "env-over-mpi", "1"),
        expected=("environment variable RANK expected, but not set",),
        absent="steps from epoch",
        codes=(1,),
        times=1,
    ),
    replace(
        _OVER_MPI, id="1g", name="BACKEND without mpi://", on="--on Open MPI 5", words=(_SNAPSHOT, "env-over-mpi", "2")
    ),
    *on_each("here", "typed under torchrun", "torchrun alone", case=_NO_MPIRUN),
    replace(
        _per_node(_trains("env", 4)),
        id="1i",
        on="ssh, 2 hosts that are 127.0.1.1 to themselves",
    ),
)
_ACCELERATE = Case(
    id="2",
    name="accelerate tests itself",
    words=("--nproc-per-node", "2", "-m", "accelerate.test_utils.scripts.test_script"),
    expected=(r"\*\*Test reinstantiated state\*\*",),
    needs=("frameworks",),
)
_PER_2 = ("--nproc-per-node", "2", "--output", "all")
_PER_1 = ("--nproc-per-node", "1", "--output", "all")


def _ranks(id_: str, name: str, words: tuple[str, ...], needs: str, world_size: int = 4) -> Case:
    total = world_size * (world_size + 1) // 2
    ranks = tuple(rf"rank {rank} of {world_size} is RANK {rank}, sum {total}" for rank in range(world_size))
    return Case(id=id_, name=name, words=words, expected=ranks, needs=(needs,))


_FABRIC, _TRAINER = str(SCRIPTS / "fabric_ddp.py"), str(SCRIPTS / "lightning_trainer.py")
_IGNITE = str(SCRIPTS / "ignite_ddp.py")
_FRAMEWORKS = (
    *on_each("here", "--on Open MPI 5", case=_ACCELERATE),
    *on_each(
        *("ssh, 2 hosts", "slurm, 2 nodes"),
        case=replace(_ACCELERATE, words=("--nproc-per-node", "1", *_ACCELERATE.words[2:])),
    ),
    *on_each(
        *("here, 2 nodes", "ssh, 2 hosts"),
        case=_ranks("3a", "Lightning Fabric", (*_PER_2, _FABRIC, "2", "2"), "frameworks"),
    ),
    *on_each(
        *("here, 2 nodes", "ssh, 2 hosts"),
        case=_ranks("3a", "Lightning Trainer", (*_PER_2, _TRAINER, "2", "2"), "heavy"),
    ),
    replace(_ranks("3a", "Lightning Fabric", (_FABRIC, "2", "1"), "frameworks", 2), on="typed under srun"),
    replace(
        _ranks("3a", "Lightning Fabric", ("--output", "all", _FABRIC, "1", "2"), "frameworks", 2), on="--on Open MPI 5"
    ),
    replace(_ranks("3b", "Lightning Fabric", (*_PER_2, _FABRIC, "2", "2"), "frameworks"), on="slurm, 2 nodes"),
    replace(_ranks("3b", "Lightning Trainer", (*_PER_2, _TRAINER, "2", "2"), "heavy"), on="slurm, 2 nodes"),
    replace(_ranks("3b", "Lightning Fabric", ("--output", "all", _FABRIC, "1", "2"), "frameworks", 2), on="sbatch"),
    Case(
        id="3c",
        name="Lightning Fabric, num_nodes forgotten",
        on="here, 2 nodes",
        words=("--nproc-per-node", "2", _FABRIC, "1", "2"),
        expected=(r"Error: rank \d on \S+ failed .*`num_nodes=1`.*does not match the world size \(4\)",),
        absent="connection between ranks lost",
        codes=(1,),
        needs=("frameworks",),
    ),
    *on_each("here, 2 nodes", "slurm, 2 nodes", case=_ranks("3d", "ignite", (*_PER_2, _IGNITE), "frameworks")),
    replace(_ranks("3d", "ignite", ("--output", "all", _IGNITE), "frameworks", 2), on="sbatch"),
)
_EXAMPLES = (
    replace(_trains("env", 2), id="4a", name="multigpu_torchrun.py", instead_of=_TUTORIAL),
    replace(_per_node(_trains("env", 4)), id="4a", on="here, 2 nodes", name="multinode.py", instead_of=_TUTORIAL),
    replace(
        _ranks(
            "4b",
            "minGPT-ddp with overrides of hydra, workers of a DataLoader",
            (*_PER_2, str(LAUNCHED / "char_gpt.py"), "trainer.max_epochs=2", "data.workers=1"),
            "",
        ),
        on="here, 2 nodes",
        expected=(r"rank 3 of 4 is RANK 3, 8 steps",),
        needs=(),
        instead_of="PyTorch's minGPT-ddp",
    ),
    Case(
        id="4c",
        name="rpc/rnn, which starts its processes by mp.spawn",
        words=("--per-node", str(LAUNCHED / "rpc_rnn.py"), "10"),
        expected=("Training epoch 9",),
        needs=("frameworks",),  # RPC needs NumPy, which is there
        instead_of="PyTorch's rpc/rnn",
    ),
    Case(
        id="4d",
        name="@record of torchelastic",
        text="from torch.distributed.elastic.multiprocessing.errors import record\n@record\n"
        "def main():\n    if rank: {}['no such key']\n    time.sleep(60)\nmain()",
        expected=(r"Error: rank 1 on \S+ failed with exit code 1: KeyError: 'no such key'",),
        codes=(1,),
    ),
    Case(
        id="4e",
        name="a script for CUDA where there is none",
        text="import torch\ntorch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
        expected=(r"Error: rank [01] on \S+ failed with exit code 1: .*(cuda|CUDA)",),
        codes=(1,),
    ),
)
_HUGGING_FACE = _ranks("5a", "Hugging Face Trainer", (*_PER_2, str(SCRIPTS / "transformers_trainer.py")), "heavy", 2)
_HEAVY = (
    _HUGGING_FACE,
    *on_each(
        *("ssh, 2 hosts", "slurm, 2 nodes"),
        case=replace(_HUGGING_FACE, words=(*_PER_1, str(SCRIPTS / "transformers_trainer.py"))),
    ),
    Case(
        id="5b",
        name="DeepSpeed, ZeRO 1 on the CPU",
        test="tests/launchers/test_heavy_frameworks.py::test_deepspeed_on_cpus",
    ),
)
CASES = (*_MULTINODE_CASES, *_FRAMEWORKS, *_EXAMPLES, *_HEAVY)
