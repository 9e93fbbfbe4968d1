"""Each target driven by the controller, in pods of the double of a cluster: the verdict comes here, nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes.double.cluster import made_cluster
from kubernetes.runs import TARGETS, typed

import seatrial

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("target", TARGETS)
def test_a_trial_is_driven_to_a_pass(target: str, tmp_path: Path) -> None:
    if "mpi" in target and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    with made_cluster() as cluster:
        words = typed(["run", f"--kubectl={cluster.kubectl}", f"--out={tmp_path}", "--", "smoke"], target, 1)
        done = subprocess.run(
            [sys.executable, "-m", "seatrial", *words],
            env={**os.environ, "PYTHONPATH": str(Path(seatrial.__file__).parents[1])},
            capture_output=True,
            text=True,
            timeout=55,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "FINAL ACCEPTANCE: PASS\n" in done.stdout
        made = "jobs,jobsets,pytorchjobs,trainjobs,mpijobs,trainingruntimes"
        beside = "pods,services,configmaps,secrets,networkpolicies"
        assert cluster.get(f"{made},{beside}")["items"] == []
    (report,) = tmp_path.glob("*/report.json")
    assert json.loads(report.read_text())["world_size"] == 2
