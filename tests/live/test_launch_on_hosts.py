"""``seatrial launch --on ssh``: scripts on hosts that have Python and torch, and nothing of ours."""

from __future__ import annotations

import re
import shutil
import subprocess
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
    assert (
        'Error: rank 3 on node node1 failed with exit code 5 without a traceback; its last line: "node1 3 1.1/2'
        in errors
    )


def test_a_misspelled_script_is_missing_here_and_there(hosts: Callable[[int], Hosts]) -> None:
    words = ("--hosts", "node0", "--nproc-per-node", "1", "scripts/env_dpp.py")
    code, _, errors, _ = launched(hosts(1), *words)
    assert code == 1
    assert "scripts/env_dpp.py is not on this machine; the nodes start what they have there." in errors
    assert "the script is not on node node0, and not on this machine either: check its path" in errors


def test_all_output_of_a_host_without_the_folder_comes_home(hosts: Callable[[int], Hosts]) -> None:
    """The second host sees an empty disk in the place of the folder of the run."""
    made = hosts(2)
    reports = made[0].home / "reports"
    reports.mkdir(mode=0o777)
    reports.chmod(0o777)
    # Its sshd has its own mounts, and everything that comes by ssh has those.
    sshd = min(made[1].processes())
    covered = [
        "nsenter",
        f"--mount=/proc/{sshd}/ns/mnt",
        "mount",
        "-t",
        "tmpfs",
        "-o",
        "mode=777",
        "tmpfs",
        str(reports),
    ]
    subprocess.run(covered, check=True, timeout=20)
    script = made[0].home / "prints.py"
    script.write_text(
        "import os\n"
        "rank = os.environ['RANK']\n"
        f"print('sees', os.listdir({str(reports)!r}) == [])\n"
        "for number in range(60_000):\n"
        "    print(rank, 'line', number)\n"
    )
    code, _, errors, texts = launched(made, "--hosts", "node0,node1", "--nproc-per-node", "1", "prints.py")
    assert code == 0, errors
    lines = ["".join(f"{rank} line {number}\n" for number in range(60_000)) for rank in (0, 1)]
    assert texts == {"rank0.gen0.log": f"sees False\n{lines[0]}", "rank1.gen0.log": f"sees True\n{lines[1]}"}
    assert "missing" not in errors
