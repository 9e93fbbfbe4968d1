"""ssh among hostile neighbors: no key of the user on a node, no other connection of the user, no file of a home."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launchers.gather import gathered, job_of, where
from neighbor_mount import NEIGHBOR, mounted
from targets.ssh_double import write_ssh_double

from seatrial.errors import SeatrialError
from seatrial.start import trusted_users, way_to
from seatrial.targets import processes
from seatrial.targets.command import Command, Feed
from seatrial.targets.hosts import Host
from seatrial.targets.processes import Agents
from seatrial.targets.ssh import bootstrap, ssh_target
from seatrial.targets.ssh.connection import ssh_argv
from seatrial.targets.ssh.ssh_target import TARGETS

(SSH,) = TARGETS
CONFIG = """
IgnoreUnknown UseKeychain
Host *
  UseKeychain yes
  ForwardAgent yes
  ForwardX11 yes
  ForwardX11Trusted yes
  GSSAPIDelegateCredentials yes
  ControlMaster auto
  ControlPath {folder}/mux-%C
  ControlPersist 10m
  RemoteCommand echo remote command
  RequestTTY force
  StdinNull yes
  ForkAfterAuthentication yes
  SessionType none
  PermitLocalCommand yes
  LocalCommand touch {folder}/local-command
  LocalForward 127.0.0.1:1 127.0.0.1:2
  DynamicForward 3
  Tunnel yes
  UpdateHostKeys yes
  AddKeysToAgent yes
  BatchMode no
  ServerAliveInterval 0
"""
"""A usual configuration, in which each line breaks or endangers a run."""


def settings(folder: Path) -> dict[str, str]:
    """Return the settings that ssh would use with the configuration, by ``ssh -G``."""
    (folder / "config").write_text(CONFIG.format(folder=folder))
    argv = ssh_argv(Host(name="a", user=None, port=None), "python3")
    end = argv.index("--")
    done = subprocess.run(
        [argv[0], "-G", "-F", str(folder / "config"), *argv[1:end], "--", "a"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


_OFF = {
    *("forwardagent", "forwardx11", "permitlocalcommand", "controlmaster", "controlpersist", "tunnel"),
    *("gssapidelegatecredentials", "requesttty", "stdinnull", "forkafterauthentication", "updatehostkeys"),
    "addkeystoagent",
}
"""Settings that must be off; an old ssh does not print all of them."""


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh")
def test_a_configuration_of_the_user_takes_nothing_and_lends_nothing(tmp_path: Path) -> None:
    effective = settings(tmp_path)
    off = {*_OFF & effective.keys()}
    assert {"forwardagent", "forwardx11", "permitlocalcommand"} <= off
    assert {name: effective[name] for name in off if effective[name] not in ("no", "false")} == {}
    assert effective.get("controlpath", "none") == "none"
    assert effective.get("remotecommand", "none") == "none"
    assert effective.get("sessiontype", "default") == "default"
    assert not {"localforward", "dynamicforward"} & effective.keys() or effective["clearallforwardings"] == "yes"
    assert effective["batchmode"] == "yes"
    assert effective["serveraliveinterval"] == "5"


def pythons() -> list[str]:
    """Return this Python, and Python 3.10 where there is one: it knows no PYTHONSAFEPATH."""
    oldest = shutil.which("python3.10")
    works = oldest is not None and subprocess.run([oldest, "-c", ""], capture_output=True, check=False).returncode == 0
    return [sys.executable, *([oldest] if oldest and works else [])]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder in which a neighbor has put a module of every name, with a double of ssh that starts there."""
    monkeypatch.setenv("PATH", f"{write_ssh_double(tmp_path)}{os.pathsep}{os.environ['PATH']}")
    script = tmp_path / "bin" / "ssh"
    script.write_text(script.read_text().replace("SSH_CONN", f": > {tmp_path}/asked\nSSH_CONN"))
    for name in ("home", "home/relative", "tmp"):
        (tmp_path / name).mkdir()
        if name != "tmp":
            for module in (*sys.stdlib_module_names, "torch", "seatrial", "sitecustomize", "usercustomize"):
                marker = f"open({str(tmp_path / 'imported')!r}, 'a').write(__name__ + ' ')\n"
                (tmp_path / name / f"{module}.py").write_text(marker)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


@pytest.mark.parametrize("python", pythons())
@pytest.mark.parametrize("path", [None, "", ":", ".", "relative", "/nowhere:"])
def test_nothing_is_imported_from_the_home_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch, path: str | None, python: str
) -> None:
    if path is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", path)
    with contextlib.suppress(SeatrialError):  # the other Python may have no torch
        SSH.resolve(where("a", nproc_per_node=1, python=python))
    assert (home.parent / "asked").exists(), "a host was asked"
    assert not (home.parent / "imported").exists(), (home.parent / "imported").read_text()


