"""docs/launching.md: every example is executed as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from by_day import by_day
from hosts import Hosts
from launchers.mpiruns import MPIRUNS
from launchers.slurm_cluster import slurm_cluster

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "launching.md").read_text(encoding="utf-8")
ACCEPT = (DOCS / "accept.md").read_text(encoding="utf-8")


def blocks(mark: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"^```sh\n# {mark}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def test_every_block_says_where_it_runs() -> None:
    heads = re.findall(r"^```sh\n(.*)$", PAGE, re.MULTILINE)
    assert {head for head in heads if not head.startswith("# runs")} == set()
    assert len(blocks("runs on hosts")) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("line", "".join(blocks("runs by itself")).splitlines())
def test_an_example_for_this_machine(line: str, tmp_path: Path) -> None:
    script = f'seatrial() {{ {sys.executable} -m seatrial "$@"; }}\n{line}\n'
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.hosts
@pytest.mark.mpi
@pytest.mark.parametrize("block", blocks("runs on hosts with mpirun"))
def test_an_example_for_hosts_with_mpirun(block: str, hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    done = made[0].run("bash", "-e", "-c", f"PATH=$PATH:{Path(MPIRUNS[0]).parent}\n{block}")
    assert done.returncode == 0, done.stderr


@pytest.mark.slurm
@pytest.mark.parametrize(
    "line", by_day("".join(blocks("runs on slurm") + blocks("runs on slurm", ACCEPT)).splitlines())
)
def test_an_example_for_slurm(line: str, tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "seatrial").write_text(f'#!/bin/sh\nexec {sys.executable} -m seatrial "$@"\n')
    (commands / "seatrial").chmod(0o755)
    (tmp_path / "cluster").mkdir()
    with slurm_cluster(tmp_path / "cluster") as environ:
        environ["PATH"] = f"{commands}:{environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=55, check=False
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.hosts
@pytest.mark.parametrize("block", by_day(blocks("runs on hosts"), 0, 1, 3))
def test_an_example_for_hosts(block: str, hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    done = made[0].run("bash", "-e", "-c", block)
    assert done.returncode == 0, done.stderr
