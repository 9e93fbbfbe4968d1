"""Which py-spy an agent runs: only one that no other user can have put there."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

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


def _executable(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def _py_spy(folder: Path) -> Path:
    return _executable(folder / "py-spy", f"echo ran >>'{folder}/ran'; echo '{_STACK}'")


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


def test_a_stack_has_no_command_line(rank: RankProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments may hold secrets. A site's py-spy may add child processes, and local variables."""
    said = """Python v3.11.7 (/usr/bin/python3.11)
Parent Process 1: launch hunter2

Thread 47 (active+gil): "MainThread"
    waiting (hang.py:5)
        Arguments:
            password: "hunter2"
    <module> (hang.py:6)
Thread 0x7F (idle)"""
    for_each = f"echo \"Process $4: $(tr '\\0' ' ' </proc/$4/cmdline)\"; cat '{tmp_path}/said'"
    (tmp_path / "said").write_text(f"{said}\n")
    _executable(tmp_path / "bin" / "py-spy", f"echo warning; {for_each}; {for_each}")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    process = (
        'Thread 47 (active+gil): "MainThread"\n    waiting (hang.py:5)\n    <module> (hang.py:6)\nThread 0x7F (idle)\n'
    )
    assert _text(rank) == f"warning\n{process}{process}"


def test_the_heading_of_a_rank_that_still_starts_is_no_stack(
    rank: RankProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _executable(tmp_path / "bin" / "py-spy", "echo 'Process 1: hunter2'; echo 'Python v3.11.7 (/usr/bin/python)'; echo")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin")
    assert _text(rank) == ""


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
