"""Frameworks of others, as pip brings them, under ``seatrial launch``: they find the ranks that were started.

SEATRIAL_TEST_FRAMEWORKS names the folder with them (``.ci/run`` fills it).
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from launchers.frameworks import LAUNCH, SCRIPTS, check_ranks, launched
from launchers.slurm_cluster import slurm_cluster
from live.trainings import Training

pytestmark = pytest.mark.frameworks

FOLDER = os.environ.get("SEATRIAL_TEST_FRAMEWORKS", "")

FABRIC = (str(SCRIPTS / "fabric_ddp.py"), "2", "2")
IGNITE = (str(SCRIPTS / "ignite_ddp.py"),)
run_framework = partial(launched, frameworks=FOLDER)
each_framework = pytest.mark.parametrize("script", [FABRIC, IGNITE], ids=["Fabric", "ignite"])


@each_framework
def test_on_this_machine_as_two_nodes(tmp_path: Path, script: tuple[str, ...]) -> None:
    check_ranks(run_framework(tmp_path, *LAUNCH, "--nodes", "2", "--nproc-per-node", "2", *script))


@pytest.mark.timeout(120)
def test_accelerate_tests_itself(tmp_path: Path) -> None:
    output = run_framework(
        tmp_path, *LAUNCH, "--nproc-per-node", "2", "-m", "accelerate.test_utils.scripts.test_script"
    )
    # Its last section.
    assert "**Test reinstantiated state**" in output


def test_py_spy_shows_where_a_script_hangs(tmp_path: Path) -> None:
    """Ctrl-\\ asks, and the script goes on. Whatever py-spy and its libraries are told, its arguments stay here."""
    (tmp_path / "hang.py").write_text(
        "import os, time\ndef waiting():\n    while not os.path.exists('seen'): time.sleep(0.05)\n"
        "print('up', flush=True); waiting()"
    )
    path = os.pathsep.join([f"{FOLDER}/bin", os.environ["PATH"]])
    told = {"PATH": path, "CLICOLOR_FORCE": "1", "RUST_LOG": "trace", "RUST_BACKTRACE": "full"}
    running = Training(tmp_path, *LAUNCH[3:], "--nproc-per-node", "2", "hang.py", "--password=hunter2", env=told)
    running.until(lambda: [log.read_text() for log in tmp_path.glob("reports/*/rank*.log")] == ["up\n"] * 2)
    running.process.send_signal(signal.SIGQUIT)
    running.until(lambda: {event["rank"] for event in running.events("stack")} == {0, 1})
    (tmp_path / "seen").touch()
    ended = running.ended()
    assert ended.exit_code == 0, ended.errors
    for rank in range(2):
        (line,) = [line for line in ended.errors.splitlines() if f"] rank {rank} on " in line]
        assert 's ago ("up"); ' in line
        assert "waiting (hang.py:3), called by <module> (hang.py:4)" in line
    assert "hunter2" not in ended.output + ended.errors
    assert [path for path in running.out.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()] == []


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    with slurm_cluster(tmp_path_factory.mktemp("cluster")) as variables:
        yield {"SLURM_CONF": variables["SLURM_CONF"]}


@pytest.mark.slurm
@pytest.mark.parametrize("script", [FABRIC, pytest.param(IGNITE, marks=pytest.mark.nightly)], ids=["Fabric", "ignite"])
def test_on_slurm(tmp_path: Path, slurm: Mapping[str, str], script: tuple[str, ...]) -> None:
    on = ("--on", "slurm", "--nodes", "2", "--nproc-per-node", "2")
    check_ranks(run_framework(tmp_path, *LAUNCH, *on, *script, env=slurm))


@pytest.mark.slurm
@pytest.mark.nightly
@each_framework
def test_in_a_script_of_sbatch(tmp_path: Path, slurm: Mapping[str, str], script: tuple[str, ...]) -> None:
    line = shlex.join([*LAUNCH, "--nproc-per-node", "2", *script[:1], *(["1", "2"] if script[1:] else [])])
    words = ("sbatch", "--wait", "--nodes=1", "--ntasks=1", f"--output={tmp_path}/out", f"--wrap={line}")
    run_framework(tmp_path, *words, env=slurm)
    check_ranks((tmp_path / "out").read_text(), 2)
