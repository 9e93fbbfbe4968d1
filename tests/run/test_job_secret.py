"""Secrets of a job that another launcher has started: where they come from, and what is refused."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conductor.served import served
from conductor.stub_agent import TOKEN

from seatrial.agent import agent_main
from seatrial.environment.job_token import read_token, ways_to_secret
from seatrial.errors import RequestError, SeatrialError
from seatrial.folders import open_private
from seatrial.protocol import munge
from seatrial.protocol.handshake import proof, proves
from seatrial.protocol.munge import PROOF, agent_token, token_of
from seatrial.protocol.timeouts import PROOF_S
from seatrial.protocol.wire import Decoder, encode
from seatrial.run import job_secret, munge_hosts
from seatrial.run.job_secret import JobSecret, find_job_secret
from seatrial.run.munge_hosts import hosts_of_credentials

_SECRET = "0123456789abcdefghij"
_RUN = "20261127-120000-abcd"
_PURPOSE, _BY_MUNGE = token_of(_RUN), agent_token(_RUN)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without a secret."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def _file(home: Path, text: str = _SECRET, mode: int = 0o600) -> Path:
    path = home / ".config" / "seatrial" / "token"
    path.parent.mkdir(parents=True)
    path.write_text(text + "\n")
    path.chmod(mode)
    return path


def _found(launcher: str = "torchrun", token: str = "", *, unprotected: bool = False) -> JobSecret:
    return find_job_secret(launcher, {"SEATRIAL_TOKEN": token}, on_one_machine=False, unprotected=unprotected)


@pytest.mark.parametrize("launcher", ["torchrun", "openmpi", "hydra", "env"])
def test_without_a_secret_nothing_runs_across_machines(launcher: str) -> None:
    with pytest.raises(RequestError, match="--unprotected runs without one") as refused:
        _found(launcher)
    assert "openssl rand -hex 32 > ~/.config/seatrial/token" in str(refused.value)
    assert not _found(launcher, unprotected=True).protected


@pytest.mark.parametrize("token", ["x", "0123456789abcdefghi"])
def test_a_short_token_is_refused_even_without_protection(token: str) -> None:
    with pytest.raises(RequestError, match=f"SEATRIAL_TOKEN has {len(token)} characters"):
        _found(token=token, unprotected=True)


def test_a_file_of_the_user_is_the_secret(home: Path) -> None:
    _file(home)
    assert _found() == JobSecret(text=_SECRET)
    assert _found(token="a token that was given") == JobSecret(text="a token that was given")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602])
def test_a_file_that_others_can_read_or_write_is_refused(home: Path, mode: int) -> None:
    _file(home, mode=mode)
    with pytest.raises(RequestError, match="others could have read or changed it; chmod go-rwx it"):
        _found(unprotected=True)


def test_a_file_of_another_user_is_refused(home: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    path = _file(home)
    os.chown(path, 65534, 65534)
    with pytest.raises(
        RequestError, match=r"a file of user 65534, not of user 0; remove it .* a secret must be a file of yours"
    ):
        _found()


@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_a_secret_that_is_no_file_is_refused(home: Path, kind: str) -> None:
    path = _file(home)
    path.rename(home / "elsewhere")
    if kind == "link":
        path.symlink_to(home / "elsewhere")
    elif kind == "folder":
        path.mkdir(mode=0o700)
    else:
        os.mkfifo(path, 0o600)
    with pytest.raises(RequestError, match="secret"):
        _found()


def test_a_short_file_is_refused(home: Path) -> None:
    _file(home, "short")
    with pytest.raises(RequestError, match="holds 5 characters"):
        _found()


def test_the_login_s_folder_is_used_before_the_temporary_one(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    secret = find_job_secret("openmpi", environ, on_one_machine=True, unprotected=False)
    assert secret.text == (tmp_path / f"seatrial-{os.getuid()}" / "secret").read_text()


def test_a_login_s_folder_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a folder away")
    (tmp_path / "login").mkdir()
    os.chown(tmp_path / "login", 65534, 65534)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "login")}
    secret = find_job_secret("openmpi", environ, on_one_machine=True, unprotected=False)
    assert secret.text == (tmp_path / "seatrial-0" / "secret").read_text()
    assert not any((tmp_path / "login").iterdir())


def test_processes_that_start_together_have_one_secret(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(find_job_secret, "x", environ, on_one_machine=True, unprotected=False) for _ in range(64)]
    assert len({one.result().text for one in found}) == 1
    (folder,) = tmp_path.iterdir()
    assert [(file.name, file.stat().st_mode & 0o777, file.stat().st_nlink) for file in folder.iterdir()] == [
        ("secret", 0o600, 1)
    ]


@pytest.mark.parametrize("call", ["link", "mkdir"])
def test_what_a_file_system_does_not_permit_is_nobodys_folder(
    call: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many of FUSE have no hard links, and say that so much is not permitted."""

    def refuse(path: str, *arguments: object, **options: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)

    _file(home)
    (login := tmp_path / "login").mkdir()
    monkeypatch.setattr(os, call, refuse)
    environ = {"XDG_RUNTIME_DIR": str(login)}
    assert find_job_secret("x", environ, on_one_machine=True, unprotected=False).text == _SECRET
    (home / ".config/seatrial/token").unlink()
    with pytest.raises(RequestError, match="have no secret in common"):
        find_job_secret("x", environ, on_one_machine=True, unprotected=False)


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / f"seatrial-{os.geteuid()}"
    folder.mkdir(mode=0o755)
    with pytest.raises(RequestError, match=r"must be a folder that only user .* can use, and it is drwxr-xr-x"):
        find_job_secret("x", {"XDG_RUNTIME_DIR": str(tmp_path)}, on_one_machine=True, unprotected=True)


