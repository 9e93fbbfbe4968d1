"""Where agents on other hosts look for programs, libraries and modules: never in the folder in which they start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from by_day import by_day

from seatrial.agent import mpi_rank
from seatrial.start import absolute_entries
from seatrial.targets.command import Command
from seatrial.targets.job import Processes
from seatrial.targets.launcher_process import write_bundle
from seatrial.targets.mpirun.implementations import Kind, MpiLauncher
from seatrial.targets.mpirun.mpirun_target import _Mpirun
from seatrial.targets.registry import TARGETS
from seatrial.targets.slurm.slurm_target import _Slurm

_SLURM = _Slurm(
    requested=(),
    extra_args=(),
    container_image=None,
    partition=None,
    allocation="1",
    queue_timeout_s=1.0,
    by_munge=False,
)


def mpirun(*, kind: Kind = "openmpi", here: bool = False, installed: bool = False) -> _Mpirun:
    return _Mpirun(
        launcher=MpiLauncher(path="/opt/bin/mpirun", kind=kind, version="5"),
        hosts=(("a", 1), ("b", 1)),
        extra_args=(),
        only_this_machine=here,
        counted="any",
        installed=installed,
    )


def rendered(target: str, detail: object, keep: str = "/shared", python: str = sys.executable) -> Command:
    job = Processes(
        run="x",
        target=target,
        nodes=2,
        nproc_per_node=1,
        device="cpu",
        backend="gloo",
        python=python,
        env={},
        detail=detail,
    )
    (command,) = TARGETS[target].render(job, control="127.0.0.1:1", token="t" * 32, keep=keep)
    return command


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PYTHONPATH", ":/a", "/a"),
        ("PYTHONPATH", "/a::/b:", "/a:/b"),
        ("PYTHONPATH", "lib", ""),
        ("LD_LIBRARY_PATH", "/a;;/b", "/a:/b"),
        ("LD_PRELOAD", "libx.so ./y.so", "libx.so"),
        ("PATH", ".:/bin", "/bin"),
        ("PATH", "", os.defpath),
        ("PYTHONUSERBASE", "up:here", ""),
        ("PYTHONHOME", ".", ""),
        ("PYTHONHOME", "rel:/abs", ""),  # /abs alone would mean both
        ("PYTHONHOME", "/abs:rel", ""),
        ("LD_LIBRARY_PATH", "$ORIGIN/../lib::${ORIGIN}:$LIB/x", "$ORIGIN/../lib:${ORIGIN}"),
        ("LD_LIBRARY_PATH", "${ORIGIN:$ORIGINAL/lib:x/$ORIGIN", ""),
        ("LD_PRELOAD", "$ORIGIN/libx.so y/z.so", "$ORIGIN/libx.so"),
        ("PATH", "$ORIGIN/bin:/bin", "/bin"),
        ("CPATH", ":/usr/local/cuda/include", "/usr/local/cuda/include"),
        ("LIBRARY_PATH", "/a:", "/a"),
    ],
)
def test_entries_that_mean_the_working_folder_are_left_out(name: str, value: str, expected: str) -> None:
    assert absolute_entries({name: value, "HOME": "."}) == {name: expected}


@pytest.mark.parametrize(
    "kept",
    [
        {"PYTHONPATH": "/a:/b"},
        {"PYTHONPATH": ""},
        {"PYTHONHOME": "/a:/b"},
        {"LD_PRELOAD": "libx.so /y.so"},
        {"LD_PRELOAD": "${ORIGIN}/../lib/x.so"},
        {"LD_LIBRARY_PATH": "$ORIGIN/../lib:/a"},
        {"PYTHONUSERBASE": "/a:b"},
        {},
    ],
    ids=str,
)
def test_other_values_stay_as_they_are(kept: dict[str, str]) -> None:
    assert absolute_entries(kept) == {}


def test_the_loader_of_musl_takes_origin_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(os.confstr_names, "CS_GNU_LIBC_VERSION")
    assert absolute_entries({"LD_LIBRARY_PATH": "$ORIGIN/lib:/a"}) == {"LD_LIBRARY_PATH": "/a"}


@pytest.mark.parametrize("path", by_day([":/nowhere", "lib", "/nowhere::/none", "."]))
@pytest.mark.parametrize(("target", "detail"), [("slurm", _SLURM), ("mpirun", mpirun())], ids=["slurm", "mpirun"])
def test_an_agent_imports_nothing_from_the_folder_of_a_neighbor(
    target: str, detail: object, path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The launcher goes to another folder where a host lacks that of the user."""
    neighbor, keep = tmp_path / "neighbor", tmp_path / "keep"
    for folder in (neighbor / "lib", keep):
        folder.mkdir(parents=True)
    for folder in (neighbor, neighbor / "lib"):
        for module in ("sitecustomize", "contextlib", "hashlib"):
            (folder / f"{module}.py").write_text("raise SystemExit('code of a neighbor')\n")
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    command = rendered(target, detail, str(keep))
    write_bundle(command)
    words = command.argv[command.argv.index(sys.executable) :]
    # Slurm and hydra hand on what they have; a host may also have a value of its own.
    for handed_on in (command.env, {name: text for name, text in command.env.items() if name != "PYTHONPATH"}):
        environ = {**os.environ, **handed_on, "SEATRIAL_NODE_RANK": "none", "TMPDIR": str(tmp_path)}
        done = subprocess.run(words, cwd=neighbor, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert "neighbor" not in done.stderr
        assert "seatrial" in done.stderr, "the agent itself says that its environment is wrong"


@pytest.mark.parametrize(("target", "detail"), [("slurm", _SLURM), ("mpirun", mpirun())], ids=["slurm", "mpirun"])
def test_an_agent_gets_the_time_for_which_its_controller_waits(
    target: str, detail: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SEATRIAL_JOIN_TIMEOUT_S", "900")
    assert rendered(target, detail, str(tmp_path)).env["SEATRIAL_JOIN_TIMEOUT_S"] == "900"


@pytest.mark.parametrize("installed", [False, True])
def test_mpirun_loads_no_library_from_the_folder_of_a_neighbor(
    installed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Open MPI 4 puts its own folder before the LD_LIBRARY_PATH of a host, which leaves an empty entry where it has
    none."""
    neighbor, keep = tmp_path / "neighbor", tmp_path / "keep"
    for folder in (neighbor, keep):
        folder.mkdir()
    neighbor.chmod(0o1777)
    (neighbor / "libc.so.6").write_text("what loads it does not start")
    monkeypatch.chdir(neighbor)
    command = rendered("mpirun", mpirun(installed=installed), str(keep))
    write_bundle(command)
    argv = command.argv
    start_in = argv[argv.index("--wdir") + 1] if "--wdir" in argv else neighbor
    environ = {**os.environ, **command.env, "LD_LIBRARY_PATH": "/usr/lib:", "TMPDIR": str(tmp_path)}
    words = argv[argv.index("/bin/sh") :]
    done = subprocess.run(words, cwd=start_in, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.startswith("seatrial agent: the launcher has not set OMPI_COMM_WORLD_RANK")


@pytest.mark.parametrize(
    ("mode", "is_open", "enters"), [(0o755, False, True), (0o1777, False, False), (0o1777, True, True)]
)
def test_an_agent_of_mpirun_enters_the_folder_of_the_user_only(
    mode: int, is_open: bool, enters: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home, folder = tmp_path / "home", tmp_path / "job"
    for each in (home, folder):
        each.mkdir()
    folder.chmod(mode)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir("/")
    mpi_rank.enter(
        json.dumps({"path": str(folder), "owners": [], "mounters": [], "open_places": [str(folder)] * is_open})
    )
    assert Path.cwd() == (folder if enters else home)


def test_an_agent_of_mpirun_begins_again_before_it_enters_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader of this process has read LD_LIBRARY_PATH, and would look in that folder."""
    begun: list[dict[str, str]] = []

    def begin(program: str, words: list[str], environ: dict[str, str]) -> None:
        begun.append(environ)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", begin)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib:")
    monkeypatch.setenv("SEATRIAL_FOLDER", "{}")
    with pytest.raises(SystemExit):
        mpi_rank.main()
    assert [environ["LD_LIBRARY_PATH"] for environ in begun] == ["/opt/lib"]


def test_it_begins_again_only_once(tmp_path: Path) -> None:
    """A module that Python loads at each start can set the entry each time."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['LD_LIBRARY_PATH'] = '/opt/lib:'\n")
    place = json.dumps({"path": str(tmp_path), "owners": [], "mounters": [], "open_places": []})
    environ = {"PYTHONPATH": str(tmp_path), "SEATRIAL_FOLDER": place, "HOME": str(tmp_path)}
    argv = [sys.executable, "-m", "seatrial.agent.mpi_rank", "any", "NO_RANK", "NO_LOCAL_RANK", "a:1"]
    done = subprocess.run(argv, cwd="/", env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr.startswith("seatrial agent: the launcher has not set NO_RANK")


def test_afterwards_it_goes_on_without_these_entries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib:")
    monkeypatch.setenv("SEATRIAL_BEGUN_AGAIN", "yes")
    monkeypatch.setenv(
        "SEATRIAL_FOLDER", json.dumps({"path": str(tmp_path), "owners": [], "mounters": [], "open_places": []})
    )
    monkeypatch.setattr(sys, "argv", ["", "any", "NO_RANK", "NO_LOCAL_RANK", "a:1"])
    monkeypatch.delattr(os, "execve")
    with pytest.raises(SystemExit):
        mpi_rank.main()
    assert os.environ["LD_LIBRARY_PATH"] == "/opt/lib"
    assert "SEATRIAL_BEGUN_AGAIN" not in os.environ


@pytest.mark.parametrize("kind", ["openmpi", "mpich", "intel"])
def test_a_folder_of_the_users_own_arguments_counts(kind: Kind) -> None:
    argv = rendered("mpirun", replace(mpirun(kind=kind), extra_args=("-wdir", "/data"))).argv
    assert [argv[at + 1] for at, word in enumerate(argv) if word.lstrip("-") == "wdir"] == ["/data"]
    assert "/" in rendered("mpirun", mpirun(kind=kind)).argv
    assert "/" not in rendered("mpirun", mpirun(kind=kind, here=True)).argv


def test_a_python_without_a_folder_is_looked_for_in_path_only(tmp_path: Path) -> None:
    """Where PATH has none, srun takes the one of the folder where it starts the agent: in /tmp that of anybody."""
    (tmp_path / "python-of-a-neighbor").write_text("#!/bin/sh\necho code of a neighbor\n")
    (tmp_path / "python-of-a-neighbor").chmod(0o755)
    argv = rendered("slurm", _SLURM, python="python-of-a-neighbor").argv
    words = argv[argv.index("python-of-a-neighbor") - 1 :]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False)
    assert (words[0], done.returncode, done.stdout) == ("/usr/bin/env", 127, "")
    assert "/usr/bin/env" not in rendered("slurm", _SLURM).argv


@pytest.mark.parametrize(
    ("target", "detail"),
    [("slurm", _SLURM), ("mpirun", mpirun(kind="intel")), ("mpirun", mpirun(installed=True))],
    ids=["slurm", "hydra", "installed"],
)
def test_what_a_launcher_hands_on_names_no_working_folder(
    target: str, detail: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, ":/mine:.")
    environ = rendered(target, detail).env
    for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH"):
        entries = environ[name].split(":")
        assert "/mine" in entries, name
        assert all(map(os.path.isabs, entries)), name
    monkeypatch.setenv("PYTHONPATH", "lib")
    assert rendered(target, detail).env["PYTHONPATH"] == "", "else the launcher would hand on the old one"


def test_on_this_machine_agents_find_what_the_controller_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "src")
    assert rendered("mpirun", mpirun(here=True, installed=True)).env["PYTHONPATH"] == "src"
