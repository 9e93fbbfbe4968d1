"""The command typed as tasks of a real srun."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from launchers.slurm_cluster import slurm_cluster

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize(
    ("where", "source"),
    [
        pytest.param(["-N2", "--ntasks-per-node=1"], "pyz", id="2 nodes, bundle"),
        pytest.param(["-N1", "-n2"], "installed", id="1 node, package", marks=pytest.mark.nightly),
        pytest.param(["-N2", "--ntasks-per-node=1"], "installed", id="2 nodes, package", marks=pytest.mark.nightly),
        pytest.param(["-N1", "-n2"], "pyz", id="1 node, bundle", marks=pytest.mark.nightly),
    ],
)
def test_srun_tasks_are_the_ranks(tmp_path: Path, where: list[str], source: str, pyz: Path) -> None:
    typed = [sys.executable, *([str(pyz)] if source == "pyz" else ["-m", "seatrial"])]
    (tmp_path / "cluster").mkdir()
    out = tmp_path / "reports"
    with slurm_cluster(tmp_path / "cluster") as environ:
        environ["MASTER_ADDR"] = "127.0.0.1"  # n0 and n1 are names that only this cluster knows
        environ["SEATRIAL_TOKEN"] = secrets.token_hex(32)
        command = ["srun", *where, *typed, "run", "smoke", "--json", "--out", str(out)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["acceptance"]["status"] == "PASS"
    assert report["world_size"] == 2
    assert [node["name"] for node in report["nodes"]] == (["n0", "n1"] if "-N2" in where else ["n0", "n0"])