@pytest.mark.parametrize("kind", ["another user's", "readable", "link", "FIFO", "a file of ours"])
def test_a_planted_secret_is_refused(kind: str, tmp_path: Path) -> None:
    """Where all users can rename, a neighbor may have put another private folder of this user there."""
    if kind == "another user's" and os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    (folder := tmp_path / f"seatrial-{os.geteuid()}").mkdir(mode=0o700)
    (known := tmp_path / "known").write_text(_SECRET)
    planted = folder / "secret"
    if kind == "link":
        planted.symlink_to(known)
    elif kind == "FIFO":
        os.mkfifo(planted, 0o600)
    else:
        planted.write_text(_SECRET)
        planted.chmod(0o644 if kind == "readable" else 0o600)
    if kind == "another user's":
        os.chown(planted, 65534, 65534)
    with pytest.raises(RequestError, match=rf"^{folder}: secret is .*; set XDG_RUNTIME_DIR or TMPDIR to a folder"):
        find_job_secret("x", {"XDG_RUNTIME_DIR": str(tmp_path)}, on_one_machine=True, unprotected=True)


def test_a_folder_that_is_exchanged_after_the_look_brings_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a TMPDIR in which all users can rename, a neighbor puts another folder there, and changes files in it."""
    (theirs := tmp_path / "theirs").mkdir(mode=0o777)

    def look_then_exchange(path: str) -> int:
        opened = open_private(path)
        Path(path).rename(tmp_path / "ours")
        theirs.rename(path)
        return opened

    monkeypatch.setattr(job_secret, "open_private", look_then_exchange)
    found = find_job_secret("x", {"XDG_RUNTIME_DIR": str(tmp_path)}, on_one_machine=True, unprotected=True)
    assert found.text == (tmp_path / "ours/secret").read_text()
    assert list((tmp_path / f"seatrial-{os.geteuid()}").iterdir()) == []


def test_slurm_without_munge_is_refused_with_its_complaint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match=r"have no secret in common \(munge is not installed\), and others"):
        _found("slurm")
    with pytest.raises(RequestError, match="SEATRIAL_TOKEN=munge: munge is not installed; leave it out and make a"):
        _found("slurm", "munge")


@pytest.mark.parametrize("launcher", ["torchrun", "openmpi", "hydra", "env"])
def test_munge_is_refused_where_it_carries_no_secret(launcher: str) -> None:
    with pytest.raises(RequestError, match="SEATRIAL_TOKEN=munge: munge carries the secret under srun and with --on"):
        _found(launcher, "munge", unprotected=True)


@pytest.mark.parametrize("launcher", ["slurm", "openmpi", "torchrun", "--on slurm"])
def test_ways_to_a_secret_begin_with_what_nobody_reads(launcher: str) -> None:
    """Who follows the advice must know that Slurm and mpirun send variables in clear."""
    private, _, others = ways_to_secret(launcher).partition("SEATRIAL_TOKEN")
    assert ("munge" in private) == ("slurm" in launcher)
    assert ("--on ssh" if launcher == "--on slurm" else "~/.config/seatrial/token") in private
    assert "readable" not in private
    assert re.search("Slurm sends .* readable over its network|readable on the network of Slurm and mpirun", others)


@pytest.mark.parametrize("value", ["MUNGE", "munge ", "Munge", "'munge'", "munged", "yes", "0123456789"])
def test_a_value_that_is_no_secret_and_not_munge_is_refused(value: str) -> None:
    """It would be taken for none, and the token be readable on the network."""
    with pytest.raises(RequestError, match=f"SEATRIAL_TOKEN has {len(value)} characters.* the value munge, in just th"):
        read_token({"SEATRIAL_TOKEN": value})
    assert [read_token({"SEATRIAL_TOKEN": one}) for one in ("munge", _SECRET, "")] == ["munge", _SECRET, ""]
    assert read_token({}) == ""


def test_a_munge_of_the_working_folder_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (planted := tmp_path / "munge").write_text("#!/bin/sh\necho planted\n")
    planted.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".")
    with pytest.raises(munge.MungeError, match="munge is not installed"):
        munge.make_credential(_PURPOSE, "the token")


# With a real munged


_MUNGE_HOST = "192.0.2.7"


@pytest.fixture
def munged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A munged, and munge and unmunge that use its socket."""
    program = shutil.which("munged") or shutil.which("munged", path="/usr/sbin")
    if program is None:
        pytest.skip("munge is not installed")
    # Munged refuses a path of which others could change a folder.
    folder = Path("/run" if os.geteuid() == 0 else "/run/user") / f"seatrial-test-{os.getpid()}"
    try:
        folder.mkdir(mode=0o755)
    except OSError:
        pytest.skip("needs root, for a folder that munged accepts")
    key = folder / "key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o400)
    files = {"key-file": key, "socket": folder / "socket", "pid-file": folder / "pid"}
    files |= {"log-file": folder / "log", "seed-file": folder / "seed", "origin": Path(_MUNGE_HOST)}
    argv = [program, "--force", "--foreground", *(f"--{name}={path}" for name, path in files.items())]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for name in ("munge", "unmunge"):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\nexec {shutil.which(name)} --socket={files["socket"]} "$@"\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    until = time.monotonic() + 10.0
    while not files["socket"].exists() and time.monotonic() < until:
        time.sleep(0.02)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10.0)
        shutil.rmtree(folder)


