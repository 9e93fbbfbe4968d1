"""Which py-spy an agent runs: only one that no other user can have put there."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from neighbor_mount import mounted

from seatrial.agent import py_spy, standstill
from seatrial.agent.rank_process import RankProcess
from seatrial.probe.process import read_process

_STACK = "Thread 1 (idle)"
_ARGUMENTS = (
    "--password=hunter2",
    "--code",
    "def f():\n\n    hunter2\nThread hunter2\n\x85Thread 1 (idle)\x85    hunter2",
)


def _thread(number: int | None, frames: Sequence[dict[str, Any]] = (), **fields: Any) -> dict[str, Any]:
    """A thread as ``py-spy dump --json`` writes it."""
    fixed = {"pid": 7, "thread_id": 127, "os_thread_id": number, "active": False, "owns_gil": False}
    return {**fixed, "frames": list(frames), "process_info": {"command_line": "python --password=hunter2"}, **fields}


def _frame(name: str, file: str, line: int = 0) -> dict[str, Any]:
    local = [{"name": "password", "addr": 1, "arg": True, "repr": "'hunter2'"}]
    return {"name": name, "filename": file, "short_filename": file, "line": line, "module": None, "locals": local}


def _executable(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def _py_spy(folder: Path) -> Path:
    return _executable(folder / "py-spy", f"echo ran >>'{folder}/ran'; echo '{json.dumps([_thread(1)])}'")


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RankProcess]:
    """A rank whose program is in a folder to which other users can write. Our own Python has no py-spy beside it."""
    program = _executable(tmp_path / "theirs" / "program", "exec sleep 60")
    program.parent.chmod(0o777)
    argv = [str(program), *_ARGUMENTS]
    process = RankProcess(0, 0, {**os.environ}, io.BytesIO(), argv=argv, watched=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    yield process
    process.kill()
    assert process.wait(10)
    process.close()


def _text(rank: RankProcess) -> str:
    (event,) = standstill.stack_events([rank])
    return event["text"]


def test_one_beside_the_script_of_another_user_is_not_run(rank: RankProcess, tmp_path: Path) -> None:
    planted = _py_spy(tmp_path / "theirs")
    assert _text(rank) == f"{planted} was not run: other users may change {tmp_path}/theirs"
    assert not (tmp_path / "theirs" / "ran").exists()


def test_one_in_a_folder_of_path_that_others_can_write_to_is_not_run(
    rank: RankProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = _py_spy(tmp_path / "shared")
    planted.parent.chmod(0o775)
    monkeypatch.setenv("PATH", f"{planted.parent}:/bin")
    assert "was not run" in _text(rank)
    # A folder of ours in a folder of others can be exchanged; so can what a link of theirs leads to.
    _py_spy(tmp_path / "shared" / "bin")
    (tmp_path / "shared" / "link").symlink_to(_py_spy(tmp_path / "good").parent)
    for name in ("bin", "link"):
        monkeypatch.setenv("PATH", f"{tmp_path}/shared/{name}:/bin")
        assert _text(rank).endswith(f"other users may change {tmp_path}/shared")
    assert not list(tmp_path.glob("**/ran"))


def test_the_working_folder_is_not_searched(rank: RankProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _py_spy(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PATH", ".::../here:/bin")
    assert _text(rank) == ""
    assert not (tmp_path / "here" / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_run(rank: RankProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = _py_spy(tmp_path / "bin")
    os.chown(planted, 65534, 65534)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin")
    assert _text(rank) == f"{planted} was not run: other users may change {planted}"


def test_one_that_only_this_user_can_change_is_run(
    rank: RankProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _py_spy(tmp_path / "theirs")
    _py_spy(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"relative:{tmp_path}/bin:/bin")
    assert _text(rank) == f"{_STACK}\n"
    assert not (tmp_path / "theirs" / "ran").exists()


def test_the_one_of_our_own_python_comes_first(
    rank: RankProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _py_spy(tmp_path / "own")
    _py_spy(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin")
    assert _text(rank) == f"{_STACK}\n"
    assert not (tmp_path / "bin" / "ran").exists()


_THREADS = [
    _thread(None, [_frame("poll", "/lib/libc.so.6")]),
    _thread(48, thread_name='a\nThread 1 (idle): "\x1b[31m', active=True),
    _thread(
        47,
        [_frame("waiting", "hang.py", 5), {**_frame("<module>", "/job/hang.py", 6), "short_filename": None}],
        thread_name="MainThread",
        active=True,
        owns_gil=True,
    ),
]
_SHOWN = """Thread 47 (active+gil): "MainThread"
    waiting (hang.py:5)
    <module> (/job/hang.py:6)
