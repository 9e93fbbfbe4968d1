"""``--on mpirun``: the command, the requests that it refuses, and the agent that finds its rank."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from targets.jobs import A_JOB

from seatrial import folders
from seatrial.agent.mpi_rank import environ_of, refuse_full_host
from seatrial.bundle import bundle
from seatrial.errors import RequestError
from seatrial.probe import capacity
from seatrial.targets.command import Command
from seatrial.targets.job import Processes
from seatrial.targets.launcher_messages import reason_of_agent, refused
from seatrial.targets.launcher_process import FILE_OF_HOSTS, FileCommand, Launcher, shown_with_files
from seatrial.targets.mpirun.mpirun_target import TARGETS
from seatrial.targets.target import TargetRequest

(MPIRUN,) = TARGETS
_OPEN = "mpirun (Open MPI) 5.0.11"
_INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20251014"


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A stub of mpirun that prints a version and starts nothing."""
    return _stub(tmp_path, _OPEN)


def _stub(folder: Path, version: str) -> Path:
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return path


def request(mpirun: Path | str, **values: Any) -> TargetRequest:
    own = {"hosts": None, "hostfile": None, "mpirun": str(mpirun), "mpi_arg": (), "oversubscribe": False}
    fields: dict[str, Any] = {"nproc_per_node": None, "device": "cpu", "backend": "auto", "python": None}
    own |= {name: values.pop(name) for name in list(values) if name in own}
    return TargetRequest(target="mpirun", env={}, dry_run=True, own=own, **{**fields, "typed": ("run",), **values})


def job(target_request: TargetRequest) -> Processes:
    placement = MPIRUN.resolve(target_request)
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


def rendered(target_request: TargetRequest) -> FileCommand:
    (command,) = MPIRUN.render(job(target_request), control="10.0.0.1:5", token="secret", keep="reports/RUN")
    assert isinstance(command, FileCommand)
    return command


def test_a_rank_for_each_slot_in_the_order_of_the_hosts(stub: Path) -> None:
    command = rendered(request(stub, hosts="a:3,b:1"))
    assert command.nodes == (0, 1, 2, 3)
    assert command.hosts == "a slots=3\nb slots=1\n"
    assert command.argv[command.argv.index("--hostfile") + 1] == FILE_OF_HOSTS
    assert command.argv[-1] == "a:3,b:1"


