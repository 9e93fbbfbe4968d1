"""The process of one rank, with its pipes and its page of phases."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from seatrial.agent.command_pipe import CommandPipe
from seatrial.agent.last_output import LastOutput
from seatrial.environment import self_location
from seatrial.environment.pmi import launcher_fds
from seatrial.probe import process
from seatrial.probe.cgroup import Throttling
from seatrial.probe.held import Held, Reading, held_until
from seatrial.protocol import phase_page
from seatrial.protocol.commands import Quit, RankCommand, StartRank
from seatrial.protocol.events import ExitEvent, StackEvent
from seatrial.protocol.rank_stacks import innermost_frame
from seatrial.util.job_signals import those_for_ranks_held_back

_LOG_LIMIT_BYTES = 16 << 20
_MAX_UNREAD_BYTES = 4 << 20
_STACK_LIMIT_BYTES = 48 << 10
_THREAD = re.compile(rb"^.*\(most recent call first\):$", re.MULTILINE)
"""The line before the calls of a thread, as faulthandler writes it."""

# The kernel kills the program when its agent dies, however it dies (PR_SET_PDEATHSIG). Python ignores two signals, and
# the program would inherit that.
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


def log_name(rank: int, generation: int) -> str:
    """Return the name of the file with the output of a rank in the folder of the run."""
    return f"rank{rank}.gen{generation}.log"


class OutputLog(Protocol):
    """What keeps the output of a rank. It never waits, since the agent must be heard each second."""

    def write(self, piece: bytes, /) -> object:
        """Append to the output."""

    def close(self) -> None:
        """Note that nothing follows."""


class RankProcess:
    """A rank that the constructor starts: our worker, or a program."""

    def __init__(
        self,
        rank: int,
        generation: int,
        environ: Mapping[str, str],
        log: OutputLog,
        *,
        start: StartRank | None = None,
        argv: Sequence[str] | None = None,
        watched: bool = True,
        cwd: str | None = None,
    ) -> None:
        """Start the process.

        Args:
            rank: global rank.
            generation: generation that it belongs to.
            environ: its environment, apart from the variables for the pipes.
            log: receives its output.
            start: first command for the worker.
            argv: a program in place of the worker. It gets no commands, and its output is logged to the last byte.
            watched: the program reports phases and events as the worker does.
            cwd: working directory. None: the agent's.
        """
        self.rank = rank
        self.generation = generation
        self.ours = False
        """The agent ended it."""
        self.watched = watched
        self.program = "" if argv is None else argv[0]
        """Path of the interpreter, or of what is started in its place."""
        self.output_at = time.monotonic()
        """Time of its last output, or of its start."""
        self._quit_sent = False
        self.exit_code: int | None = None
        self.buffers: dict[int, bytes] = {}
        self._log = log
        self._log_left_bytes = _LOG_LIMIT_BYTES if argv is None else sys.maxsize
        self._last_output = LastOutput()
        self._held: Held | None = None
        self._phase_fd = phase_page.create()
        self._phases = phase_page.PhaseReader(self._phase_fd)
        event_read, event_write = os.pipe()
        self._stack_read, stack_write = os.pipe()
        # A launcher may send the signal for stacks again and again, and nobody reads them then: what does not fit is
        # lost, and the rank goes on.
        for fd in (self._stack_read, stack_write):
            os.set_blocking(fd, False)
        passed = {"EVENT": event_write, "PHASE": self._phase_fd, "STACK": stack_write} if watched else {}
        inherited = (*passed.values(), *launcher_fds(environ), *(self_location.BUNDLE_FDS if watched else ()))
        child = [sys.executable, "-I", "-S", "-c", _CHILD, str(os.getpid())]
        # Neither the signal for stacks nor the other one has a handler yet; those of a script are its own.
        with those_for_ranks_held_back() if watched else contextlib.nullcontext():
            self._process = subprocess.Popen(
                self_location.module_argv(sys.executable, "seatrial.worker.worker_main")
                if argv is None
                else [*child, *argv],
                stdin=subprocess.PIPE if argv is None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd,
                pass_fds=inherited,
                env={
                    **environ,
                    **{f"SEATRIAL_{name}_FD": str(fd) for name, fd in passed.items()},
                    **({"SEATRIAL_AGENT_PID": str(os.getpid())} if argv is None else {}),
                    "PYTHONUNBUFFERED": "1",
                },
            )
        os.close(event_write)
        os.close(stack_write)
        assert self._process.stdout is not None
        self.event_fd = event_read
        self.output_fd = self._process.stdout.fileno()
        for fd in (self.event_fd, self.output_fd):
            os.set_blocking(fd, False)
            self.buffers[fd] = b""
        self.end_fd = _pidfd(self._process.pid)
        """Readable once the process has ended, so that deaths keep their order. None: the kernel has no pidfd."""
        self._commands = CommandPipe(self._process.stdin) if self._process.stdin is not None else None
        if start is not None:
            self.send(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: RankCommand) -> None:
        """Send a command to the worker. One that is gone is reported by its exit, not here."""
        if self._commands is not None:
            self._commands.send(command)

    def flush(self) -> None:
        """Send the rest of a command that did not fit into the pipe."""
        if self._commands is not None:
            self._commands.flush()

    def read(self, fd: int, *, everything: bool = False) -> tuple[list[bytes], bool]:
        """Return the whole lines that arrived on a pipe, and whether the pipe has ended.

        ``everything``: read all that is there, for a rank that is gone.
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
            if fd == self.output_fd and piece:
                self.output_at = time.monotonic()
                self._log_piece(piece)
            if ended or not everything or len(data) > _MAX_UNREAD_BYTES:
                break
        *lines, rest = data.split(b"\n")
        if (ended or everything) and rest and fd == self.output_fd:
            lines, rest = [*lines, rest], b""
        # Only output can have a line without end (a progress bar); the lines of events have at most 4,000 bytes.
        self.buffers[fd] = rest[-(1 << 16) :]
        if fd == self.output_fd:
            self._last_output.add(lines)
        return lines, ended

    def _log_piece(self, piece: bytes) -> None:
        if self._log_left_bytes > 0:
            self._log.write(piece[: self._log_left_bytes])
            self._log_left_bytes -= len(piece)

    def last_line(self) -> str:
        """Return the last line of its output that is not blank, whether it has an end yet or not."""
        return self._last_output.last_line(self.buffers[self.output_fd])

    def status(self, quotas: Mapping[str, Throttling]) -> list[Any]:
        """Return [state letter, CPU seconds, phases entered, label of the phase, seconds in which others had its core].

        ``quotas``: of its control group, and of those above it, now.
        """
        number, label = self._phases.read()
        seen = process.read_process(self.pid)
        state, cpu_s = (seen.state, seen.cpu_s) if seen else ("X", 0.0)
        waits, cores = process.core_waits(self.pid), process.num_cores(self.pid)
        now = Reading(at_s=time.monotonic(), cpu_s=cpu_s, cores=cores, waits=waits, quotas=quotas)
        self._held = held_until(now, self._held)
        return [state, round(cpu_s, 2), number, label, round(self._held.held_s, 2)]

    @property
    def state(self) -> str:
        """State letter of /proc."""
        seen = process.read_process(self.pid)
        return seen.state if seen else "X"

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal. None: the process runs.

        Those that it started must not outlive it, nor go on writing into its pipes. They are killed before it is
        reaped: until then no other group of processes can have its number.
        """
        if self.exit_code is None and self._has_ended():
            self._kill_group()
            self.exit_code = self._process.poll()
        return self.exit_code

    def _has_ended(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # Somebody else has reaped it.
            return True

    def exit_event(self) -> ExitEvent:
        """Return the ``exit`` event of a rank that has ended."""
        assert self.exit_code is not None
        return ExitEvent(
            kind="exit",
            gen=self.generation,
            rank=self.rank,
            code=self.exit_code,
            ours=self.ours or (self._quit_sent and self.exit_code == 0),
            phase=self._phases.read()[1],
            last_lines=self._last_output.telling(),
        )

    def ask_stack(self) -> None:
        """Ask for the Python stack of all threads. A stopped process cannot answer and is not asked."""
        with contextlib.suppress(OSError):  # the pipe is empty
            # Earlier stacks, perhaps without their end: those that came too late, and those that others asked for.
            os.read(self._stack_read, fcntl.fcntl(self._stack_read, fcntl.F_GETPIPE_SZ))
        # Before its first phase a rank has no handler yet.
        if self.state not in ("T", "t", "Z", "X") and self._phases.read()[0] > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)

    def stack_event(self, until: float) -> StackEvent:
        """Return the ``stack`` event: the stacks that the rank wrote until then (monotonic), and its state in /proc."""
        state = self.state
        text = b""
        quiet = 0
        while state not in ("T", "t", "Z", "X") and len(text) < _STACK_LIMIT_BYTES:
            try:
                piece = os.read(self._stack_read, 1 << 16)
            except BlockingIOError:
                # They come line by line: whole after a line end that nothing follows for a while, and not before the
                # thread that the conductor asks about.
                is_whole = quiet > 5 and text.endswith(b"\n") and innermost_frame(_stacks(text))
                if is_whole or time.monotonic() > until:
                    break
                quiet += 1
                time.sleep(0.02)
                continue
            if not piece:
                break
            text, quiet = text + piece, 0
        return StackEvent(
            kind="stack",
            gen=self.generation,
            rank=self.rank,
            state=state,
            wchan=process.wchan(self.pid),
            text=_stacks(text),
        )

    def quit(self) -> None:
        """Have the worker end by itself. Only a clean exit then counts as ours."""
        self._quit_sent = self.poll() is None  # a worker that is gone already did not quit
        self.send(Quit(kind="quit"))

    def terminate(self) -> None:
        """Send SIGTERM. Any exit then counts as ours."""
        self.ours = self.ours or self.poll() is None
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send a signal to the process if it has not ended."""
        if self.poll() is None:
            # Not to the group: a rank that loses its data loaders cannot save a checkpoint.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, stopped or not, with all processes that it started."""
        if self.poll() is None:
            self.ours = True
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s``. Returns whether the process has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.exit_code = self._process.wait(timeout_s)
        return self.exit_code is not None

    def close(self) -> None:
        """Close pipes, page and log."""
        assert self._process.stdout is not None
        if self._commands is not None:
            self._commands.close()
        self._process.stdout.close()
        os.close(self.event_fd)
        if self.end_fd is not None:
            os.close(self.end_fd)
        os.close(self._stack_read)
        self._phases.close()
        os.close(self._phase_fd)
        self._log.close()


def _stacks(text: bytes) -> str:
    """Return the stacks: in front may be the end of one that was being written when the pipe was emptied."""
    first = _THREAD.search(text)
    return "" if first is None else text[first.start() :][:_STACK_LIMIT_BYTES].decode(errors="replace")


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
