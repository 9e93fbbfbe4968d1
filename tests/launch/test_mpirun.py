"""``--on mpirun``: what is asked of an mpirun, and what a rank of it makes of its place."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from seatrial.errors import RequestError
from seatrial.launch.command import Command
from seatrial.launch.job import Processes
from seatrial.launch.launchers import FileCommand, shown_with_files
from seatrial.launch.mpirun import TARGETS
from seatrial.launch.target import Where

(MPIRUN,) = TARGETS


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """Stands for an mpirun: it says which one it is, and starts nothing."""
    path = tmp_path / "mpirun"
    path.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    path.chmod(0o755)
    return path


def where(mpirun: Path | str, **told: Any) -> Where:
    own = {"hosts": None, "hostfile": None, "mpirun": str(mpirun), "mpi_arg": ()}
    fields: dict[str, Any] = {"nproc_per_node": None, "device": "cpu", "backend": "auto", "python": None}
    own |= {name: told.pop(name) for name in list(told) if name in own}
    return Where(target="mpirun", env={}, dry_run=True, own=own, typed=("run",), **{**fields, **told})


def job(asked: Where) -> Processes:
    placement = MPIRUN.resolve(asked)
    return Processes(
        run="x",
        target="mpirun",
        nodes=placement.nodes,
        nproc_per_node=placement.nproc_per_node,
        device=placement.device,
        backend=placement.backend,
        python=placement.python,
        env=placement.env,
        detail=placement.detail,
    )


def rendered(asked: Where) -> FileCommand:
    (command,) = MPIRUN.render(job(asked), control="10.0.0.1:5", token="secret", keep="reports/RUN")
    assert isinstance(command, FileCommand)
    return command


def test_a_rank_for_each_slot_in_the_order_of_the_hosts(stub: Path) -> None:
    command = rendered(where(stub, hosts="a:3,b:1"))
    assert command.nodes == (0, 1, 2, 3)
    (hostfile,) = command.files
    assert command.files[hostfile] == "a slots=3\nb slots=1\n"
    assert command.argv[command.argv.index("--hostfile") + 1] == hostfile == os.path.abspath("reports/RUN/hostfile")
    assert command.argv[-1] == "a:3,b:1"


def test_the_token_stands_on_no_command_line(stub: Path) -> None:
    command = rendered(where(stub, hosts="a:2"))
    assert command.env["SEATRIAL_TOKEN"] == "secret"
    assert not any("secret" in word for word in command.argv)
    passed_on = {command.argv[at + 1] for at, word in enumerate(command.argv) if word == "-x"}
    assert {"SEATRIAL_TOKEN", "SEATRIAL_CONTROL", "SEATRIAL_KEEP", "PYTHONPATH"} <= passed_on


def test_other_hosts_get_our_code_and_this_machine_has_it(stub: Path) -> None:
    command = rendered(where(stub, hosts="a:2"))
    assert command.code == os.path.abspath("reports/RUN/seatrial.pyz")
    assert command.env["PYTHONPATH"].split(":")[0] == command.code
    assert rendered(where(stub, nproc_per_node=2)).code is None
    # MPI's backend does not travel: the hosts have an installation.
    assert rendered(where(stub, hosts="a:2", backend="mpi")).code is None


def test_a_dry_run_shows_what_is_written_and_what_is_started(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = shown_with_files([rendered(where(stub, hosts="a:2"))])
    assert len(told) == 4
    assert told[2].split()[:3] == ["env", "seatrial", "bundle"]
    assert shlex.split(told[3])[0] == "env"
    # As pasted.
    subprocess.run(["sh", "-ec", "\n".join(told[:2])], timeout=20, check=True)
    assert (tmp_path / "reports" / "RUN" / "hostfile").read_text() == "a slots=2\n"
    assert shown_with_files([Command(argv=("true",), env={}, nodes=(0,))]) == ["env true"]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"hosts": "a"}, r"a: how many ranks it gets is not told; write a:M, or add --nproc-per-node M"),
        ({"hosts": "a:2", "nproc_per_node": 3}, "a has 2 slots, and --nproc-per-node asks for 3"),
        ({"hosts": "a;touch x"}, "is no host"),
        ({"hosts": "me@a:2"}, "a: mpirun cannot be told a user or a port for each host; put them into ~/.ssh/config"),
        ({"hosts": "a:2,b:1,a:1"}, "a is named twice"),
        ({"hosts": "a:2", "device": "auto"}, "cannot be looked at from here"),
        ({"hosts": "a:2", "backend": "nccl"}, "NCCL moves data between GPUs only"),
        ({"hosts": "a:1", "backend": "mpi"}, "one rank has nobody to talk to"),
    ],
)
def test_what_cannot_be_done_is_refused(stub: Path, told: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        MPIRUN.resolve(where(stub, **told))


def test_an_mpirun_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"/mpirun is not to be found; name an mpirun with --mpirun"):
        MPIRUN.resolve(where(tmp_path / "mpirun"))


# What a rank executes, up to the agent: a module of that name says what it was told.


@pytest.fixture
def told_by_rank(stub: Path, tmp_path: Path) -> Any:
    package = tmp_path / "stub" / "seatrial" / "agent"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package.parent / "__init__.py").touch()
    (package / "main.py").write_text(
        "import os, sys\nprint(sys.argv[1:], *sorted(f'{k}={v}' for k, v in os.environ.items() if 'SEATRIAL_' in k))\n"
    )
    argv = rendered(where(stub, hosts="a:3,b:1,c:1,d:2", python=sys.executable)).argv
    agent = argv[argv.index(sys.executable) :]

    def run(environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            agent,
            env={"PYTHONPATH": str(package.parents[1]), **environ},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("rank", "local_rank", "local_world_size", "host", "peers"),
    [(0, 0, 3, 0, "b c"), (2, 2, 3, 0, "b c"), (3, 0, 1, 1, "c d"), (6, 1, 2, 3, "a b")],
)
def test_a_rank_learns_its_place(
    told_by_rank: Any, rank: int, local_rank: int, local_world_size: int, host: int, peers: str
) -> None:
    done = told_by_rank({"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank)})
    assert done.stdout == (
        f"[] SEATRIAL_GROUP_RANK={host} SEATRIAL_GROUP_WORLD_SIZE=4 SEATRIAL_LOCAL_RANK={local_rank}"
        f" SEATRIAL_LOCAL_WORLD_SIZE={local_world_size} SEATRIAL_NIC=route SEATRIAL_NODE_RANK={rank}"
        f" SEATRIAL_PEER={peers}\n"
    ), done.stderr


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "3"},
            "the launcher has made rank 3 number 3 of its host, not number 0",
        ),
        ({"PMI_RANK": "3"}, "the launcher has not set OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_LOCAL_RANK"),
    ],
    ids=["all on one machine", "another launcher"],
)
def test_a_rank_that_is_not_where_it_should_be_says_so(told_by_rank: Any, environ: dict[str, str], why: str) -> None:
    done = told_by_rank(environ)
    assert (done.returncode, done.stderr.strip(), done.stdout) == (1, why, "")
