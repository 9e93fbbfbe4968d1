"""One rank as its agent sees it: with a stand-in for the worker, and once with the real one."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from seatrial.agent.rank_process import RankProcess
from seatrial.environment import self_location
from seatrial.probe.process import core_waits, read_process
from seatrial.protocol.commands import StartRank
from seatrial.protocol.events import ExitEvent
from seatrial.protocol.wire import Decoder, encode
from seatrial.util import memory_file

StartStandIn = Callable[..., RankProcess]

_HEAD = """
import os, signal, subprocess, sys, time
event_fd, phase_fd, stack_fd = (int(os.environ[f"SEATRIAL_{name}_FD"]) for name in ("EVENT", "PHASE", "STACK"))
"""

_IN_A_PHASE = """import mmap, struct
mmap.mmap(phase_fd, 512)[:18] = struct.pack('<QQH', 1, 1, 0)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
"""
"""Code of a rank in its first phase, which is asked for its stack."""


@pytest.fixture
def start_stand_in(tmp_path: Path) -> Iterator[StartStandIn]:
    """Starts a rank whose ``seatrial.worker.worker_main`` is a program of the test."""
    started = []

    def start(program: str, log: Path | None = None) -> RankProcess:
        folder = tmp_path / "seatrial" / "worker"
        folder.mkdir(parents=True, exist_ok=True)
        (tmp_path / "seatrial" / "__init__.py").touch()
        (folder / "__init__.py").touch()
        (folder / "worker_main.py").write_text(_HEAD + program)
        environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
        process = RankProcess(3, 1, environ, log.open("ab", buffering=0) if log else io.BytesIO())
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        assert process.wait(10)
        process.close()


def _until(happened: Callable[[], Any]) -> Any:
    give_up = time.monotonic() + 30
    while not (value := happened()):
        assert time.monotonic() < give_up
        time.sleep(0.005)
    return value


def _ended(process: RankProcess) -> ExitEvent:
    assert process.wait(20)
    process.read(process.output_fd, everything=True)
    return process.exit_event()


def test_the_exit_code_and_the_last_lines(start_stand_in: StartStandIn, tmp_path: Path) -> None:
    process = start_stand_in(
        "for n in range(99): print('line', n)\nprint('no newline', end=''); sys.exit(7)", tmp_path / "log"
    )
    ended = _ended(process)
    assert (ended["rank"], ended["gen"], ended["code"], ended["ours"]) == (3, 1, 7, False)
    assert ended["last_lines"] == [*(f"line {number}" for number in range(90, 99)), "no newline"]
    assert (tmp_path / "log").read_text().splitlines() == [*(f"line {number}" for number in range(99)), "no newline"]


def test_of_many_lines_at_once_only_the_last_are_looked_at(start_stand_in: StartStandIn) -> None:
    """A rank that prints blank lines at full speed must not keep its agent busy."""
    looked_at = []

    class Line(bytes):
        def rstrip(self, chars: object = None) -> bytes:
            looked_at.append(self)
            return bytes(self)

    process = start_stand_in("")
    lines: list[bytes] = [Line(b"%d" % number) for number in range(1_000)]
    lines[-5] = Line(b"frame #1")
    process._last_output.add(lines)
    process._last_output.add([Line(b"last")])
    assert len(looked_at) == 161
    assert process.last_line() == "last"


def test_a_stack_in_cpp_does_not_push_out_the_message(start_stand_in: StartStandIn, tmp_path: Path) -> None:
    process = start_stand_in(
        "print('  what():  NCCL error')\nfor n in range(20): print(f'frame #{n}: c10::Error')", tmp_path / "log"
    )
    assert _ended(process)["last_lines"] == ["  what():  NCCL error"]
    assert len((tmp_path / "log").read_text().splitlines()) == 21
    process = start_stand_in("print('Error: NCCL')\nfor n in range(20): print(f'[rank3]: frame #{n}: c10::Error')")
    assert _ended(process)["last_lines"] == ["Error: NCCL"]


def test_a_traceback_at_the_end_is_kept_from_its_beginning(start_stand_in: StartStandIn) -> None:
    """The line of the user's script is at its top, and calls into torch are below."""
    process = start_stand_in(
        "def call(n):\n    if n: call(n - 1)\n    else: raise ValueError('corrupt')\n"
        "for n in range(30): print('line', n, flush=True)\n"
        "call(2)\n"
    )
    last_lines = _ended(process)["last_lines"]
    assert last_lines[-1] == "ValueError: corrupt"
    assert "Traceback (most recent call last):" in last_lines
    assert "line 19" not in last_lines


