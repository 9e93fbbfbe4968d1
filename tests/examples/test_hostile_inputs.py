"""Scripts in examples/ beside a hostile rank, and with hostile checkpoints: no code of another one runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from examples.example_runs import EXAMPLES
from torch.distributed.pipelining import PipelineStage

from seatrial.util.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
_ASKS_FOR_OBJECTS = """
import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("copies", "stages"))
mesh.get_group("copies")
stages = mesh.get_group("stages")
no = torch.zeros(1, dtype=torch.int32)
dist.send(no, 1, group=stages)
dist.recv(torch.zeros_like(no), 1, group=stages)
dist.recv(torch.zeros_like(no), 1, group=stages)
"""
"""Rank 0 as a hostile host runs it: it votes as a stage does that lacks a shape."""
_WITH_AN_OLDER_TORCH = """
import runpy, sys, torch
torch.__version__ = torch.torch_version.TorchVersion("2.9.1")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def _started(folder: Path, *words: str, rank: int = 0, world_size: int = 1, port: int = 0) -> subprocess.Popen[str]:
    ranks: dict[str, Any] = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port or free_port(), "OMP_NUM_THREADS": 1}
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **{name: str(value) for name, value in {**ranks, **place}.items()}},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(not hasattr(PipelineStage, "_warmup_forward_vote"), reason="the stages of this torch hold no vote")
def test_a_stage_that_asks_for_pickled_objects_is_refused(tmp_path: Path) -> None:
    port = free_port()
    liar = _started(tmp_path, "-c", _ASKS_FOR_OBJECTS, world_size=2, port=port)
    honest = _started(tmp_path, str(EXAMPLES / "pipeline.py"), rank=1, world_size=2, port=port)
    try:
        assert "another stage asks for pickled objects" in honest.communicate(timeout=60)[1]
    finally:
        for process in (honest, liar):
            process.kill()
            process.communicate()
    assert honest.returncode == 1


def _checkpoint(folder: Path, script: str) -> Path:
    path = folder / {"ddp.py": "runs/ddp/last.pt", "fsdp.py": "runs/fsdp.pt"}[script]
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize("script", ["ddp.py", "fsdp.py"])
def test_a_torch_that_would_run_code_of_a_checkpoint_resumes_from_none(tmp_path: Path, script: str) -> None:
    path = _checkpoint(tmp_path, script)
    torch.save({"position": [0, 0.0, 0.0], "recipe": [1, 2, 3, 4.0], "step": 0}, path)
    run = _started(tmp_path, "-c", _WITH_AN_OLDER_TORCH, str(EXAMPLES / script))
    said = run.communicate(timeout=60)[1]
    assert f"torch 2.9.1 could run code of {path.relative_to(tmp_path)}: resume with torch 2.10" in said
    assert run.returncode == 1


@pytest.mark.parametrize("script", ["ddp.py", "fsdp.py"])
def test_a_pipe_in_the_place_of_a_checkpoint_is_not_waited_for(tmp_path: Path, script: str) -> None:
    os.mkfifo(_checkpoint(tmp_path, script))
    run = _started(tmp_path, str(EXAMPLES / script))
    try:
        run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 1