def test_munge_passes_a_secret_to_all_ranks_of_a_host(munged: subprocess.Popen[bytes]) -> None:
    assert _found("slurm") == JobSecret(munge=True)
    assert _found("slurm", "munge") == JobSecret(munge=True)
    credential = munge.make_credential(_PURPOSE, "the token")
    # The second one is a replay to munged.
    read = [munge.read_credential(_PURPOSE, credential) for _ in range(2)]
    assert [found and found.text for found in read] == ["the token"] * 2
    for wrong in ("", "MUNGE:AAAA:", credential[:-10] + "AAAAAAAAA:", "\0"):
        assert munge.read_credential(_PURPOSE, wrong) is None


def test_a_credential_of_another_user_is_not_believed(munged: subprocess.Popen[bytes]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    assert munge.read_credential(_PURPOSE, _credential(munged, b"evil", user=65534)) is None
    # What it holds is no complaint of the daemon, with which an agent would end.
    assert munge.read_credential(_PURPOSE, _credential(munged, b"\xff\xfe", user=65534)) is None


def _credential(munged: subprocess.Popen[bytes], content: bytes, user: int | None = None) -> str:
    assert isinstance(munged.args, list)
    argv = [str(shutil.which("munge", path="/usr/bin")), *(word for word in munged.args if "--socket" in word)]
    return subprocess.run(argv, input=content, capture_output=True, user=user, check=True).stdout.decode().strip()


def test_an_agent_gets_its_token_by_munge_and_shows_its_host(munged: subprocess.Popen[bytes]) -> None:
    with served() as run:
        run.server._credential = munge.make_credential(_PURPOSE, TOKEN)
        control = agent_main._connect("127.0.0.1", [run.server.port], _BY_MUNGE, 0)
        control.connection.close()
        assert b'"welcome"' in control.received
        run.over()
    assert hosts_of_credentials(run.server.credentials) == ({0: _MUNGE_HOST}, {})


def test_an_agent_obeys_no_conductor_of_another_run(munged: subprocess.Popen[bytes]) -> None:
    """Two jobs of one user may meet at a port, or somebody in the path leads one to the other."""
    with served() as run:
        run.server._credential = munge.make_credential(token_of("another run"), TOKEN)
        with socket.create_connection(("127.0.0.1", run.server.port)) as connection:
            assert agent_main._shake_hands(connection, _BY_MUNGE, 0, port=run.server.port) is None
        assert not run.server.members
        run.news.append("SIGINT")
        run.over()


def test_an_agent_that_was_dropped_after_its_proof_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Munge may take so long that the conductor has closed the connection, in a crowd after 2 s."""
    monkeypatch.setattr(agent_main, "read_credential", lambda *words, **limits: munge.Credential(text=_SECRET, host=""))
    monkeypatch.setattr(agent_main, "make_credential", lambda *words, **limits: "MUNGE:x:")
    proofs: list[object] = []
    processes: set[str] = set()

    def conduct(listener: socket.socket) -> None:
        for said in (b"", b"welcome\n"):
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                hello = Decoder().line(lines.readline()) or {}
                own = proof(_SECRET, "conductor", hello["nonce"], "c", 0, listener.getsockname()[1])
                answer = {"kind": "proof", "challenge": "c", "proof": own, "credential": "MUNGE:x:"}
                connection.sendall(b"".join(encode(answer)))
                answered = Decoder().line(lines.readline()) or {}
                process = answered["process"]
                processes.add(process)
                proofs.append(proves(answered["proof"], _SECRET, "agent", hello["nonce"], "c", 0, process=process))
                connection.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=conduct, args=(listener,), daemon=True)
        thread.start()
        control = agent_main._connect("127.0.0.1", [listener.getsockname()[1]], _BY_MUNGE, 0)
        control.connection.close()
        thread.join(20.0)
    assert (control.received, proofs, len(processes)) == (b"welcome\n", [True, True], 1)


def test_munge_has_less_time_than_the_conductor_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("munge", "unmunge"):
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for call in (munge.make_credential, munge.read_credential):
        with pytest.raises(munge.MungeError, match=r"munge did not answer within 0\.1 s"):
            call(_PURPOSE, "MUNGE:x:", within_s=0.1)
        with pytest.raises(munge.MungeError, match="munge did not answer within"):
            call(_PURPOSE, "MUNGE:x:", within_s=-1.0)
    assert agent_main._MUNGE_S < PROOF_S


def test_a_credential_that_an_agent_has_sent_is_no_token(munged: subprocess.Popen[bytes]) -> None:
    """Both its proof and its credential cross the network in clear: who has read them must not be a controller."""
    overheard = "the proof of an agent"
    credential = munge.make_credential(PROOF, overheard)
    ours, theirs = socket.socketpair()

    def conduct() -> None:
        hello = Decoder().line(theirs.recv(1 << 12)) or {}
        answer = proof(overheard, "conductor", hello["nonce"], "c", 0)
        said = {"kind": "proof", "challenge": "c", "proof": answer, "credential": credential}
        theirs.sendall(b"".join(encode(said)))

    with ours, theirs:
        thread = threading.Thread(target=conduct)
        thread.start()
        control = agent_main._shake_hands(ours, _BY_MUNGE, 0)
        thread.join()
    assert control is None


def test_a_credential_with_another_proof_is_nobodys(munged: subprocess.Popen[bytes]) -> None:
    """Each connection has its own proof, so that nobody uses the credential of another node, which anybody can read."""
    sound = munge.make_credential(PROOF, "proof")
    sent = {0: ("proof", sound), 1: ("another proof", sound), 2: ("proof", "MUNGE:AAAA:")}
    sent |= {3: ("proof", "\ud800"), 4: ("proof", f"{sound}\n")}
    sent |= {5: ("proof", _credential(munged, b"seatrial proof of an agent: \xff"))}
    assert hosts_of_credentials(sent) == ({0: _MUNGE_HOST} | dict.fromkeys(range(1, 6)), {})
    munged.terminate()
    munged.wait(10.0)
    hosts, unread = hosts_of_credentials(sent)
    assert hosts == {0: "", 1: "", 2: "", 3: None, 4: None, 5: ""}
    assert sorted(unread) == [0, 1, 2, 5]
    assert all("Failed to access" in why for why in unread.values())


@pytest.mark.parametrize("num_threads", [0, 1])
def test_credentials_need_no_process_for_all(num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of processes of this user ends no trial, whose ranks may have ended with it."""
    left, start = [*range(num_threads)], threading.Thread.start

    def start_if_one_is_left(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_one_is_left)
    monkeypatch.setattr(
        munge_hosts, "read_credential", lambda purpose, text: munge.Credential(text="p", host=_MUNGE_HOST)
    )
    hosts, unread = hosts_of_credentials(dict.fromkeys(range(9), ("p", "MUNGE:x:")))
    assert {node for node, host in hosts.items() if not host} == unread.keys()
    assert unread.get(0, "") == ("" if num_threads else "this user has no process left for that")


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("node7 (10.0.0.7)", "10.0.0.7"),
        ("10.0.0.7", "10.0.0.7"),
        ("gpu-7.example (10.0.0.7)", "10.0.0.7"),
        # Debian gives the name of a host without a fixed address to 127.0.1.1, on every host.
        ("node7 (127.0.1.1)", ""),
        ("0.0.0.0", ""),
        ("???", ""),
        ("10.0.0", ""),
    ],
)
def test_the_host_of_a_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, host: str) -> None:
    """As munge 0.5.13 to 0.5.16 print it, by a double of unmunge."""
    double = tmp_path / "unmunge"
    text = "seatrial proof of an agent: proof"
    double.write_text(
        f"#!/bin/sh\nprintf 'ENCODE_HOST:      {line}\nUID:              me ({os.geteuid()})\n\n{text}'\n"
    )
    double.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert munge.read_credential(PROOF, "MUNGE:x:") == munge.Credential(text="proof", host=host)