@pytest.mark.parametrize(
    ("mode", "trusted", "there", "enters"),
    [
        (0o755, True, {}, True),
        (0o775, True, {}, True),
        (0o755, False, {}, False),
        (0o755, False, {"owners": [os.geteuid()]}, True),  # on the controller it belongs to the same user
        (0o1777, True, {}, False),
        (0o1777, True, {"open_places": ["{folder}"]}, True),
        (0o1777, True, {"open_places": ["/elsewhere"]}, False),
    ],
)
def test_a_folder_of_a_neighbor_is_not_entered(
    mode: int, trusted: bool, there: dict[str, Any], enters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the ranks are named relative to it: the script of a neighbor would run in the place of the user's."""
    monkeypatch.chdir(Path.home())
    folder = tmp_path / "job"
    folder.mkdir()
    folder.chmod(mode)
    users = {os.geteuid()} if trusted else {os.geteuid() + 1}
    header = {"path": str(folder), "owners": [], "mounters": [], "open_places": [], **there}
    header["open_places"] = [path.format(folder=folder) for path in header["open_places"]]
    bootstrap._enter(header, lambda is_below_open, owners: users | {*owners}, way_to)
    assert Path.cwd() == (folder if enters else Path.home())


def test_the_folder_that_is_judged_is_the_one_that_is_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbor exchanges a link on the way once the folder is open."""
    monkeypatch.chdir(tmp_path)
    for name in ("theirs", "other"):
        (tmp_path / name / "job").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "theirs")
    open_really, judged = os.open, list[str]()

    def open_before_the_exchange(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        fd = open_really(path, flags, dir_fd=dir_fd)
        if path == "job":
            link.unlink()
            link.symlink_to(tmp_path / "other")
        return fd

    def way(path: str) -> Iterator[tuple[str, int, int, bool, bool]]:
        for step in way_to(path):
            judged.append(os.readlink(f"/proc/self/fd/{step[1]}"))
            yield step

    monkeypatch.setattr(os, "open", open_before_the_exchange)
    header = {"path": str(link / "job"), "owners": [], "mounters": [], "open_places": []}
    bootstrap._enter(header, lambda is_below_open, owners: {os.geteuid()}, way)
    assert judged[-1] == os.getcwd() == str(tmp_path / "theirs" / "job")


@pytest.mark.parametrize("path", ["/nowhere:", ".", ":"])
def test_no_library_is_loaded_from_a_folder_that_is_open_to_all(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH`` of a login has an empty entry where nothing was set before."""
    monkeypatch.setenv("PATH", f"{write_ssh_double(tmp_path)}{os.pathsep}{os.environ['PATH']}")
    for name in ("home", "open"):
        (tmp_path / name).mkdir()
    login = f"cd {tmp_path / 'home'}\nLD_LIBRARY_PATH={path} SSH_CONN"
    script = tmp_path / "bin" / "ssh"
    script.write_text(script.read_text().replace("SSH_CONN", login))
    (tmp_path / "open").chmod(0o1777)
    (tmp_path / "open" / "libc.so.6").write_text("of a neighbor: what loads it does not start")
    monkeypatch.chdir(tmp_path / "open")
    said = gathered(SSH, job_of(SSH, where("a", nproc_per_node=1)), tmp_path)
    assert [event["kind"] for event in said if event["kind"] in ("node", "lost")] == ["node"], said


def test_a_folder_that_is_not_on_a_host_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for name in ("file", "nothing"):
        folder = {"path": str(tmp_path / name), "owners": [], "mounters": [], "open_places": []}
        bootstrap._enter(folder, trusted_users, way_to)
        assert Path.cwd() == tmp_path


@pytest.mark.root
def test_a_file_system_of_a_neighbor_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path.home())
    folder = tmp_path / "job"
    folder.mkdir()
    header = {"path": str(folder), "owners": [], "mounters": [], "open_places": []}
    with mounted(folder, shown_owner=os.geteuid(), name="train.py"):
        bootstrap._enter(header, trusted_users, way_to)
        assert Path.cwd() == Path.home()
        # On the controller it is that user's, too.
        bootstrap._enter({**header, "mounters": [NEIGHBOR]}, trusted_users, way_to)
        assert Path.cwd() == folder
        assert ssh_target._folder()["mounters"] == [NEIGHBOR]
        monkeypatch.undo()


def test_a_stopped_agent_does_not_keep_what_ssh_has_started(tmp_path: Path) -> None:
    """With its buffer full, nobody would read the end of the connection, and all would stay on the host."""
    program = (
        "import socket\nfrom seatrial.targets.ssh import bootstrap\nbootstrap._FROZEN_S = 0.2\n"
        "ours, theirs = socket.socketpair()\nbootstrap._relay(ours)\n"
    )
    content = tmp_path / "content"
    content.write_bytes(bytes(8 << 20))
    with content.open("rb") as stdin:
        done = subprocess.run([sys.executable, "-c", program], stdin=stdin, stdout=subprocess.PIPE, timeout=30)
    assert done.returncode == 0


