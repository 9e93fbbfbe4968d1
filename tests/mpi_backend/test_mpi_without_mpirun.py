"""``mpi://`` and ``env://`` in processes that mpirun did not start: each would train alone, on all data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from environment.recorded_environments import OPENMPI_5, SRUN_OF_HYDRA, of

# One rank that no launcher started: what a real MPI_Init shows as a singleton, where no MPI library is installed.
# Its COMM_WORLD has nothing else, so whatever goes on in spite of it fails.
SINGLETON = """
import json, os, sys
from types import SimpleNamespace
import seatrial.mpi, seatrial.mpi_backend.register as register, torch.distributed as dist
register.load_mpi = lambda: SimpleNamespace(COMM_WORLD=SimpleNamespace(rank=0, size=1), COMM_TYPE_SHARED=0)
for environ in json.loads(sys.argv[1]):
    os.environ.clear()
    os.environ.update(environ)
    try: dist.init_process_group(seatrial.mpi.BACKEND, init_method='mpi://')
    except Exception as error: print(type(error).__name__, error)
"""
OF_TWO = "RequestError this job has 2 ranks ({}), but MPI sees 1: mpirun did not start this process; start the script "
ALONE = "RequestError MPI takes rank and world size from mpirun, which did not start this process; start the script "
TORCHRUN = of("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none")
SRUN = of("SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2")


CASES = {
    "nobody": ({}, ALONE),
    "torchrun": (TORCHRUN, OF_TWO.format("WORLD_SIZE")),
    "torchrun of 1": (TORCHRUN | of("WORLD_SIZE=1 RANK=0"), ALONE),
    "srun": (SRUN, OF_TWO.format("SLURM_STEP_NUM_TASKS")),
    "srun with pmix": (SRUN | of("PMIX_RANK=1"), OF_TWO.format("SLURM_STEP_NUM_TASKS")),
    # mpirun -np 1 is a world of one rank that was asked for, also where srun started its helpers.
    "mpirun": (of("OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0"), "AttributeError"),
    "hydra in Slurm": (SRUN_OF_HYDRA | of("PMI_SIZE=1 PMI_RANK=0 SLURM_STEP_NUM_TASKS=2"), "AttributeError"),
    "srun with pmix, of 1": (of("PMIX_RANK=0 SLURM_STEP_NUM_TASKS=1"), "AttributeError"),
    "leftover": (of("OMPI_COMM_WORLD_SIZE=1 WORLD_SIZE=2"), OF_TWO.format("WORLD_SIZE")),
}


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    environs = json.dumps([environ for environ, _ in CASES.values()])
    done = subprocess.run(
        [sys.executable, "-c", SINGLETON, environs], capture_output=True, text=True, timeout=50, check=True
    )
    return dict(zip(CASES, done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_rank_that_mpi_sees_alone(told: dict[str, str], case: str) -> None:
    assert told[case].startswith(CASES[case][1])


def test_the_record_of_open_mpi_has_the_number_of_its_ranks() -> None:
    assert OPENMPI_5["OMPI_COMM_WORLD_SIZE"] == "4"


@pytest.mark.mpi4py
@pytest.mark.parametrize("init_method", ["mpi://", "env://"])
def test_under_launch_and_a_real_mpi(tmp_path: Path, init_method: str) -> None:
    begin = f"init_process_group(seatrial.mpi.BACKEND, init_method='{init_method}')"
    (tmp_path / "script.py").write_text(f"import seatrial.mpi, torch.distributed\ntorch.distributed.{begin}")
    path = [os.environ["SEATRIAL_TEST_MPI4PY"], os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "seatrial", "launch", "--device", "cpu", "--nproc-per-node", "2", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "this job has 2 ranks (WORLD_SIZE), but MPI sees 1: mpirun did not start this process; start" in done.stderr
    assert "mpi://" not in done.stderr.partition("Error: ")[2]
