"""A new check is one new file: it runs, is printed, reported and bundled, and no list needs an edit."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from by_day import by_day

import seatrial

PACKAGE = Path(seatrial.__file__).parent
TOO_MANY_CORES = 1_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a copy of the package that has one more file, and two plans that ask for the new check."""
    shutil.copytree(PACKAGE, tmp_path / "src" / "seatrial", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).with_name("toy.py"), tmp_path / "src" / "seatrial" / "checks" / "toy.py")
    shutil.copy(Path(__file__).with_name("toy_of_agents.py"), tmp_path / "src" / "seatrial" / "checks")
    for name, limits in (("plan.json", {}), ("strict.json", {"min_cores": TOO_MANY_CORES})):
        plan = {"level": "smoke", "checks": ["inventory", "toy"], "toy": limits}
        (tmp_path / name).write_text(json.dumps(plan))
    return tmp_path


def run(folder: Path, *arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


def from_the_copy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "seatrial", *arguments, environ={"PYTHONPATH": str(folder / "src")})


def report_in(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*/report.json")
    report: dict[str, Any] = json.loads(path.read_text())
    return report


TRIAL = ("--only", "toy", "--device", "cpu", "--nproc-per-node", "2", "--out", "out")


def test_a_new_check_is_in_plan_show(folder: Path) -> None:
    shown = from_the_copy(folder, "plan", "show", "-v", "strict.json")
    assert shown.returncode == 0, shown.stderr
    block = shown.stdout.partition("\ntoy (scope: alone)\n")[2]
    assert "toy_cores" in block
    assert f"at least {TOO_MANY_CORES} cores" in block
    assert "plan strict.json:toy.min_cores" in block


def test_a_new_check_names_its_culprits_in_every_report(folder: Path) -> None:
    done = from_the_copy(folder, "run", "strict.json", *TRIAL)
    assert done.returncode == 1, done.stdout + done.stderr
    named = r"rank 1 \([^\n]*, local rank 1 on node \S+\) runs on a host with too few cores"
    assert re.search(named, done.stdout)
    report = report_in(folder / "out")
    found = [(finding["check"], finding["culprit"]["ranks"]) for finding in report["findings"]]
    assert found == [("toy", [0]), ("toy", [1])]
    (page,) = (folder / "out").glob("*/report.html")
    assert re.search(named, page.read_text())
    assert "toy_cores" in page.read_text()


def test_a_new_check_runs_from_the_bundle(folder: Path) -> None:
    bundled = from_the_copy(folder, "bundle", "x.pyz")
    assert bundled.returncode == 0, bundled.stdout + bundled.stderr
    shutil.rmtree(folder / "src")
    done = run(folder, "x.pyz", "run", "plan.json", *TRIAL)
    assert done.returncode == 0, done.stdout + done.stderr
    report = report_in(folder / "out")
    measured = [entry["rank"] for entry in report["measurements"] if entry["name"] == "toy_cores"]
    assert sorted(measured) == [0, 1]


OF_AGENTS = ("--on", "local", "--nodes", "2", "--device", "cpu", "--nproc-per-node", "1", "--out", "out")


@pytest.mark.parametrize("max_nodes", by_day([1, 2]))
def test_a_new_check_of_agents(folder: Path, max_nodes: int) -> None:
    """It runs before the ranks; after its failure the checks that need the network are not started, and say why."""
    plan = {"level": "smoke", "checks": ["inventory", "toy_of_agents", "bootstrap"]}
    (folder / "agents.json").write_text(json.dumps({**plan, "toy_of_agents": {"max_nodes": max_nodes}}))
    done = from_the_copy(folder, "run", "agents.json", *OF_AGENTS)
    report = report_in(folder / "out")
    assert done.returncode == (1 if max_nodes == 1 else 0), done.stdout + done.stderr
    steps = [(step["check"], step["stage"]) for step in report["steps"]]
    agents = [("toy_of_agents", "share"), ("toy_of_agents", "look"), ("inventory", "measure")]
    assert steps == agents + ([] if max_nodes == 1 else [("bootstrap", "store"), ("bootstrap", "world")])
    assert report["missing"] == []
    if max_nodes == 1:
        assert "bootstrap was not started, as toy_of_agents failed" in done.stdout
