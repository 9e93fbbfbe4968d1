"""An agent whose folder is on a disk that answers nothing for a while: it is heard, and nothing is lost but in time."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.stub_conductor import StubConductor
from agent.test_agent_silence import Peer, _start_program
from by_day import by_day
from disks import frozen, made_disk
from slow_disk import SlowDisk

from seatrial.agent import program_ranks, py_spy, rank_output, supervisor
from seatrial.agent.program_ranks import prepare, start_folder
from seatrial.protocol.wire import encode
from seatrial.util import disk_writer

pytestmark = pytest.mark.usefixtures("keeps_children")

_FACT = b"".join(encode({"kind": "fact", "run": "x", "src": "rank0.0", "seq": 0, "t": 0.0}))
_EVENT = f"import os; os.write(int(os.environ['SEATRIAL_EVENT_FD']), {_FACT!r}); "


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


@pytest.fixture
def peer(tmp_path: Path, disk: SlowDisk) -> Iterator[Peer]:
    peer = Peer(tmp_path)
    yield peer
    disk.thaw()
    peer.agent._disk.end(time.monotonic() + 20)
    peer.close()


def _serve(peer: Peer, *then: tuple[float, Callable[[], Any]]) -> int:
    """Return the exit code of the agent, whose conductor does that after so many seconds each."""

    def conduct() -> None:
        for after_s, act in then:
            time.sleep(after_s)
            act()

    threads = [threading.Thread(target=conduct), threading.Thread(target=peer.read)]
    peer.begin()
    for thread in threads:
        thread.start()
    code = peer.agent.serve([], [])
    for thread in threads:
        thread.join()
    return code


def _stop(peer: Peer) -> None:
    peer.send({"kind": "stop"})


def _kinds(peer: Peer) -> list[str]:
    return [message["kind"] for message in peer.heard()]


def test_it_is_heard_while_the_disk_answers_nothing(peer: Peer, disk: SlowDisk, tmp_path: Path) -> None:
    disk.freeze()
    peer.send(_start_program(f"{_EVENT}print('printed')", watched=True))
    assert _serve(peer, (4.0, disk.thaw), (0.5, lambda: _stop(peer))) == 0
    kinds = _kinds(peer)
    assert kinds.count("status") >= 3
    assert kinds.index("fact") < kinds.index("exit") < len(kinds) - kinds[::-1].index("status")
    assert (tmp_path / "rank0.gen0.log").read_bytes() == b"printed\n"
    kept = (tmp_path / "node0.events").read_bytes().splitlines()
    assert [
        kind for line in kept for kind in ("node", "fact", "exit", "end") if f'"kind":"{kind}"'.encode() in line
    ] == [*("node", "fact", "exit", "end")]
    assert "note" not in kinds


def test_a_disk_that_never_answers_holds_up_no_end(peer: Peer, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_FILES_S", 0.5)
    monkeypatch.setattr(supervisor, "_LAST_FILES_S", 0.5)
    disk.freeze()
    peer.send(_start_program("print('printed')"))
    began = time.monotonic()
    assert _serve(peer, (1.0, lambda: _stop(peer))) == 0
    assert time.monotonic() - began < 15
    (note,) = (message for message in peer.heard() if message["kind"] == "note")
    assert note["severity"] == "warn"
    assert note["text"].startswith("8 bytes of output are missing in rank0.gen0.log (the disk has not answered for ")
    assert _kinds(peer)[-1] == "end"


def test_a_second_signal_waits_for_no_disk(peer: Peer, disk: SlowDisk) -> None:
    disk.freeze()
    reader = threading.Thread(target=peer.read)
    reader.start()
    began = time.monotonic()
    assert peer.agent.serve([signal.SIGINT, signal.SIGINT], []) == 3
    assert time.monotonic() - began < 2
    reader.join()


_PRINTS = """import os, sys
for number in range(4000):
    os.write(1, b"%015d\\n" % number * 64)
    os.pwrite(int(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)), b"%04d" % number, 0)
