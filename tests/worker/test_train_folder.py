"""The folder in which the ranks of ``seatrial train`` load torch, and the files that they write, as real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from by_day import by_day

import seatrial
from seatrial.environment.self_location import module_argv
from seatrial.training.defaults import make_recipe
from seatrial.worker.train_spec import Spawn, TrainSpec

_OBSERVER = """
import os, sys
def write(event, args):
    if event == "import" and args[0] == "torch":
        os.write(1, f"torch in {os.getcwd()}\\n".encode())
sys.addaudithook(write)
"""


@pytest.mark.parametrize("mode", by_day([0o755, 0o775], 1))
def test_torch_is_loaded_where_nobody_else_can_put_files(mode: int, tmp_path: Path) -> None:
    """Libraries read files of the working folder; UCX executes what its ucx.conf names."""
    (typed := tmp_path / "typed").mkdir()
    typed.chmod(mode)
    (tmp_path / "sitecustomize.py").write_text(_OBSERVER)
    recipe = make_recipe("synthetic-1x2x2-2", model="toy", max_steps=18, global_batch_size=2, num_samples=8)
    spec = TrainSpec(
        recipe=recipe,
        device="cpu",
        init=f"file://{tmp_path}/meet",
        checkpoint_dir="saved",
        log="auto",
        profile="trace.json",
        spawn=Spawn(nnodes=1, node_rank=0, nproc_per_node=2),
    )
    done = subprocess.run(
        [*module_argv(sys.executable, "seatrial.worker.train_main"), spec.to_json()],
        cwd=typed,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(tmp_path), str(Path(seatrial.__file__).parents[1]))),
            "PYTHONSAFEPATH": "1",
        },
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    at = str(typed) if mode == 0o755 else "/"
    assert [line for line in done.stdout.splitlines() if line.startswith("torch in")] == [f"torch in {at}"] * 2
    assert {path.name for path in typed.iterdir()} == {"saved", "auto", "trace.json"}
    rows = [json.loads(line) for line in (typed / "auto").read_text().splitlines()]
    assert {row["checkpoint_dir"] for row in rows} == {str(typed / "saved")}