@pytest.mark.parametrize("credential", [5, ["x"], {}, None, ""])
def test_a_stranger_that_sends_no_text_is_not_believed(credential: object) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"".join(encode({"kind": "proof", "challenge": "", "proof": "", "credential": credential})))
        assert agent_main._shake_hands(ours, _BY_MUNGE, 0) is None


def test_munge_without_its_daemon_is_a_sentence(munged: subprocess.Popen[bytes]) -> None:
    credential = munge.make_credential(_PURPOSE, "the token")
    munged.terminate()
    munged.wait(10.0)
    with pytest.raises(RequestError, match=r"\(munge: Error: Failed to access .*\), and others could execute"):
        _found("slurm")
    with pytest.raises(munge.MungeError, match="Failed to access"):
        munge.read_credential(_PURPOSE, credential)
    assert "readable over its network" in _refusal_of_agent(1)
    assert "openssl rand -hex 32" in _refusal_of_agent(8)


def _refusal_of_agent(num_ports: int) -> str:
    """Return what an agent says that visits a conductor and has no munge."""
    with served() as run, pytest.MonkeyPatch.context() as patch:
        run.server._credential = "MUNGE:x:"
        ports = [run.server.port] * num_ports
        patch.setenv("SEATRIAL_CONTROL", f"127.0.0.1:{','.join(map(str, ports))}")
        patch.setenv("SEATRIAL_NODE_RANK", "0")
        patch.setenv("SEATRIAL_JOB", "")
        with pytest.raises(SeatrialError) as refused:
            agent_main._join(_BY_MUNGE)
        run.news.append("SIGINT")
        run.over()
    text = str(refused.value)
    assert text.startswith("node 0 (")
    assert "cannot get the secret of its job by munge: unmunge: Error: Failed to access" in text
    return text
