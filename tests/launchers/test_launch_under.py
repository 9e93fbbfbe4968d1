"""``seatrial launch`` typed under a real mpirun and srun: each process becomes the script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launchers.mpiruns import first_mpirun_then_others_nightly
from launchers.slurm_cluster import slurm_cluster
from launchers.test_under_mpirun import options

SCRIPTS = Path(__file__).parents[1] / "scripts"
LAUNCH = (sys.executable, "-m", "seatrial", "launch")


def trained_alike(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    digests = re.findall(r"rank (\d) of 2 has ([0-9a-f]{64})", done.stdout)
    assert sorted(rank for rank, _ in digests) == ["0", "1"]
    assert digests[0][1] == digests[1][1]
    assert len(re.findall("seatrial launch .*: 2 processes as", done.stderr)) == 1


@pytest.mark.mpi
@first_mpirun_then_others_nightly
@pytest.mark.parametrize("script", ["env_ddp.py", "ompi_ddp.py"])
def test_under_mpirun(tmp_path: Path, mpirun: str, script: str) -> None:
    words = options(mpirun)
    if script == "ompi_ddp.py" and not words:
        pytest.skip("it reads what Open MPI alone sets")
    done = subprocess.run(
        [mpirun, *words, "-np", "2", *LAUNCH, str(SCRIPTS / script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    trained_alike(done)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slurm
def test_under_srun(tmp_path: Path) -> None:
    with slurm_cluster(tmp_path) as environ:
        environ |= {"MASTER_ADDR": "127.0.0.1", "PYTHONWARNINGS": "ignore"}
        command = ["srun", "-N2", "--ntasks-per-node=1", *LAUNCH, "--pass-local-rank"]
        command += [str(SCRIPTS / "local_rank_ddp.py"), "--epochs", "3"]
        done = subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=55, check=False
        )
    trained_alike(done)
