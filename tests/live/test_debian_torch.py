"""The bundle with a torch that PyPI did not build: Debian 13's has no libuv, no MKL, and MPI built in.

SEATRIAL_TEST_DEBIAN_TORCH names the folder that tools/make_debian_torch.sh has filled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.debian_torch, pytest.mark.timeout(300)]

ROOT = Path(os.environ.get("SEATRIAL_TEST_DEBIAN_TORCH", "/nonexistent"))
SCRIPTS = Path(__file__).parents[1] / "scripts"
ENTER = """mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"; mount -t sysfs sysfs "$0/sys"
cd "$0$1"; exec chroot "$0" sh -c 'cd "$0"; exec "$@"' "$@"
"""
"""In a mount namespace, which ends with its last process: ROOT FOLDER COMMAND."""
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OF_RANKS = ("mpirun", "--oversubscribe", "-np", "2", "--mca", "btl", "self,sm")


@pytest.fixture(scope="module")
def folder(pyz: Path) -> Iterator[Path]:
    """A folder of that system, with the bundle and the scripts."""
    inside = ROOT / "tmp" / f"seatrial-test-{os.getpid()}"
    shutil.copytree(SCRIPTS, inside)
    shutil.copy(pyz, inside)
    yield inside
    shutil.rmtree(inside)


def debian(folder: Path, *words: str, code: int = 0) -> str:
    """Both streams of a command in that system, which ends with this exit code."""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", ENTER, str(ROOT), f"/{folder.relative_to(ROOT)}", *words],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **AS_ROOT, **run_variable()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert "bug" not in done.stdout
    return done.stdout


def run_variable() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("SEATRIAL_TEST_RUN")}


def seatrial(*words: str) -> tuple[str, ...]:
    return ("python3", "seatrial.pyz", *words)


def test_a_trial_passes(folder: Path) -> None:
    assert "FINAL ACCEPTANCE: PASS\n" in debian(folder, *seatrial("run", "smoke"))


def test_a_training_gives_the_same_bits_twice(folder: Path) -> None:
    recipe = seatrial("train", "digits", "1", "1", "--model", "mlp", "--checkpoint-dir")
    first, second = (debian(folder, *recipe, name) for name in ("first", "second"))
    lines = [line for line in (first + second).splitlines() if line.startswith("digests of all ranks equal: ")]
    assert len(lines) == 2
    assert lines[0] == lines[1]


def test_a_script_is_told_what_helps_and_then_runs(folder: Path) -> None:
    told = debian(folder, *seatrial("launch", "env_ddp.py"), code=1)
    assert "seatrial: this torch was built without libuv: launch the script with --env USE_LIBUV=0." in told
    assert "rank 0 of 2 has" in debian(folder, *seatrial("launch", "--env", "USE_LIBUV=0", "env_ddp.py"))


@pytest.mark.nightly
def test_a_quick_trial_passes(folder: Path) -> None:
    """Without MKL a product takes a thousand times as long: it must fit into the times of a level."""
    assert "FINAL ACCEPTANCE: PASS\n" in debian(folder, *seatrial("run", "quick"))


@pytest.mark.nightly
def test_its_own_mpi_backend(folder: Path) -> None:
    trial = ("run", "smoke", "--backend", "mpi")
    for command in ((*OF_RANKS, *seatrial(*trial)), seatrial(*trial, "--on", "mpirun", "--nproc-per-node", "2")):
        assert "- Communication (mpi): PASS\n" in debian(folder, *command)