"""
_PRINTED = b"".join(b"%015d\n" % number * 64 for number in range(4000))


@pytest.mark.parametrize("watched", by_day([False, True]))
def test_a_script_waits_for_the_disk_and_a_rank_of_ours_does_not(
    watched: bool, peer: Peer, disk: SlowDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_writer, "_FULL_BYTES", 1 << 18)
    monkeypatch.setattr(disk_writer, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(rank_output, "_SLOW_S", 0.3)
    disk.freeze()
    ended: list[bool] = []
    peer.send(_start_program(_PRINTS, str(tmp_path / "count"), watched=watched))
    looks = lambda: ended.append("exit" in _kinds(peer))  # noqa: E731
    assert (
        _serve(peer, (5.0 if watched else 2.0, looks), (0.0, disk.thaw), (0.5 if watched else 4.0, lambda: _stop(peer)))
        == 0
    )
    assert ended == [watched]
    log = (tmp_path / "rank0.gen0.log").read_bytes()
    notes = [message["text"] for message in peer.heard() if message["kind"] == "note"]
    if not watched:
        assert log == _PRINTED
        assert notes == []
        return
    missing = [int(number) for number in re.findall(rb"\nseatrial: (\d+) bytes of output are missing here\n", log)]
    missing_bytes = sum(missing)
    kept = re.sub(rb"\nseatrial: \d+ bytes of output are missing here\n", b"", log)
    assert len(kept) + missing_bytes == len(_PRINTED)
    assert _PRINTED.startswith(kept[: 1 << 18])
    assert len(notes) == 1
    assert notes[0].startswith(f"{missing_bytes} bytes of output are missing in rank0.gen0.log (")


def test_output_that_no_file_takes_is_sent(peer: Peer, disk: SlowDisk, tmp_path: Path) -> None:
    (tmp_path / "rank0.gen0.log").symlink_to("elsewhere")
    disk.freeze()
    peer.send(_start_program("print('printed')"))
    assert _serve(peer, (2.0, disk.thaw), (1.0, lambda: _stop(peer))) == 0
    (piece, *_) = (message for message in peer.heard() if message["kind"] == "log")
    assert piece["at"] == 0
    assert not (tmp_path / "elsewhere").exists()


def test_ranks_start_once_their_disk_answers(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(program_ranks, "start_folder", lambda program: answers.wait(60) and start_folder(program))
    monkeypatch.setattr(supervisor, "_START_S", 0.1)
    peer.send(_start_program("print('printed')"))
    kinds: list[str] = []
    seen = lambda: kinds.extend(_kinds(peer))  # noqa: E731
    assert _serve(peer, (2.5, seen), (0.0, answers.set), (2.0, lambda: _stop(peer))) == 0
    assert "exit" not in kinds
    assert kinds.count("status") >= 1
    assert "exit" in _kinds(peer)


_NODE_STEP = {
    "kind": "node_step",
    "gen": 0,
    "step": 0,
    "check": "of another version",
    "stage": "measure",
    "timeout_s": 60.0,
    "params": {},
    "given": {},
    "env": {},
    "backend": "gloo",
    "device": "cpu",
}


@pytest.mark.parametrize("watches", by_day([False, True]))
def test_a_step_of_agents_starts_once_its_disk_answers(
    watches: bool, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(supervisor, "prepare", lambda start: answers.wait(60) and prepare(start))
    monkeypatch.setattr(supervisor, "_START_S", 0.1)
    peer.send({**_NODE_STEP, "watches": watches})
    kinds: list[str] = []
    seen = lambda: kinds.extend(_kinds(peer))  # noqa: E731
    assert _serve(peer, (3.0, seen), (0.0, answers.set), (2.0, lambda: _stop(peer))) == 0
    assert "node_done" not in kinds
    assert kinds.count("status") >= 2
    assert "node_done" in _kinds(peer)


def test_ranks_that_a_kill_overtakes_never_start(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(program_ranks, "start_folder", lambda program: answers.wait(60) and start_folder(program))
    monkeypatch.setattr(supervisor, "_START_S", 0.1)
    peer.send(_start_program("print('printed')"))
    kill = {"kind": "kill", "gen": 0, "stacks": []}
    assert _serve(peer, (0.5, lambda: peer.send(kill)), (0.0, answers.set), (1.0, lambda: _stop(peer))) == 0
    assert "killed" in _kinds(peer)
    assert "exit" not in _kinds(peer)


def test_a_stack_waits_for_no_disk(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr("seatrial.agent.standstill._STACKS_S", 0.3)
    monkeypatch.setattr(py_spy, "find", lambda *args: (None, str(answers.wait(60))))
    peer.send(_start_program("import time; time.sleep(60)"))
    asks = {"kind": "dump_stack", "number": 1, "ranks": [0]}
    assert _serve(peer, (1.0, lambda: peer.send(asks)), (1.5, lambda: _stop(peer))) == 0
    answers.set()
    (stack,) = (message for message in peer.heard() if message["kind"] == "stack")
    assert stack["text"].startswith("py-spy was not run: the disk ")


@pytest.mark.root
def test_it_is_heard_while_a_real_disk_is_frozen(tmp_path: Path) -> None:
    with made_disk(tmp_path, 32 << 20, freezes=True) as folder:
        conductor = StubConductor(folder)
        try:
            conductor.send({"kind": "welcome", "run": "x"})
            conductor.until_kind("node")
            with frozen(folder):
                conductor.send(_start_program("print('printed')"))
                conductor.until_kind("exit")
                began = time.monotonic()
                for _ in range(3):
                    conductor.until_kind("status")
                assert time.monotonic() - began < 10
            conductor.send({"kind": "stop"})
            assert conductor.hear_out() == 0
            assert (folder / "rank0.gen0.log").read_text() == "printed\n"
            assert conductor.kept() == [message for message in conductor.heard if "seq" in message]
        finally:
            conductor.close()
