"""``seatrial launch --on ssh``: scripts on hosts that have Python and torch, and nothing of ours."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Hosts

pytestmark = pytest.mark.hosts

SCRIPTS = Path(__file__).parents[1] / "scripts"


def launched(made: Hosts, *words: str) -> tuple[int, str, str, dict[str, str]]:
    """Typed on the first host, in the home that all share: exit code, output, errors, and the files of ranks."""
    home = made[0].home
    shutil.copytree(SCRIPTS, home / "scripts")
    where = ["--on", "ssh", "--python", str(made.python), "--device", "cpu", "--out", str(home / "reports")]
    done = made[0].run(*made.seatrial("launch", *where, *words))
    texts = {path.name: path.read_text() for path in sorted((home / "reports").glob("*/rank*.log"))}
    return done.returncode, done.stdout, done.stderr, texts


def test_a_script_trains_over_two_hosts(hosts: Callable[[int], Hosts]) -> None:
    words = ("--hosts", "node0,node1", "--nproc-per-node", "1", "--env", "PYTHONWARNINGS=ignore", "scripts/env_ddp.py")
    code, output, errors, texts = launched(hosts(2), *words)
    assert code == 0, errors
    digests = re.findall(r"^rank (\d) of 2 has ([0-9a-f]{64})$", "".join(texts.values()), re.MULTILINE)
    assert [rank for rank, _ in digests] == ["0", "1"]
    assert digests[0][1] == digests[1][1]
    assert output == texts["rank0.gen0.log"]
    assert "2 processes on 2 hosts by ssh" in errors


def test_places_and_the_host_that_fails(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    script = made[0].home / "place.py"
    script.write_text(
        "import os, platform, sys\n"
        "print(platform.node(), *sys.argv[1:], os.environ['MASTER_ADDR'], flush=True)\n"
        "sys.exit(5 if os.environ['RANK'] == '3' else 0)"
    )
    where = ("--hosts", "node0,node1", "--nproc-per-node", "2")
    code, output, errors, texts = launched(made, *where, "place.py", "{rank} {node_rank}.{local_rank}/{nnodes}")
    assert code == 1
    assert [texts[f"rank{rank}.gen0.log"] for rank in range(4)] == [
        f"node{rank // 2} {rank} {rank // 2}.{rank % 2}/2 10.77.0.10\n" for rank in range(4)
    ]
    assert output == texts["rank0.gen0.log"]
    assert "Error: rank 3 on node1 failed with exit code 5: node1 3 1.1/2" in errors