def test_of_exceptions_that_followed_from_one_another_all_are_kept(start_stand_in: StartStandIn) -> None:
    """The first one says why."""
    process = start_stand_in(
        "def call(n):\n    if n: return call(n - 1)\n    try: raise RuntimeError('Gloo')\n"
        "    except RuntimeError as error: raise OSError('job') from error\n"
        "call(2)\n"
    )
    last_lines = _ended(process)["last_lines"]
    assert last_lines[0] == "Traceback (most recent call last):"
    assert "RuntimeError: Gloo" in last_lines
    assert last_lines[-1] == "OSError: job"


@pytest.mark.parametrize(
    "words",
    [
        [
            "[rank1]:[E ProcessGroupNCCL.cpp:2] [Rank 1] Process group watchdog thread terminated with exception: x",
            "Last error:",
        ],
        [
            "[rank1]: Traceback (most recent call last): (RANK 3)",
            "[rank1]: OSError: [Errno 28] No space left on device",
        ],
    ],
)
@pytest.mark.parametrize("more", [15, 100])
def test_why_a_library_ends_a_rank_is_kept(start_stand_in: StartStandIn, words: list[str], more: int) -> None:
    """Parents of the rank print their own errors behind it."""
    process = start_stand_in(f"for line in {words!r}: print(line)\nfor n in range({more}): print('parent', n)")
    last_lines = _ended(process)["last_lines"]
    assert last_lines[:2] == words
    assert last_lines[-1] == f"parent {more - 1}"
    assert len(last_lines) <= 40


def test_marks_below_the_code_and_a_long_traceback_leave_room(start_stand_in: StartStandIn) -> None:
    process = start_stand_in(
        "print('[rank0]:            ^^^^^')\nprint('[rank0]: Traceback (most recent call last):')\n"
        "for n in range(14): print('[rank0]:   call', n); print('[rank0]:   ~~~^^^')"
    )
    last_lines = _ended(process)["last_lines"]
    assert last_lines == ["[rank0]: Traceback (most recent call last):", *(f"[rank0]:   call {n}" for n in range(14))]


def test_a_signal_is_a_negative_exit_code(start_stand_in: StartStandIn) -> None:
    assert _ended(start_stand_in("os.kill(os.getpid(), signal.SIGSEGV)"))["code"] == -signal.SIGSEGV


def test_output_without_end_is_bounded(start_stand_in: StartStandIn) -> None:
    process = start_stand_in("sys.stdout.write('x' * (4 << 20)); sys.stdout.flush(); print(); print('end')")
    while not process.read(process.output_fd)[1]:
        assert len(process.buffers[process.output_fd]) <= 1 << 16
    assert [len(line) for line in _ended(process)["last_lines"]] == [500, 3]


def test_an_event_that_is_printed_is_text(start_stand_in: StartStandIn) -> None:
    """Events come by a descriptor that a script does not have."""
    (line,) = encode({"kind": "done", "rank": 3, "gen": 1})
    process = start_stand_in(f"sys.stdout.buffer.write({line!r}); sys.stdout.flush()")
    assert process.wait(20)
    assert process.read(process.event_fd, everything=True)[0] == []
    assert _ended(process)["last_lines"] == [line.decode().rstrip()]


def test_output_that_is_no_text(start_stand_in: StartStandIn) -> None:
    process = start_stand_in("sys.stdout.buffer.write(bytes(range(256)) + b'\\r\\n'); sys.stdout.flush()")
    assert _ended(process)["last_lines"][-1].endswith("\ufffd")


def test_the_log_is_bounded(start_stand_in: StartStandIn, tmp_path: Path) -> None:
    process = start_stand_in("for n in range(36): print(('x' * 2047 + '\\n') * 256, end='')", tmp_path / "log")
    while not process.read(process.output_fd)[1]:
        pass
    assert 16 << 20 <= (tmp_path / "log").stat().st_size < 17 << 20


def test_events_arrive_whole_and_in_order_after_its_death(start_stand_in: StartStandIn) -> None:
    lines = [line for number in range(200) for line in encode({"kind": "note", "number": number})]
    process = start_stand_in(f"for line in {lines!r}: os.write(event_fd, line)\nos.kill(os.getpid(), 9)")
    assert process.wait(20)
    decoder = Decoder()
    got, ended = process.read(process.event_fd, everything=True)
    assert ended
    assert [(decoder.line(line) or {})["number"] for line in got] == list(range(200))


def test_the_last_phase_outlives_it(start_stand_in: StartStandIn) -> None:
    process = start_stand_in(
        "import mmap, struct\nmmap.mmap(phase_fd, 512)[:22] = struct.pack('<QQH', 5, 5, 4) + b'here'\nos._exit(1)"
    )
    assert _ended(process)["phase"] == "here"


