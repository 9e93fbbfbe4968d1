"""examples/fsdp.py, pipeline.py and mpi.py train the same network on the same batches; tour.sh runs what there is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from examples.example_runs import EXAMPLES, assert_same_bits, content, lives, lives_and_output, run
from launchers.mpiruns import first_mpirun

from seatrial.util.ports import free_port

pytestmark = pytest.mark.timeout(300)
_EPOCH = re.compile(r"^epoch \d+: loss of the last batch ([0-9.]+), accuracy ([0-9.]+)$", re.MULTILINE)


def epochs(output: str) -> list[tuple[float, float]]:
    """Return loss and accuracy of each epoch."""
    return [(float(loss), float(accuracy)) for loss, accuracy in _EPOCH.findall(output)]


@pytest.mark.slow
def test_fsdp_and_two_pipelines_train_the_same(tmp_path: Path) -> None:
    sharded = {"arguments": [str(EXAMPLES / "fsdp.py"), "--epochs", "2"], "world_size": 2}
    piped = {"arguments": [str(EXAMPLES / "pipeline.py"), "--epochs", "2"], "world_size": 4}
    codes, output = lives_and_output(tmp_path, sharded, piped)
    assert codes == [[0] * 2, [0] * 4]
    printed = epochs(output)
    for (loss, accuracy), (of_pipeline, its_accuracy) in zip(printed[:2], printed[2:], strict=True):
        assert loss == pytest.approx(of_pipeline, rel=0.01)
        assert accuracy == pytest.approx(its_accuracy, abs=0.02)
    assert printed[1][1] > 0.8


@pytest.mark.slow
def test_fsdp_resumes_to_the_same_bits_after_a_kill(tmp_path: Path) -> None:
    script = [str(EXAMPLES / "fsdp.py"), "--epochs", "2", "--checkpoint"]
    whole = {"arguments": [*script, "whole.pt"], "world_size": 2}
    broken = {"arguments": [*script, "broken.pt"], "world_size": 2}
    codes = lives(tmp_path, whole, {**broken, "strike": (1, 30, signal.SIGKILL)}, broken)
    assert codes[0] == codes[2] == [0, 0]
    assert codes[1][1] == -signal.SIGKILL
    assert_same_bits(content(tmp_path / "whole.pt"), content(tmp_path / "broken.pt"))


@pytest.mark.slow
def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    torch.save({"position": [0, 0.0, 0.0], "recipe": [1, 2, 3, 4.0]}, tmp_path / "last.pt")
    scripts = {
        "another recipe": ["ddp.py", "--checkpoint-dir", str(tmp_path)],
        "an odd number of ranks": ["pipeline.py"],
        "no mpirun": ["mpi.py"],
    }
    each = [
        {"arguments": [str(EXAMPLES / script), *arguments], "world_size": 1} for script, *arguments in scripts.values()
    ]
    assert lives(tmp_path, *each) == [[1]] * 3


@pytest.mark.slow
def test_checkpoints_go_through_no_link_of_a_neighbor(tmp_path: Path) -> None:
    """In a shared folder another user may have made ``runs`` first, and may keep the right to write there."""
    (precious := tmp_path / "precious").write_text("precious")
    (tmp_path / "own" / "ddp").mkdir(parents=True)
    for name in ("runs/ddp/last.pt", "runs/ddp/best.pt", "runs/fsdp.pt"):
        (planted := tmp_path / f"{name}.new").parent.mkdir(parents=True, exist_ok=True)
        planted.symlink_to(precious)
    (tmp_path / "mine").symlink_to("own")
    scripts = {name: [str(EXAMPLES / name), "--epochs", "1"] for name in ("ddp.py", "fsdp.py")}
    each = [*scripts.values(), [*scripts["ddp.py"], "--checkpoint-dir", "mine/ddp"]]
    assert lives(tmp_path, *({"arguments": arguments, "world_size": 1} for arguments in each)) == [[0]] * 3
    assert precious.read_text() == "precious"
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.pt*")}
    assert written == {"runs/ddp/last.pt", "runs/ddp/best.pt", "runs/fsdp.pt", "own/ddp/last.pt", "own/ddp/best.pt"}


@pytest.mark.root
def test_a_folder_behind_a_link_of_a_neighbor_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "theirs").symlink_to("own")
    os.chown(tmp_path / "theirs", 65534, 65534, follow_symlinks=False)
    folders = {"ddp.py": ("--checkpoint-dir", "theirs/ddp"), "fsdp.py": ("--checkpoint", "theirs/fsdp.pt")}
    each = [[str(EXAMPLES / name), *option] for name, option in folders.items()]
    each += [[str(EXAMPLES / "ddp.py"), "--checkpoint-dir", str(tmp_path / "theirs")]]
    assert lives(tmp_path, *({"arguments": arguments, "world_size": 1} for arguments in each)) == [[1]] * 3
    assert list((tmp_path / "own").iterdir()) == []


@pytest.mark.mpi
@first_mpirun
def test_mpirun_starts_it_over_gloo(tmp_path: Path, mpirun: str) -> None:
    of_two = (mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, str(EXAMPLES / "mpi.py"))
    printed = epochs(run(tmp_path, *of_two, "--epochs", "3", env={"MASTER_PORT": str(free_port())}))
    assert len(printed) == 3
    assert printed[-1][1] > 0.8


@pytest.mark.mpi4py
@first_mpirun
def test_mpirun_starts_it_over_mpi(tmp_path: Path, mpirun: str) -> None:
    of_two = (mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, str(EXAMPLES / "mpi.py"))
    place = {"PYTHONPATH": os.environ["SEATRIAL_TEST_MPI4PY"], "OMPI_MCA_mpi_yield_when_idle": "1"}
    assert epochs(run(tmp_path, *of_two, "--epochs", "3", "--backend", "mpi", env=place))[-1][1] > 0.8


def test_the_tour_imports_nothing_of_the_working_folder(tmp_path: Path) -> None:
    (typed := tmp_path / "typed").mkdir()
    for name in ("torch", "random", "sitecustomize"):
        (typed / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})\n")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environ |= {"TORCHRUN": "false", "PYTHON": sys.executable}
    done = subprocess.run(
        [str(EXAMPLES / "tour.sh"), str(tmp_path / "tour")],
        cwd=typed,
        env=environ,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "GPUs: " in done.stdout, done.stderr
    assert not (tmp_path / "imported").exists()


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_tour_goes_through_all_three(tmp_path: Path) -> None:
    place = {"TORCHRUN": f"{sys.executable} -m torch.distributed.run", "PYTHON": sys.executable}
    output = run(tmp_path, str(EXAMPLES / "tour.sh"), str(tmp_path / "tour"), env=place)
    assert [line for line in output.splitlines() if line.startswith("==")] == [
        *("== 1. basic", "== 2. checkpoint", "== 3. model parallel", "== done"),
    ]
    assert len(epochs(output)) == 10, "five of the pipeline, five of FSDP"
    ran = [int(number) for number in re.findall(r"^epoch (\d+): loss [0-9]", output, re.MULTILINE)]
    assert ran == [0, 1, *range(20)], "the second life of the checkpoint begins where the first one ended"