def test_the_error_output_of_a_node_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MAX_LOG_BYTES", 1 << 20)
    program = (
        "import sys; sys.stderr.write('x' * 2_000_000); sys.stderr.flush(); sys.stdin.read(); sys.exit('last words')"
    )
    agents = Agents()
    ends = []
    command = Command(argv=(sys.executable, "-S", "-c", program), env={}, nodes=(0,), feed=Feed(lines=(), content=b""))
    agents.submit([command], tmp_path, [], lambda ours, first, node: ends.append(ours))
    log = tmp_path / "node0.log"
    try:
        while log.stat().st_size < 2_000_000:
            time.sleep(0.01)
        assert agents.poll(()) is None
        until = time.monotonic() + 20
        while (content := log.read_text()) != f"{processes.REMOVED}\n":
            assert time.monotonic() < until, content[-200:]
            time.sleep(0.01)
    finally:
        ends[0].close()
        agents.cleanup()
    assert log.read_text().endswith("removed here\nlast words\n")


def test_nor_does_it_while_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MAX_LOG_BYTES", 1 << 20)
    monkeypatch.setattr(processes, "_BOUND_S", 0.05)
    program = (
        "import os, sys, time\nsys.stdin.read()\nfor _ in range(64):\n"
        "    os.write(2, b'x' * (1 << 20))\n    time.sleep(0.02)\n"
    )
    agents = Agents()
    ends = []
    command = Command(argv=(sys.executable, "-S", "-c", program), env={}, nodes=(0,), feed=Feed(lines=(), content=b""))
    agents.submit([command], tmp_path, [], lambda ours, first, node: ends.append(ours))
    ends[0].close()
    assert agents.cleanup() == []
    log = (tmp_path / "node0.log").read_bytes()
    assert log.startswith(f"{processes.REMOVED}\n".encode())
    assert len(log) < 32 << 20


def test_nor_does_it_after_this_process_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MAX_LOG_BYTES", 1 << 18)
    program = "import os, sys\nsys.stdin.read()\nfor _ in range(64):\n    os.write(2, b'x' * (1 << 18))\n"
    agents = Agents()
    ends = []
    command = Command(argv=(sys.executable, "-S", "-c", program), env={}, nodes=(0,), feed=Feed(lines=(), content=b""))
    agents.submit([command], tmp_path, [], lambda ours, first, node: ends.append(ours))
    ends[0].close()
    agents.processes[0].wait()  # nobody bounds the log meanwhile
    assert (tmp_path / "node0.log").stat().st_size == 1 << 20
    assert agents.cleanup() == []


def test_what_ssh_has_started_ends_with_it(tmp_path: Path) -> None:
    """A ProxyCommand that hangs, at a jump host that keeps silent, does not notice that its ssh was killed."""
    proxy = tmp_path / "proxy"
    (tmp_path / "config").write_text(f"Host a\n  ProxyCommand sh -c 'echo $$ > {proxy}; exec sleep 100'\n")
    ssh, *words = ssh_argv(Host(name="a", user=None, port=None), "python3")
    argv = (ssh, "-F", str(tmp_path / "config"), *words)
    agents = Agents()
    ends = []
    command = Command(argv=argv, env={}, nodes=(0,), feed=Feed(lines=(), content=b""))
    agents.submit([command], tmp_path, [], lambda ours, first, node: ends.append(ours))
    try:
        while not (proxy.exists() and proxy.read_text()):
            time.sleep(0.01)
    finally:
        agents.kill()
        assert agents.cleanup() == []
        ends[0].close()
    _wait_for_the_end_of(int(proxy.read_text()))


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh")
def test_a_program_that_ssh_starts_may_have_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, wrote = tmp_path / "log", tmp_path / "wrote"
    with log.open("wb") as file:
        file.truncate(100 << 20)
    # Once ssh has started it, and whatever this process sets for ssh is set.
    proxy = f"sh -c 'sleep 0.5; echo connecting >> {log} && touch {wrote}; exit 1'"
    (tmp_path / "config").write_text(f"Host a\n  ProxyCommand {proxy}\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(SeatrialError, match="ssh ended with exit code 255"):
        SSH.resolve(where("a", nproc_per_node=1))
    assert wrote.exists()


@pytest.mark.parametrize("names", ["TERM", "HUP", "INT INT TERM"])
def test_a_signal_ends_the_survey_of_a_host_that_keeps_it(names: str, tmp_path: Path) -> None:
    """As a time limit, a terminal that closes or a person without patience sends it. The host could fill the disk for
    ever otherwise."""
    folder, asked = write_ssh_double(tmp_path), tmp_path / "asked"
    # At once: where ssh has just been started, and was not entered anywhere.
    kills = "".join(f"kill -{name} $PPID\n" for name in names.split())
    script = f"#!/bin/sh\ntrap '' HUP TERM\necho $$ >> {asked}\n{kills}exec sleep 100\n"
    (folder / "ssh").write_text(script)
    environ = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    words = ["run", "smoke", "--on", "ssh", "--hosts", "a,b,c", "--device", "cpu", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "seatrial", *words]
    done = subprocess.run(command, env=environ, capture_output=True, timeout=50, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, b"seatrial: interrupted.")
    for pid in asked.read_text().split():
        _wait_for_the_end_of(int(pid))


def _wait_for_the_end_of(pid: int) -> None:
    """Wait for a process that is no child of ours; where nobody reaps it, it stays as a zombie."""
    status = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while status.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
