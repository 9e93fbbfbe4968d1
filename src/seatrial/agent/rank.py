"""One rank as its agent sees it: a process, four pipes and a page of phases."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from seatrial.probe import own_code, phase, process
from seatrial.verdict.wire import encode

__all__ = ["RankProcess", "Tail"]

_KEPT_LINES = 40
_KEPT_LINE_BYTES = 500
_LOG_LIMIT_BYTES = 16 << 20
_LAST_WORDS_BYTES = 4 << 20
_STACK_LIMIT_BYTES = 48 << 10
_TAIL_BYTES = 1 << 18

# The kernel ends the program when its agent dies, however it dies. Python ignores two signals, and what it executes
# would inherit that.
_CHILD = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]} cannot be started: {error.strerror}")
"""


class Tail:
    """The last that a rank has printed, in place of a file."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, piece: bytes) -> None:
        """As a file takes it."""
        self.data = (self.data + piece)[-_TAIL_BYTES:]

    def close(self) -> None:
        """It can be read still."""


class RankProcess:
    """Started by the constructor; ``poll`` says when it is over."""

    def __init__(
        self,
        start: Mapping[str, Any],
        environ: Mapping[str, str],
        log: BinaryIO | Tail,
        *,
        argv: Sequence[str] | None = None,
        watched: bool = True,
        cwd: str | None = None,
    ) -> None:
        """``argv``: a program instead of the worker; it gets no commands, and its output is kept to the last byte.

        ``watched``: it tells its phases and events as the worker does.
        """
        self.rank: int = start["rank"]
        self.generation: int = start["gen"]
        self.ours = False
        """We ended it."""
        self._told_to_quit = False
        self.exit_code: int | None = None
        self.buffers: dict[int, bytes] = {}
        self._log = log
        self._log_room = _LOG_LIMIT_BYTES if argv is None else sys.maxsize
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._phase_fd = phase.create()
        self._phases = phase.PhaseReader(self._phase_fd)
        event_read, event_write = os.pipe()
        self._stack_read, stack_write = os.pipe()
        passed = {"EVENT": event_write, "PHASE": self._phase_fd, "STACK": stack_write} if watched else {}
        child = [sys.executable, "-I", "-S", "-c", _CHILD, str(os.getpid())]
        self._process = subprocess.Popen(
            own_code.module_argv(sys.executable, "seatrial.worker.main") if argv is None else [*child, *argv],
            stdin=subprocess.PIPE if argv is None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            pass_fds=(*passed.values(), *process.launcher_fds(environ)),
            env={
                **environ,
                **{f"SEATRIAL_{name}_FD": str(fd) for name, fd in passed.items()},
                **({"SEATRIAL_AGENT_PID": str(os.getpid())} if argv is None else {}),
                "PYTHONUNBUFFERED": "1",
            },
        )
        os.close(event_write)
        os.close(stack_write)
        os.set_blocking(self._stack_read, False)
        assert self._process.stdout is not None
        self.event_fd = event_read
        self.output_fd = self._process.stdout.fileno()
        for fd in (self.event_fd, self.output_fd):
            os.set_blocking(fd, False)
            self.buffers[fd] = b""
        self.end_fd = _end_of(self._process.pid)
        """Readable once it has ended, so that deaths are met in their order; None where the kernel has none."""
        if argv is None:
            self.send(dict(start))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: dict[str, Any]) -> None:
        """Hand a command to the rank. A rank that is gone is told by its exit, not here."""
        if self._process.stdin is None:
            return
        with contextlib.suppress(OSError, ValueError):
            for line in encode(command):
                self._process.stdin.write(line)
            self._process.stdin.flush()

    def read(self, fd: int, *, everything: bool = False) -> tuple[list[bytes], bool]:
        """Whole lines that have come on one of the pipes, and whether the pipe has ended.

        ``everything``: all that is there, for a rank that is gone.
        """
        ended = False
        data = self.buffers[fd]
        while True:
            try:
                piece = os.read(fd, 1 << 16)
            except BlockingIOError:
                break
            ended = not piece
            data += piece
            if fd == self.output_fd:
                self._log_piece(piece)
            if ended or not everything or len(data) > _LAST_WORDS_BYTES:
                break
        *lines, rest = data.split(b"\n")
        if (ended or everything) and rest and fd == self.output_fd:
            lines, rest = [*lines, rest], b""
        # Only output can have a line without end (a progress bar); ours are at most 4,000 bytes long.
        self.buffers[fd] = rest[-(1 << 16) :]
        if fd == self.output_fd:
            self._keep(lines)
        return lines, ended

    def _log_piece(self, piece: bytes) -> None:
        if self._log_room > 0:
            with contextlib.suppress(OSError):  # a full disk must not disturb the trial
                self._log.write(piece[: self._log_room])
            self._log_room -= len(piece)

    def _keep(self, lines: list[bytes]) -> None:
        for line in lines:
            if line.startswith(b"frame #"):  # of torch's own stack in C++, beside which its message would not be kept
                continue
            shown = line.rstrip(b"\r").rpartition(b"\r")[2]  # of a progress bar its last state
            self._last_lines.append(shown[-_KEPT_LINE_BYTES:].decode(errors="replace"))

    def status(self) -> list[Any]:
        """State letter, CPU seconds, phases entered, label of the phase."""
        number, label = self._phases.read()
        seen = process.look(self.pid)
        return [seen.state if seen else "X", round(seen.cpu_s, 2) if seen else 0.0, number, label]

    def poll(self) -> int | None:
        """The exit code, once it is over; negative: ended by that signal."""
        if self.exit_code is None:
            self.exit_code = self._process.poll()
        return self.exit_code

    def ended(self) -> dict[str, Any]:
        """Payload of the ``exit`` event."""
        return {
            "gen": self.generation,
            "rank": self.rank,
            "code": self.exit_code,
            "ours": self.ours or (self._told_to_quit and self.exit_code == 0),
            "phase": self._phases.read()[1],
            "last_lines": list(self._last_lines)[-10:],
        }

    def ask_stack(self) -> None:
        """Ask for the Python stack of all threads. A stopped process cannot answer and is not asked."""
        seen = process.look(self.pid)
        # Before its first phase a rank has no handler yet, and the signal would kill it.
        if seen is not None and seen.state not in ("T", "t", "Z", "X") and self._phases.read()[0] > 0:
            with contextlib.suppress(OSError):
                os.read(self._stack_read, 1 << 16)  # all that a pipe holds: what came too late tells where it was then
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)

    def take_stack(self, until: float) -> dict[str, Any]:
        """Payload of the ``stack`` event: what the process answered by then (monotonic), and what /proc says."""
        seen = process.look(self.pid)
        state = seen.state if seen else "X"
        text = b""
        quiet = 0
        while state not in ("T", "t", "Z", "X") and len(text) < _STACK_LIMIT_BYTES:
            try:
                piece = os.read(self._stack_read, 1 << 16)
            except BlockingIOError:
                # It comes line by line, who waits last: whole is what ends in a line and was long followed by nothing.
                if (quiet > 5 and text.endswith(b"\n")) or time.monotonic() > until:
                    break
                quiet += 1
                time.sleep(0.02)
                continue
            if not piece:
                break
            text, quiet = text + piece, 0
        return {
            "gen": self.generation,
            "rank": self.rank,
            "state": state,
            "wchan": process.wchan(self.pid),
            "text": text[:_STACK_LIMIT_BYTES].decode(errors="replace"),
        }

    def quit(self) -> None:
        """Tell it to end by itself. How it does that is its own affair: only a clean end is on our account."""
        self._told_to_quit = self.poll() is None  # one that is gone already went without being told
        self.send({"kind": "quit"})

    def terminate(self) -> None:
        """Ask it by SIGTERM to end. However it does, it was our wish."""
        self.ours = self.ours or self.poll() is None
        if self.exit_code is None:
            # Not the group: a loader that is torn away from its rank spoils the last checkpoint.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it now, stopped or not, with all that it started."""
        self.ours = self.ours or self.poll() is None
        self.kill_group()

    def kill_group(self) -> None:
        """End what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Whether it is gone by then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.exit_code = self._process.wait(timeout_s)
        return self.exit_code is not None

    def close(self) -> None:
        """Give pipes and page back."""
        assert self._process.stdout is not None
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process.stdout.close()
        os.close(self.event_fd)
        if self.end_fd is not None:
            os.close(self.end_fd)
        os.close(self._stack_read)
        self._phases.close()
        os.close(self._phase_fd)
        with contextlib.suppress(OSError):
            self._log.close()


def _end_of(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