def _type_in(folder: Path, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    folder.chmod(mode)
    monkeypatch.chdir(folder)


@pytest.mark.parametrize("hosts", [None, "a:2"], ids=str)
@pytest.mark.parametrize(
    "version", [_INTEL, _OPEN, "HYDRA build details:\n Version: 4.2"], ids=["intel", "open", "mpich"]
)
@pytest.mark.parametrize(("mode", "at"), [(0o755, None), (0o775, "/")])
def test_no_mpirun_starts_where_others_can_put_files(
    version: str, mode: int, at: str | None, hosts: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intel MPI takes what ``mpiexec.conf`` says there, such as -genv LD_PRELOAD; Open MPI without HOME looks there."""
    _type_in(tmp_path / "typed", mode, monkeypatch)
    command = rendered(request(_stub(tmp_path, version), hosts=hosts, **({} if hosts else {"nproc_per_node": 1})))
    assert command.folder == at
    assert shown_with_files([command])[-1].startswith(f"env -C {at} ") == (at is not None)


def test_a_version_is_asked_for_in_the_root(tmp_path: Path) -> None:
    """Intel MPI would start what an ``mpiexec.conf`` of the working folder names, with --version as its argument."""
    launcher = _stub(tmp_path, _INTEL)
    launcher.write_text(f"{launcher.read_text()}pwd > '{tmp_path}/at'\n")
    MPIRUN.resolve(request(launcher, hosts="a:2"))
    assert (tmp_path / "at").read_text() == "/\n"


@pytest.mark.parametrize("version", [_INTEL, _OPEN], ids=["intel", "openmpi"])
@pytest.mark.parametrize("mode", [0o755, 0o775], ids=oct)
def test_no_agent_starts_where_others_can_put_libraries(
    version: str, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI 4 makes of LD_LIBRARY_PATH= an empty entry, with which the loader looks into the working folder."""
    _type_in(typed := tmp_path / "typed", mode, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", "src")
    command = rendered(request(_stub(tmp_path, version), nproc_per_node=1))
    if mode == 0o775:
        assert command.argv[command.argv.index("--wdir" if version == _OPEN else "-wdir") + 1] == "/"
        assert command.env["PYTHONPATH"].split(":")[-1] == str(typed / "src")
        assert json.loads(command.env["SEATRIAL_FOLDER"])["path"] == str(typed)
    else:
        assert not {"--wdir", "-wdir"} & {*command.argv}
        assert "SEATRIAL_FOLDER" not in command.env


def test_more_hosts_than_a_command_line_takes_are_refused(stub: Path, tmp_path: Path) -> None:
    """Linux takes 128 KiB in one word: mpirun was "a bug in seatrial", or did not start its ranks."""
    hostfile = tmp_path / "hosts"
    hostfile.write_text("".join(f"127.0.{number // 256}.{number % 256}:1\n" for number in range(10_500)))
    with pytest.raises(RequestError, match=r"the names of 10500 hosts need a command line of \d+ KiB, and with mpirun"):
        rendered(request(stub, hostfile=hostfile))


@pytest.mark.parametrize("version", ["HYDRA build details:\n Version: 5.0.2", "Intel(R) MPI Library, Version 2021.18"])
def test_the_hostfile_of_hydra_has_no_ipv6_address(stub: Path, version: str) -> None:
    """It takes all up to the first colon as the name: fd00::1:2 would be a host fd00."""
    stub.write_text(f"#!/bin/sh\necho '{version}'\n")
    with pytest.raises(RequestError, match=r"fd00::1: the hostfile of .* takes no IPv6 address; give the host a name"):
        MPIRUN.resolve(request(stub, hosts="a:2,[fd00::1]:2"))


def test_a_folder_whose_name_is_no_text_is_none_of_our_bugs(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert rendered(request(stub, hosts="a:2")).argv


def test_open_mpi_takes_ipv6_addresses(stub: Path) -> None:
    assert rendered(request(stub, hosts="[fd00::1]:2")).hosts == "fd00::1 slots=2\n"


def test_the_folder_of_a_run_behind_a_link_and_dots(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel follows the link first: ``link/..`` is the folder above the one that the link leads to."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "disk/data").mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk/data")
    (folder := tmp_path / "disk/RUN").mkdir()
    made = job(request(stub, hosts="a:2"))
    (command,) = MPIRUN.render(made, control="10.0.0.1:5", token="secret", keep="link/../RUN")
    assert isinstance(command, FileCommand)
    assert command.bundle_path is not None
    paths = [command.env["SEATRIAL_KEEP"] + "/any", command.bundle_path]
    assert all(os.path.isabs(path) and os.path.samefile(os.path.dirname(path), folder) for path in paths)


def test_an_exchanged_hostfile_is_never_read(stub: Path, tmp_path: Path) -> None:
    """Whoever can rename in --out would else have mpirun start agents, with the token, on hosts of theirs."""
    folder = tmp_path / "RUN"
    folder.mkdir()
    made = job(request(stub, hosts="a:2"))
    exchange = f"rm -f {folder}/hostfile; echo evil > {folder}/hostfile"
    stub.write_text(f'#!/bin/sh\n{exchange}\nwhile [ "$1" != --hostfile ]; do shift; done; cat "$2" "$2"\n')
    (command,) = MPIRUN.render(made, control="10.0.0.1:5", token="secret", keep=str(folder))
    launcher = Launcher(lambda line: None)
    launcher.submit([command], folder, (), lambda *unused: None)
    assert launcher.processes[0].wait(10.0) == 0
    assert launcher.cleanup() == []
    assert (folder / "node0.log").read_text() == "a slots=2\n" * 2


def _run(mpirun: Path, folder: Path, said: list[str]) -> str:
    """Start a stub for two ranks on this machine until it has ended; return its output."""
    (command,) = MPIRUN.render(job(request(mpirun, nproc_per_node=2)), control="c:5", token="t", keep=str(folder))
    launcher = Launcher(said.append)
    launcher.submit([command], folder, (), lambda *unused: None)
    assert launcher.processes[0].wait(10.0) == 0
    assert launcher.cleanup() == []
    return (folder / "node0.log").read_text()


@pytest.mark.parametrize(
    ("version", "variable"),
    [("4.1.4", "OMPI_MCA_orte_local_tmpdir_base"), ("5.0.11", "PRTE_MCA_prte_local_tmpdir_base")],
)
def test_the_session_of_open_mpi_lies_in_a_folder_of_the_user(
    stub: Path, version: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbors could foresee its name below TMPDIR, and mpirun followed a link there."""
    (tmp := tmp_path / "tmp").mkdir()
    tmp.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp))
    segments = "OMPI_MCA_btl_vader_backing_directory"
    look = f'mkdir ${variable}/ompi.x; for f in ${variable} ${segments}; do stat -c "%a %n" $f; done'
    stub.write_text(f"#!/bin/sh\necho 'mpirun (Open MPI) {version}'; [ $1 = --version ] && exit\n{look}\n")
    said: list[str] = []
    lines = _run(stub, tmp_path, said).splitlines()
    assert [line.partition("/seatrial-")[0] for line in lines[1:]] == [f"700 {tmp}", "700 /dev/shm"]
    assert (said, list(tmp.iterdir())) == ([], [])
    assert not os.path.exists(lines[2].split()[1])


def test_ranks_of_open_mpi_4_do_not_see_the_bases_of_its_sessions(tmp_path: Path) -> None:
    """Its daemons give them the one they have chosen, and MPI_Init refuses that beside the choices."""
    mpirun = _stub(tmp_path, "mpirun (Open MPI) 4.1.4")
    argv = rendered(request(mpirun, nproc_per_node=1)).argv
    first = argv.index("/bin/sh")
    bases = [f"OMPI_MCA_orte_{which}_tmpdir_base" for which in ("local", "remote")]
    seen = (*argv[first : argv.index("agent") + 1], "env")
    output = subprocess.run(seen, env={**dict.fromkeys(bases, "/x"), "OTHER": "/x"}, stdout=subprocess.PIPE, check=True)
    assert b"OTHER=/x" in output.stdout
    assert b"tmpdir_base" not in output.stdout


def test_without_a_folder_of_the_user_mpirun_starts_with_a_note(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, whose TMPDIR is open to all that run there."""
    (tmp := tmp_path / "tmp").mkdir()
    tmp.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp))
    monkeypatch.setattr(folders, "TEMPORARY", ())
    variable = "PRTE_MCA_prte_local_tmpdir_base"
    stub.write_text(f"#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11' ${variable}\n")
    said: list[str] = []
    output = _run(stub, tmp_path, said)
    assert output == "mpirun (Open MPI) 5.0.11\n"
    (note,) = said
    assert note.startswith(f"seatrial: other users may change files of the launcher: there is no place for {variable}")
    monkeypatch.setenv(variable, "/set")
    output = _run(stub, tmp_path, said)
    assert output.endswith(" /set\n")
    assert said == [note]


@pytest.mark.parametrize(
    ("version", "together"),
    [("mpirun (Open MPI) 5.0.11", False), ("HYDRA build details:\\n    Version: 4.1", True)],
    ids=["Open MPI", "MPICH"],
)
def test_the_events_say_whether_the_launcher_ends_all_with_one(stub: Path, version: str, *, together: bool) -> None:
    stub.write_text(f"#!/bin/sh\nprintf '{version}\\n'\n")
    assert MPIRUN.resolve(request(stub, hosts="a:1,b:1")).ends_together == together
    assert ("ends_together" in replace(A_JOB, ends_together=together).to_json()) == together


def test_the_token_is_on_no_command_line(stub: Path) -> None:
    command = rendered(request(stub, hosts="a:2"))
    assert command.env["SEATRIAL_TOKEN"] == "secret"
    assert not any("secret" in word for word in command.argv)
    exported = {command.argv[at + 1] for at, word in enumerate(command.argv) if word == "-x"}
    assert {"SEATRIAL_TOKEN", "SEATRIAL_CONTROL", "SEATRIAL_KEEP"} <= exported


def test_only_other_hosts_get_the_bundle(stub: Path) -> None:
    command = rendered(request(stub, hosts="a:2"))
    assert command.bundle_path == os.path.abspath("reports/RUN/seatrial.pyz")
    digest = hashlib.sha256(bundle()).hexdigest()
    assert command.argv[-10:-4] == (digest, "-", command.bundle_path, "--", "-m", "seatrial.agent.mpi_rank")
    assert command.bundle_path not in command.env.get("PYTHONPATH", "")
    assert rendered(request(stub, nproc_per_node=2)).bundle_path is None
    # The backend of MPI is not in the bundle: the hosts have an installation.
    assert rendered(request(stub, hosts="a:2", backend="mpi")).bundle_path is None


def test_the_lines_of_a_dry_run_can_be_pasted(stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where somebody else has made the folder that they name: links in it lead to files of ours."""
    monkeypatch.chdir(tmp_path)
    (private := tmp_path / "private").write_text("precious")
    (tmp_path / "reports/RUN").mkdir(parents=True)
    (tmp_path / "reports/RUN/hostfile").symlink_to(private)
    command = rendered(request(stub, hosts="a:2,b:1"))
    lines = shown_with_files([command])
    assert len(lines) == 4
    assert lines[2].split()[:3] == ["env", "seatrial", "bundle"]
    stub.write_text('#!/bin/sh\nstat -c %a "$(dirname "$2")"; exec cat "$2"\n')
    pasted = "\n".join([*lines[:2], *lines[3:]])
    for shell in ("bash", "sh"):
        said = subprocess.check_output([shell, "-c", pasted], env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=20)
        assert said.decode() == f"700\n{command.hosts}"
        # Else mpirun took its hosts from /hosts.
        nowhere = {**os.environ, "TMPDIR": str(tmp_path / "none")}
        done = subprocess.run([shell, "-c", pasted], env=nowhere, capture_output=True, timeout=20, check=False)
        assert (done.returncode, done.stdout) == (1, b"")
    assert private.read_text() == "precious"


def test_the_lines_of_a_dry_run_have_no_control_characters() -> None:
    command = FileCommand(argv=("true",), env={"SEATRIAL_KEEP": "a\x1b[2J\nb"}, nodes=(0,), hosts="\x1b[2J\n")
    assert [line for line in shown_with_files([command]) if not line.isprintable()] == []
    assert shown_with_files([Command(argv=("true",), env={}, nodes=(0,))]) == ["env true"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hosts": "a"}, r"a: the number of its ranks is missing; write a:M, or add --nproc-per-node M"),
        ({"hosts": "a:2", "nproc_per_node": 3}, "a has 2 slots, and --nproc-per-node requests 3"),
        ({"hosts": "a;touch x"}, "is no host"),
        ({"hosts": "me@a:2"}, "a: mpirun takes no user or port for a single host; set them in ~/.ssh/config"),
        ({"hosts": "a:2,b:1,a:1"}, "a is named twice"),
        ({"hosts": "a:2", "device": "auto"}, "cannot be read from here"),
        ({"hosts": "a:2", "backend": "nccl"}, "NCCL moves data between GPUs only"),
        ({"hosts": "a:1", "backend": "mpi"}, "one rank alone cannot communicate; request 2 or more"),
    ],
)
def test_an_impossible_request_is_refused(stub: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        MPIRUN.resolve(request(stub, **values))


@pytest.mark.parametrize(
    ("token", "told"),
    [
        ("munge", r"mpirun sends the token readable to other hosts, .* use --on slurm or"),
        ("MUNGE", "SEATRIAL_TOKEN has 5 characters"),
    ],
)
def test_munge_is_refused_where_it_cannot_carry_the_token(
    token: str, told: str, stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEATRIAL_TOKEN", token)
    with pytest.raises(RequestError, match=told):
        MPIRUN.resolve(request(stub, hosts="a:2,b:2"))
    assert MPIRUN.resolve(request(stub)).nodes


def test_a_missing_mpirun_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"/mpirun was not found; give the path of an mpirun with --mpirun"):
        MPIRUN.resolve(request(tmp_path / "mpirun"))


@pytest.mark.parametrize("version", [_INTEL, _OPEN], ids=["intel", "openmpi"])
def test_an_mpirun_whose_folder_would_be_two_entries_of_path_is_refused(version: str, tmp_path: Path) -> None:
    """Another user can make the first one, ``exp-15``, and put a program there."""
    (folder := tmp_path / "exp-15:02").mkdir()
    with pytest.raises(RequestError, match=r"exp-15:02/mpirun: .* give the path of an mpirun elsewhere"):
        MPIRUN.resolve(request(_stub(folder, version), hosts="a:2"))


# The rank of an agent


def identity_of(environ: dict[str, str]) -> dict[str, str]:
    return environ_of(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "a:3,b:1,c:1,d:2")


@pytest.mark.parametrize(
    ("rank", "local_rank", "local_world_size", "host", "peers"),
    [(0, 0, 3, 0, "b c"), (2, 2, 3, 0, "b c"), (3, 0, 1, 1, "c d"), (6, 1, 2, 3, "a b")],
)
def test_an_agent_finds_its_rank(rank: int, local_rank: int, local_world_size: int, host: int, peers: str) -> None:
    assert identity_of({"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank)}) == {
        "SEATRIAL_NODE_RANK": str(rank),
        "SEATRIAL_LOCAL_RANK": str(local_rank),
        "SEATRIAL_LOCAL_WORLD_SIZE": str(local_world_size),
        "SEATRIAL_GROUP_RANK": str(host),
        "SEATRIAL_GROUP_WORLD_SIZE": "4",
        "SEATRIAL_PEER": peers,
        "SEATRIAL_NIC": "route",
    }


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_LOCAL_RANK": "2"},
            "the launcher has started rank 7 of a job with 7 ranks; see that it heeds the number it is given",
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "3"},
            "the launcher has made rank 3 number 3 of its host, not number 0; see that it heeds the hosts it is given",
        ),
        (
            {"PMI_RANK": "3"},
            "the launcher has not set OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_LOCAL_RANK; see that it heeds the hosts"
            " it is given",
        ),
    ],
    ids=["too many", "all on one machine", "another launcher"],
)
def test_a_misplaced_rank_reports_it(stub: Path, environ: dict[str, str], message: str) -> None:
    argv = rendered(request(stub, hosts="a:3,b:1,c:1,d:2", backend="mpi", python=sys.executable)).argv
    agent = argv[argv.index(sys.executable) :]
    done = subprocess.run(agent, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (3, f"seatrial agent: {message}\n", "")
    assert reason_of_agent(done.stderr) == message


@pytest.mark.parametrize(
    ("values", "counted"),
    [
        ({"hosts": "a:3"}, "torch"),
        ({"hosts": "a:3", "typed": ("launch",)}, "script"),
        ({"hosts": "a:3", "device": "cuda"}, "any"),
        ({"hosts": "a:3", "oversubscribe": True}, "any"),
        ({"nproc_per_node": 2}, "any"),
    ],
)
def test_hosts_count_the_cpu_ranks_of_theirs(stub: Path, values: dict[str, Any], counted: str) -> None:
    """This machine was counted before, a rank with a GPU needs no core of its own, and the user may overrule it."""
    assert rendered(request(stub, **values)).argv[-4] == counted


def test_a_host_refuses_more_ranks_than_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "usable_cores", lambda: 2)
    monkeypatch.setattr(capacity, "memory_available", lambda: 64_000_000_000)
    place = {"SEATRIAL_GROUP_RANK": "1", "SEATRIAL_LOCAL_WORLD_SIZE": "33"}
    for counted in ("torch", "script"):
        with pytest.raises(RequestError, match="b:33: 33 processes on 2 cores; give at most 32, or --oversubscribe"):
            refuse_full_host(counted, place, "a:1,b:33")
    refuse_full_host("any", place, "a:1,b:33")
    refuse_full_host("torch", {**place, "SEATRIAL_GROUP_RANK": "0", "SEATRIAL_LOCAL_WORLD_SIZE": "1"}, "a:1,b:33")


def test_a_refusal_of_a_host_is_one_of_the_request(stub: Path) -> None:
    """The agent itself says so, in the words that the controller looks for."""
    hosts = "a:1,b:99999"
    argv = rendered(request(stub, hosts="a:1,b:2", backend="mpi", python=sys.executable)).argv[:-1]
    agent = (*argv[argv.index(sys.executable) :], hosts)
    environ = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    done = subprocess.run(agent, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert refused(done.stderr).startswith('an agent refuses: "b:99999: 99999 processes on ')
    assert reason_of_agent(done.stderr) == ""


def test_a_rank_from_the_bundle_leaves_nothing_behind(stub: Path, tmp_path: Path) -> None:
    command = rendered(request(stub, hosts="a:3,b:1", python=sys.executable))
    assert command.bundle_path is not None
    bundle_path = tmp_path / "shared" / "seatrial.pyz"
    bundle_path.parent.mkdir()
    bundle_path.write_bytes(bundle())
    argv = [str(bundle_path) if word == command.bundle_path else word for word in command.argv]
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        argv[argv.index(sys.executable) :],
        env={"TMPDIR": str(tmp_path / "tmp")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("seatrial agent: the launcher has not set OMPI_COMM_WORLD_RANK")
    assert list((tmp_path / "tmp").iterdir()) == []