Thread 48 (active): "a\\x0aThread 1 (idle): "\\x1b[31m"
Thread 0x7F (idle)
    poll (/lib/libc.so.6)
"""


@pytest.mark.parametrize("indent", [None, 2])
def test_of_a_stack_only_threads_and_frames_pass(
    rank: RankProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None
) -> None:
    """Arguments may hold secrets. A site's py-spy may add local variables, and a log with the command line."""
    (tmp_path / "said").write_text(f"{json.dumps(_THREADS, indent=indent)}\n")
    log = "echo '[2026-11-27T09:32:40Z DEBUG py_spy]' >&2; cat /proc/$5/cmdline; echo"
    _executable(tmp_path / "bin" / "py-spy", f"{log}; cat '{tmp_path}/said'; {log}")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    assert _text(rank) == _SHOWN


_HEADINGS = (
    'echo "Process $5: $arguments"',
    'printf "Process \\033[33m\\033[1m$5\\033[0m: %s\\n" "$arguments"',
    'printf "\\033[1mProcess\\033[0m %s\\n" "$arguments"; printf "Thread \\033[33m1\\033[0m (idle)\\n"',
    'echo "PID $5 [$arguments]"; echo "[ $arguments"; echo; echo "Thread 1 (idle)"',
)


@pytest.mark.parametrize("heading", _HEADINGS, ids=["plain", "colors", "more colors", "odd"])
def test_a_command_line_passes_in_no_form(
    rank: RankProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heading: str
) -> None:
    """With CLICOLOR_FORCE py-spy writes escape sequences within its headings."""
    arguments = "arguments=$(tr '\\0' ' ' </proc/$5/cmdline)"
    _executable(tmp_path / "bin" / "py-spy", f"{arguments}; {heading}; exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    assert _text(rank) == "it showed no stack, and ended with exit code 3\n"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Permission Denied: Try 'sudo'\n\nIt looks like you are running in a docker container. See", None),
        ("Error: Failed to open\nReason: No such process (os error 3)", None),
        ("Error: No\n\nCaused by:\n    0: Denied\n    1: Denied\n\nStack backtrace:\n   0: x", "1: Denied\n"),
        ("error: Found argument '--json' which wasn't expected\n\nUSAGE:\n    py-spy dump --pid 7", "expected\n"),
        ("[2026-11-27T09:32:40Z DEBUG py_spy] hunter2\nError: No", "Error: No\n"),
        ("[]", ""),
        ('[\n  {"frames": 1}\n]\nError: No', "Error: No\n"),
    ],
    ids=["denied", "0.3", "0.4", "0.2", "a log", "a rank that still starts", "another list"],
)
def test_the_errors_of_py_spy_pass(said: str, shown: str | None) -> None:
    text = py_spy.threads(1, said)
    assert "hunter2" not in text
    if shown is None:
        assert text == said.replace("\n\n", "\n") + "\n"
    else:
        assert text.endswith(shown)
        assert bool(text) == bool(shown)


def test_one_that_cannot_be_started_says_so(rank: RankProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _executable(tmp_path / "bin" / "py-spy", "")
    path.write_bytes(b"\x7fELF")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin")
    assert _text(rank) == f"[Errno 8] Exec format error: '{path}'\n"


def test_one_that_never_ends_holds_up_no_agent(
    rank: RankProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script around the real one, which keeps its output open when the script itself is killed."""
    monkeypatch.setattr(standstill, "_PY_SPY_S", 1.0)
    pids = tmp_path / "pids"
    _executable(tmp_path / "bin" / "py-spy", f"sleep 600 & echo $! >'{pids}'; wait")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin")
    assert _text(rank) == ""
    (left,) = map(int, pids.read_text().split())
    while (seen := read_process(left)) and seen.state != "Z":  # killed, and soon gone
        time.sleep(0.02)


@pytest.mark.root
def test_a_py_spy_on_the_file_system_of_a_neighbor_is_not_run(tmp_path: Path) -> None:
    path = _py_spy(tmp_path)
    assert py_spy._looked_at(str(path)) == (str(path), None)
    with mounted(tmp_path, shown_owner=os.geteuid(), name="py-spy"):
        assert py_spy._looked_at(str(path)) == (str(tmp_path), str(tmp_path))


def test_where_no_thread_can_start_the_stack_says_so(rank: RankProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may have used up the processes of its user: that must not end its agent."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert _text(rank) == "can't start new thread"
