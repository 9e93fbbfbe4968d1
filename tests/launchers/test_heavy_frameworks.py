"""The heavier frameworks under ``seatrial launch``. CI leaves them out: 310 MB, and DeepSpeed compiles C++ for minutes.

How to run them stands in heavy-frameworks.txt. PyTorch's own examples are no package: clone them and start
``seatrial launch --nproc-per-node 2 distributed/ddp-tutorial-series/multigpu_torchrun.py 1 1`` on a machine with GPUs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launchers.frameworks import LAUNCH, SCRIPTS, check_ranks, launched

pytestmark = pytest.mark.heavy_frameworks

FOLDER = os.environ.get("SEATRIAL_TEST_HEAVY_FRAMEWORKS", "")


@pytest.mark.parametrize(
    "words",
    [("lightning_trainer.py", "1", "2"), ("transformers_trainer.py",)],
    ids=["Lightning Trainer", "Hugging Face Trainer"],
)
def test_a_trainer_finds_its_ranks(tmp_path: Path, words: tuple[str, ...]) -> None:
    script, *arguments = words
    output = launched(
        tmp_path, *LAUNCH, "--nproc-per-node", "2", str(SCRIPTS / script), *arguments, frameworks=FOLDER, timeout_s=110
    )
    check_ranks(output, world_size=2)


@pytest.mark.timeout(900)
def test_deepspeed_on_cpus(tmp_path: Path) -> None:
    environ = {
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"),  # a build that was killed leaves a lock there for ever
        "PATH": os.pathsep.join([f"{FOLDER}/bin", os.environ["PATH"]]),
    }
    output = launched(
        tmp_path,
        *LAUNCH,
        "--nproc-per-node",
        "2",
        str(SCRIPTS / "deepspeed_cpu.py"),
        env=environ,
        frameworks=FOLDER,
        timeout_s=880,
    )
    check_ranks(output, world_size=2)
