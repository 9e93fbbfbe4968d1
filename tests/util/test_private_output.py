"""Where the token of a run may be printed: neighbors plant what ``>`` opens."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from neighbor_mount import NEIGHBOR, mounted

from seatrial.errors import RequestError
from seatrial.util.private_output import require_private_output

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
_COMMANDS = {
    "run": "run smoke",
    "train": "train digits --data /data --pvc digits:/data",
    "launch": "launch",
}


@contextlib.contextmanager
def standard_output(fd: int) -> Iterator[None]:
    with open(fd, "w", encoding="utf-8") as stream, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        yield


def opened(path: Path) -> int:
    """Open a path as ``>`` does."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)


def _readable(path: Path) -> None:
    path.touch()
    path.chmod(0o644)


def _writable(path: Path) -> None:
    path.touch()
    path.chmod(0o602)


def _with_two_names(path: Path) -> None:
    path.touch(0o600)
    os.link(path, path.with_name("other"))


def _foreign(path: Path) -> None:
    path.touch(0o600)
    os.chown(path, NEIGHBOR, -1)


def _to_another_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (_readable, r"a file that is open to other users \(-rw-r--r--\)"),
        (_writable, r"a file that is open to other users \(-rw-----w-\)"),
        (_with_two_names, r"a file with 2 names"),
        pytest.param(_foreign, f"a file of user {NEIGHBOR}", marks=needs_root),
        (_to_another_device, "a device of user"),
    ],
)
def test_what_others_can_open_is_refused(plant: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    plant(tmp_path / "t.yaml")
    with (
        standard_output(opened(tmp_path / "t.yaml")),
        pytest.raises(RequestError, match=f"^x, and .* is {said}.*umask"),
    ):
        require_private_output("x")


def test_a_fifo_with_a_name_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.yaml", 0o600)
    with (
        open(os.open(tmp_path / "t.yaml", os.O_RDONLY | os.O_NONBLOCK)),
        standard_output(opened(tmp_path / "t.yaml")),
        pytest.raises(RequestError, match="is a FIFO of user"),
    ):
        require_private_output("x")


@needs_root
def test_the_terminal_of_a_neighbor_behind_a_link_is_refused(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    (tmp_path / "t.yaml").symlink_to(os.ttyname(slave))
    os.fchown(slave, NEIGHBOR, -1)
    with (
        open(master),
        open(slave),
        standard_output(os.open(tmp_path / "t.yaml", os.O_WRONLY | os.O_NOCTTY)),
        pytest.raises(RequestError, match=f"a device of user {NEIGHBOR}"),
    ):
        require_private_output("x")


@needs_root
def test_a_file_that_a_neighbor_mounted_is_refused(tmp_path: Path) -> None:
    with (
        mounted(tmp_path, shown_owner=os.geteuid(), name="t.yaml"),
        # That file system lets nobody write; the owner and the mode that it shows are what counts.
        standard_output(os.open(tmp_path / "t.yaml", os.O_RDONLY)),
        pytest.raises(RequestError, match=f"a file of user {NEIGHBOR}"),
    ):
        require_private_output("x")


def _new_file(folder: Path) -> int:
    return os.open(folder / "t.yaml", os.O_WRONLY | os.O_CREAT, 0o600)


def _without_name(folder: Path) -> int:
    fd = _new_file(folder)
    (folder / "t.yaml").unlink()
    return fd


def _null(folder: Path) -> int:
    return os.open(os.devnull, os.O_WRONLY)


@pytest.mark.parametrize("output", [_new_file, _without_name, _null])
def test_a_file_of_this_user_alone_passes(output: Callable[[Path], int], tmp_path: Path) -> None:
    with standard_output(output(tmp_path)):
        require_private_output("x")


def test_a_pipe_and_a_terminal_of_this_user_pass() -> None:
    for read, written in (os.pipe(), pty.openpty()):
        with open(read), standard_output(written):
            require_private_output("x")


def test_the_terminal_after_su_passes() -> None:
    """Its owner is the user who typed su."""
    code = (
        "import os, sys; from seatrial.util.private_output import require_private_output\n"
        "if os.geteuid() == 0: os.fchown(1, 10002, -1)\n"
        "require_private_output('x'); print('passed')"
    )
    pid, master = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    said = b""
    with contextlib.suppress(OSError):  # How Linux says that the other end is closed.
        while data := os.read(master, 4096):
            said += data
    os.close(master)
    assert os.waitpid(pid, 0)[1] == 0, said
    assert b"passed" in said


def test_a_closed_standard_output_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    require_private_output("x")


def dry_run(command: str, redirection: str, folder: Path) -> subprocess.CompletedProcess[str]:
    where = "--on job --image a/b:1 --image-has-seatrial --nodes 2 --gpus-per-node 8 --dry-run"
    script = " /workspace/train.py" if command == "launch" else ""
    line = f'umask 022; "$0" -m seatrial {_COMMANDS[command]} {where}{script} {redirection}'
    typed = ["sh", "-c", line, sys.executable]
    return subprocess.run(typed, cwd=folder, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize("command", _COMMANDS)
def test_no_command_prints_a_token_into_a_readable_file(command: str, tmp_path: Path) -> None:
    done = dry_run(command, "> t.yaml", tmp_path)
    assert (done.returncode, (tmp_path / "t.yaml").read_text()) == (2, "")
    assert re.search(r"--dry-run prints the\s+token of the run", done.stderr)
    assert "umask 077" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_ways_that_the_refusal_names_print_the_token(tmp_path: Path) -> None:
    assert "kind: Secret" in dry_run("run", "| cat", tmp_path).stdout
    assert dry_run("run", "> /dev/null", tmp_path).returncode == 0
    (tmp_path / "t.yaml").touch(0o600)
    assert dry_run("run", "> t.yaml", tmp_path).returncode == 0
    assert "kind: Secret" in (tmp_path / "t.yaml").read_text()


def test_a_dry_run_without_a_token_goes_into_any_file(tmp_path: Path) -> None:
    line = 'umask 022; "$0" -m seatrial run smoke --device cpu --dry-run > lines'
    done = subprocess.run(["sh", "-c", line, sys.executable], cwd=tmp_path, timeout=50, check=False)
    assert done.returncode == 0
    assert "TOKEN" in (tmp_path / "lines").read_text()
