"""The MPI backend under real MPIs, named by SEATRIAL_TEST_MPIRUNS, with mpi4py from SEATRIAL_TEST_MPI4PY."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launchers.mpiruns import MPIRUNS, first_mpirun, first_mpirun_then_others_nightly
from launchers.test_under_mpirun import options

pytestmark = pytest.mark.mpi4py

HERE = Path(__file__).parent


def under(
    mpirun: str, np: int, *argv: str, timeout_s: float = 55, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Python with these arguments on this number of ranks, which share the cores politely."""
    paths = [os.environ["SEATRIAL_TEST_MPI4PY"], str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    variables = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OMP_NUM_THREADS": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "MPIR_CVAR_POLLS_BEFORE_YIELD": "10",
    }
    return subprocess.run(
        [mpirun, *options(mpirun), "-np", str(np), sys.executable, *argv],
        env={**os.environ, **variables, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@first_mpirun_then_others_nightly
@pytest.mark.parametrize(
    ("np", "parts"),
    [
        (2, "collectives shapes"),
        *(
            pytest.param(2, parts, marks=pytest.mark.nightly)
            for parts in ("points groups train", "random", "more-random")
        ),
        pytest.param(3, "collectives", marks=pytest.mark.nightly),
        (3, "points groups train"),
        *(pytest.param(4, parts, marks=pytest.mark.nightly) for parts in ("collectives", "points groups train")),
    ],
)
def test_every_operation_gives_what_gloo_gives(mpirun: str, np: int, parts: str) -> None:
    done = under(mpirun, np, str(HERE / "mpi_matrix.py"), *parts.split())
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.rpartition("equal ")[2]) >= 20


@first_mpirun
def test_tensors_that_mpi_cannot_take_travel_as_copies(mpirun: str) -> None:
    done = under(mpirun, 3, str(HERE / "mpi_matrix.py"), "staged")
    assert done.returncode == 0, done.stderr[-3000:]


@first_mpirun
def test_the_script_of_the_docs_runs(tmp_path: Path, mpirun: str) -> None:
    page = (HERE.parents[1] / "docs" / "mpi.md").read_text()
    (tmp_path / "train.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    done = under(mpirun, 2, str(tmp_path / "train.py"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("loss 0.")


@first_mpirun_then_others_nightly
def test_a_script_that_is_through_ends_well_whatever_it_left(mpirun: str) -> None:
    done = under(mpirun, 2, str(HERE / "mpi_endings.py"), "forgotten")
    assert (done.returncode, done.stdout.count("ended")) == (0, 2), done.stderr[-3000:]


@first_mpirun_then_others_nightly
def test_an_exception_in_one_rank_ends_the_ranks_that_wait_for_it(mpirun: str) -> None:
    done = under(mpirun, 3, str(HERE / "mpi_endings.py"), "exception")
    assert done.returncode != 0
    assert "planted in rank 1" in done.stderr
    assert "ended" not in done.stdout


@first_mpirun_then_others_nightly
def test_a_rank_that_waits_too_long_names_the_operation(mpirun: str) -> None:
    done = under(mpirun, 2, str(HERE / "mpi_endings.py"), "late")
    assert done.returncode != 0
    assert "MPI all_reduce timed out waiting 2 s for the other ranks of its group" in done.stderr


@first_mpirun
def test_a_rank_that_never_meets_the_others_keeps_them_no_longer(mpirun: str) -> None:
    done = under(mpirun, 2, str(HERE / "mpi_endings.py"), "absent")
    assert done.returncode != 0
    assert "MPI rendezvous timed out waiting 2 s for the other ranks of its group" in done.stderr


@first_mpirun
def test_a_timeout_of_the_call_goes_before_that_of_its_group(mpirun: str) -> None:
    done = under(mpirun, 2, str(HERE / "mpi_endings.py"), "named")
    assert done.returncode != 0
    assert "MPI all_reduce timed out waiting 1 s for the other ranks of its group" in done.stderr


@first_mpirun
def test_a_count_of_ranks_other_than_that_of_mpi_is_one_sentence(mpirun: str) -> None:
    code = "import torch.distributed as d, seatrial.mpi; d.init_process_group(seatrial.mpi.BACKEND)"
    wrong = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = under(mpirun, 2, "-c", code, environ=wrong)
    assert done.returncode != 0
    assert re.search(r"rank 0 of 1, MPI says rank [01] of 2; use the same numbers for both", done.stderr)


@first_mpirun_then_others_nightly
def test_a_trial_over_mpi_passes(tmp_path: Path, mpirun: str) -> None:
    done = under(mpirun, 2, "-m", "seatrial", "run", "smoke", "--backend", "mpi", "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert (report["acceptance"]["status"], report["backend"]) == ("PASS", "mpi")
    transports = [fact["value"] for fact in report["facts"] if fact["name"] == "transport"]
    assert transports == ["host memory"] * 2
    assert "MPI takes the tensors from host memory" in done.stderr + (tmp_path / "cluster_test_report.json").read_text()


@first_mpirun_then_others_nightly
def test_a_rank_that_dies_in_a_collective_is_named_in_a_report(tmp_path: Path, mpirun: str) -> None:
    trial = ["-m", "seatrial", "run", "smoke", "--backend", "mpi", "--out", str(tmp_path)]
    done = under(mpirun, 3, *trial, environ={"SEATRIAL_PLANT": "kill@collectives/all_reduce:1"})
    report = json.loads((tmp_path / "cluster_test_report.json").read_text())
    assert done.returncode == 1
    assert report["acceptance"]["status"] == "FAIL"
    summary = " ".join(report["acceptance"]["summary"])
    assert "rank 1 " in summary
    assert "was killed by signal 9" in summary


@first_mpirun
def test_a_rank_that_hangs_outside_of_a_collective_is_named_in_a_report(tmp_path: Path, mpirun: str) -> None:
    trial = ["-m", "seatrial", "run", "smoke", "--backend", "mpi", "--out", str(tmp_path)]
    under(mpirun, 2, *trial, environ={"SEATRIAL_PLANT": "hang@collectives/all_reduce:1"})
    report = json.loads((tmp_path / "cluster_test_report.json").read_text())
    assert report["acceptance"]["status"] == "FAIL"
    assert "rank 1 " in " ".join(report["acceptance"]["summary"])


@functools.cache
def trained(mpirun: str, backend: str) -> str:
    """What a short training says of its parameters."""
    train = ["-m", "seatrial", "train", "digits", "1", "--model", "mlp", "--backend", backend]
    done = under(mpirun, 2, *train, environ={"GLOO_SOCKET_IFNAME": "lo"})
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("digests of all ranks equal: ")]
    return line


@first_mpirun_then_others_nightly
def test_a_training_over_mpi_is_that_over_gloo(mpirun: str) -> None:
    assert trained(mpirun, "mpi") == trained(MPIRUNS[0], "gloo")