def test_only_a_clean_exit_after_quit_is_ours(start_stand_in: StartStandIn) -> None:
    process = start_stand_in("[line for line in sys.stdin if 'quit' in line and sys.exit(0)]")
    process.quit()
    assert _ended(process)["ours"]
    process = start_stand_in("os._exit(1)")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    process.quit()
    process.kill()
    ended = _ended(process)
    assert (ended["code"], ended["ours"]) == (1, False)


def test_a_stopped_rank_is_killed_with_its_children(start_stand_in: StartStandIn) -> None:
    process = start_stand_in(
        "child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    child = int(_until(lambda: process.read(process.output_fd)[0])[0])
    _until(lambda: process.state == "T")
    process.ask_stack()
    stack = process.stack_event(time.monotonic() + 10)
    assert (stack["state"], stack["text"]) == ("T", "")
    process.kill()
    ended = _ended(process)
    assert (ended["code"], ended["ours"]) == (-9, True)
    _until(lambda: (seen := read_process(child)) is None or seen.state in "ZX")
    assert process.state == "X"


def test_a_command_to_a_rank_that_is_gone_is_no_error(start_stand_in: StartStandIn) -> None:
    process = start_stand_in("os._exit(0)")
    assert process.wait(20)
    process.send(cast(Any, {"kind": "step", "params": "x" * 200_000}))
    assert process.exit_event()["code"] == 0


def test_a_rank_without_a_handler_is_not_asked_for_a_stack(start_stand_in: StartStandIn) -> None:
    # Without a handler the signal would end it.
    process = start_stand_in("print('up', flush=True); time.sleep(600)")
    _until(lambda: process.read(process.output_fd)[0])
    process.ask_stack()
    assert process.stack_event(time.monotonic())["text"] == ""
    assert process.poll() is None


def test_a_stack_in_pieces_is_read_whole_and_no_older_one(start_stand_in: StartStandIn) -> None:
    process = start_stand_in(
        "os.write(stack_fd, b'Thread 0x2 (most recent call first):\\n  File of an answer that nobody waited for\\n')\n"
        "lines = [b'Thread 0x1 (most recent call first):\\n', *(b'  File %d\\n' % n for n in range(50))]\n"
        "lines += [b'  File worker/worker_main.py\\n']\n"
        "def answer(*_):\n"
        # Without its beginning, which the agent has removed, it would show the rank elsewhere.
        "    os.write(stack_fd, b'e of a stack that was being written\\n  File worker/worker_main.py\\n')\n"
        # One pause as of a rank that others keep from its core meanwhile, or a limit of its container.
        "    for n, line in enumerate(lines): os.write(stack_fd, line); time.sleep(0.3 * (n == 25))\n"
        f"signal.signal(signal.SIGUSR1, answer)\n{_IN_A_PHASE}"
        "print('up', flush=True)\nwhile True: time.sleep(1)\n"
    )
    _until(lambda: process.read(process.output_fd)[0])
    process.ask_stack()
    text = process.stack_event(time.monotonic() + 20)["text"]
    assert text.splitlines()[:-1] == ["Thread 0x1 (most recent call first):", *(f"  File {n}" for n in range(50))]


def test_a_stack_without_its_beginning_is_none(start_stand_in: StartStandIn) -> None:
    """A handler that runs already answers no further signal, and the agent has removed what it wrote before."""
    process = start_stand_in(
        "def answer(*_): os.write(stack_fd, b'  File of an outer call\\n')\n"
        f"signal.signal(signal.SIGUSR1, answer)\n{_IN_A_PHASE}"
        "print('up', flush=True)\nwhile True: time.sleep(1)\n"
    )
    _until(lambda: process.read(process.output_fd)[0])
    process.ask_stack()
    assert process.stack_event(time.monotonic() + 1)["text"] == ""


def test_signals_from_outside_never_keep_a_rank_waiting(start_stand_in: StartStandIn) -> None:
    """Launchers may send one each minute for days, and nobody reads the stacks that a rank writes then."""
    process = start_stand_in(
        "import faulthandler\n"
        f"faulthandler.register(signal.SIGUSR1, file=stack_fd, all_threads=True)\n{_IN_A_PHASE}"
        "def again():\n    for _ in range(2000): os.kill(os.getpid(), signal.SIGUSR1)\n"
        "again()\nprint('lives', flush=True)\ndef here(): time.sleep(600)\nhere()\n"
    )
    assert _until(lambda: process.read(process.output_fd)[0]) == [b"lives"]
    _until(lambda: process.state == "S")
    process.ask_stack()
    lines = process.stack_event(time.monotonic() + 10)["text"].splitlines()
    assert len(lines) == 5
    assert lines[0].endswith("(most recent call first):")
    assert lines[1].endswith(" in here")
    assert not any(line.endswith(" in again") for line in lines)


def test_signals_to_all_processes_of_a_job_end_no_rank_that_starts(start_stand_in: StartStandIn) -> None:
    """The default would end it, and it would be named. The rank of a script has what it would have without us."""
    process = start_stand_in("time.sleep(0.5); print('lives', flush=True); time.sleep(60)")
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        process.signal(number)
    assert _until(lambda: process.read(process.output_fd)[0]) == [b"lives"]
    print_mask = "import signal; print(len(signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {10, 12}))"
    argv = [sys.executable, "-c", print_mask]
    script = RankProcess(0, 0, os.environ, io.BytesIO(), argv=argv, watched=False)
    assert _ended(script)["last_lines"] == ["0"]
    script.close()


@pytest.mark.parametrize("watched", [True, False])
def test_our_own_ranks_alone_inherit_a_bundle_in_memory(watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = memory_file.create(b"code")
    monkeypatch.setattr(self_location, "BUNDLE_FDS", (bundle,))
    look = f"import os; print(os.path.realpath('/proc/self/fd/{bundle}') == '/memfd:seatrial (deleted)')"
    program = RankProcess(0, 0, os.environ, io.BytesIO(), argv=[sys.executable, "-c", look], watched=watched)
    os.close(bundle)
    assert _ended(program)["last_lines"] == [str(watched)]
    program.close()


def test_the_real_worker_reports_its_rank_and_stack_and_quits() -> None:
    start = StartRank(
        kind="start",
        run="x",
        gen=0,
        rank=1,
        local_rank=1,
        local_world_size=2,
        node_rank=0,
        node="here",
        address="127.0.0.1",
        ranks=[[0, 1]],
        device="cpu",
        backend="auto",
        threads=1,
        planted=[],
    )
    process = RankProcess(1, 0, os.environ, io.BytesIO(), start=start)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        process.signal(number)
    decoder = Decoder()

    def event() -> dict[str, Any] | None:
        lines, _ = process.read(process.event_fd)
        return decoder.line(lines[0]) if lines else None

    try:
        ready = _until(event)
        assert (ready["kind"], ready["rank"], ready["pid"], ready["device_type"]) == ("rank", 1, process.pid, "cpu")
        assert (ready["backend"], ready["threads"]) == ("gloo", 1)
        assert process.status({})[3] == "ready"
        # As launchers and systemd send them to all processes of a job.
        for number in (signal.SIGUSR2, signal.SIGHUP, signal.SIGINT):
            process.signal(number)
        process.ask_stack()
        stack = process.stack_event(time.monotonic() + 10)
        assert "worker/worker_main.py" in stack["text"]
        process.quit()
        assert process.wait(20)
        assert [decoder.line(line)["kind"] for line in process.read(process.event_fd, everything=True)[0]] == ["end"]  # type: ignore[index]
        ended = process.exit_event()
        assert (ended["code"], ended["ours"], ended["phase"]) == (0, True, "end")
    finally:
        process.kill()
        process.wait(10)
        process.close()


@pytest.fixture
def neighbors_on_one_core() -> Iterator[None]:
    """What starts next has one core, like processes of other sessions: the kernel shares it between sessions."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    words = [sys.executable, "-c", "while True: pass"]
    neighbors = [subprocess.Popen(words, start_new_session=True) for _ in range(8)]
    yield
    os.sched_setaffinity(0, cores)
    for neighbor in neighbors:
        neighbor.kill()
        neighbor.wait()


@pytest.mark.skipif(not core_waits(os.getpid()), reason="this kernel does not count how long a thread waits")
@pytest.mark.usefixtures("neighbors_on_one_core")
def test_neighbors_are_seen_that_hold_up_threads_alone(start_stand_in: StartStandIn) -> None:
    """The main thread of a rank sleeps while threads of a library work, as Gloo's do."""
    process = start_stand_in(
        "import hashlib, threading\n"
        "def work():\n    while True: hashlib.sha256(bytes(1 << 16))\n"
        "threading.Thread(target=work).start()\nprint('works', flush=True)\nthreading.Event().wait()"
    )
    _until(lambda: process.read(process.output_fd)[0])
    before_s = core_waits(process.pid)[str(process.pid)]
    _until(lambda: process.status({})[4] > 1.0)
    assert core_waits(process.pid)[str(process.pid)] - before_s < 0.5
