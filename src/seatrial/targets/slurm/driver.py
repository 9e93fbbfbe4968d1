"""Driver of a job submitted with sbatch: submits it, reports why it waits, watches it and cancels it."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

from seatrial.errors import JobNotStartedError, RequestError, SeatrialError, TargetUnreachableError
from seatrial.targets.command import Command
from seatrial.targets.host_of_node import HostOfNode
from seatrial.targets.launcher_process import TAIL_BYTES, raise_if_refused, write_bundle
from seatrial.targets.processes import LAST_ANSWER_S, Attach, LogTails, signal_group
from seatrial.targets.slurm.node_list import find_step, hosts_of_step
from seatrial.targets.slurm.reasons import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    JobState,
    describe_end,
    last_error,
    parse_state,
    pending_reason,
)
from seatrial.util.streams import print_status
from seatrial.util.text import quoted

_ANSWER_S = 60.0
"""Deadline of one command. Slurm's commands retry for as long as its configuration says, which may be minutes."""
_QUEUE_POLL_S = 2.0
_RUN_POLL_S = 5.0
_NO_ANSWER_S = 120.0
"""A restart of slurmctld takes about a minute and does not affect jobs."""
_END_POLL_S = 0.5
_READ_BYTES = 64 << 10
_END_S = 8.0
_CANCEL_S = 10.0
_KILLED_S = 1.0
_NO_CONTROLLER = ("Unable to contact", "Socket timed out", "Connection refused", "configuration source", "Zero Bytes")
"""Parts of the errors that mean that slurmctld did not answer."""
_STOPPED = ("CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE", "SUSPENDED", "STOPPED", "REVOKED")
"""States of a job that was stopped from outside: no node is at fault."""


def job_name(run: str) -> str:
    """Return Slurm's name for the job of a run."""
    return f"seatrial-{run}"


class BatchJobDriver:
    """``Driver`` of one batch job."""

    def __init__(
        self,
        *,
        queue_timeout_s: float,
        requested: str,
        step_name: str,
        on_status: Callable[[str], None] = print_status,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``requested``: the sbatch options of the job, quoted when Slurm refuses it. ``step_name``: the name of its
        srun, which is that of the run. ``clock`` returns seconds."""
        self.number = ""
        """Slurm's job ID; empty before the job is submitted."""
        self._requested = requested
        self._step_name = step_name
        self._queue_timeout_s = queue_timeout_s
        self._on_status = on_status
        self._clock = clock
        self._nodes: tuple[int, ...] = ()
        self._log = Path()
        self._tails = LogTails()
        self._squeue: subprocess.Popen[bytes] | None = None
        """The query in progress."""
        self._answer: IO[bytes] | None = None
        """Its output: a file, since a site's squeue may be a script, and what it leaves would keep a pipe open."""
        self._next_query_at = 0.0
        self._has_agents = False
        """Whether an agent has ever been connected: then srun has not refused its options."""
        self._lost: list[tuple[int, str]] = []
        """Nodes lost with the job that ``news`` has yet to return, and how they were lost."""
        self._ended: JobState | None = None
        self._ended_at = math.inf
        self._over = False
        """Whether ``poll`` has reported the end of the job."""

    def submit(self, commands: Sequence[Command], folder: Path, signals: Sequence[int], attach: Attach) -> None:
        """Submit the job and wait until it runs.

        Raises RequestError for a job that Slurm refuses or will never start, SeatrialError for any other failure.
        """
        (command,) = commands
        self._nodes, self._log = command.nodes, folder / "slurm.log"
        write_bundle(command)
        self.number = _submit(command, self._requested, job_name(self._step_name))
        self._on_status(f"seatrial: submitted as Slurm job {self.number}")
        self._wait_in_queue(signals)

    def _wait_in_queue(self, signals: Sequence[int]) -> None:
        began = last_answer = self._clock()
        reported = ""
        while not signals:
            job = self._query()
            now = self._clock()
            if job is None:
                if now - last_answer > _NO_ANSWER_S:
                    number = self.number
                    raise TargetUnreachableError(
                        f"Slurm has not reported the state of job {number} for {_NO_ANSWER_S:.0f} s;"
                        f" see squeue -j {number}."
                    )
            elif job.running:
                self._on_status(f"seatrial: Slurm job {self.number} is running on {job.nodes}")
                return
            elif not job.waiting:
                while (words := self._how_it_ended(job)) is None:
                    time.sleep(_END_POLL_S)
                raise SeatrialError(f"{words}.")
            elif job.never_starts:
                raise RequestError(
                    f"Slurm job {self.number} will never start: {pending_reason(job)}; it requests {self._requested}."
                )
            else:
                last_answer = now
                if pending_reason(job) != reported:
                    reported = pending_reason(job)
                    self._on_status(f"seatrial: Slurm job {self.number} is waiting: {reported}")
            if now - began > self._queue_timeout_s:
                raise JobNotStartedError(
                    f"Slurm job {self.number} has not started after {now - began:.0f} s (--queue-timeout):"
                    f" {reported or 'Slurm gave no reason'}."
                )
            time.sleep(_QUEUE_POLL_S)

    def hosts(self) -> Sequence[HostOfNode]:
        """Return the host of each node of the job's step. Raises SeatrialError as ``find_step`` does."""
        return hosts_of_step(find_step(self.number, self._step_name))

    def poll(self, connected: Collection[int]) -> tuple[int, str] | str | None:
        """Return the end of the job: it ends all agents that have not yet reported how they ended.

        Raises RequestError when the job's srun refuses its options.
        """
        self._has_agents = self._has_agents or bool(connected)
        for lost in self._lost:
            if lost[0] not in connected:
                self._lost.remove(lost)
                return lost
        job = None if self._over else self._ended or self._poll_query()
        if job is None or job.waiting or job.running:
            return None
        self._ended = job
        if job.state in _STOPPED:
            self._over = True
            return f"Slurm job {self.number}: {describe_end(job)}"
        words = self._how_it_ended(job)
        if words is None:
            return None
        self._over = True
        self._lost = [(node, words) for node in self._nodes]
        return None

    def pass_on(self, number: int, connected: Collection[int]) -> None:
        """Do nothing: the agents are no children of this process."""

    def kill(self) -> None:
        """Cancel the job without waiting for its end."""
        if self.number:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                _run(["scancel", self.number], timeout_s=_CANCEL_S)

    def cleanup(self) -> list[tuple[int, str]]:
        """Wait for the end of the job, whose agents were asked to end, and cancel it if it continues.

        Returns (node, sentence) for a job that may have outlived this.
        """
        if self._squeue is not None:
            signal_group(self._squeue, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._squeue.wait(_KILLED_S)
            self._take_answer()
        if not self.number or (self._is_over(_END_S) if self._nodes else False):
            return []
        self.kill()
        if self._is_over(_CANCEL_S):
            return []
        return [
            (0, f"Slurm job {self.number} may still exist, as Slurm does not report its end; run scancel {self.number}")
        ]

    def _is_over(self, timeout_s: float) -> bool:
        until = self._clock() + timeout_s
        while True:
            job = self._query()
            if job is not None and not job.waiting and (not job.running or job.state == "COMPLETING"):
                return True
            if (job is not None and job.waiting) or self._clock() > until:
                return False
            time.sleep(_END_POLL_S)

    def _query(self) -> JobState | None:
        """Return the state of the job, or None: Slurm does not answer, or has forgotten the job and has no accounting.

        Blocks for up to twice _CANCEL_S.
        """
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            return _find_state(_run(_squeue_argv(self.number), timeout_s=_CANCEL_S).stdout) or _find_state(
                _run(_sacct_argv(self.number), timeout_s=_CANCEL_S).stdout
            )
        return None

    def _poll_query(self) -> JobState | None:
        """Return the answer to the query started some seconds ago, or None; start the next one. Never blocks."""
        now = self._clock()
        if self._squeue is None:
            if now >= self._next_query_at:
                self._next_query_at = now + _RUN_POLL_S
                with contextlib.suppress(OSError), contextlib.ExitStack() as files:
                    answer = files.enter_context(tempfile.TemporaryFile())
                    self._squeue = subprocess.Popen(
                        _squeue_argv(self.number),
                        stdin=subprocess.DEVNULL,
                        stdout=answer,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                    self._answer = answer
                    files.pop_all()  # _take_answer closes it
            return None
        if self._squeue.poll() is None:
            if now > self._next_query_at + _ANSWER_S:
                signal_group(self._squeue, signal.SIGKILL)
            return None
        return _find_state(self._take_answer())

    def _take_answer(self) -> str:
        """Return what the query has printed so far, and forget it."""
        assert self._answer is not None
        with self._answer as answer:
            answer.seek(0)
            output = answer.read(_READ_BYTES).decode(errors="replace")
        self._squeue = self._answer = None
        return output

    def _how_it_ended(self, job: JobState) -> str | None:
        """Return it with the words of its output; None while the disk has time to show them. Raises RequestError where
        srun has refused its options."""
        now = self._clock()
        self._ended_at = min(self._ended_at, now)
        output = self._tails.read_last(self._log, TAIL_BYTES)
        if output is None and now - self._ended_at < LAST_ANSWER_S:
            return None
        output = output or ""
        if not self._has_agents:
            raise_if_refused(output)
        error = last_error(output)
        said = f"; its output says: {quoted(error)}" if error else ""
        return f"Slurm job {self.number}: {describe_end(job)}{said}"


def _submit(command: Command, requested: str, name: str) -> str:
    """Return the ID of the new job. Raises RequestError or SeatrialError when there is none.

    ``name``: of the job, which may exist although nobody has said so.
    """
    unknown = f"should squeue --name={name} show a job then, end it with scancel --name={name}"
    try:
        done = _run(command.argv, env=command.env, timeout_s=_ANSWER_S)
    except FileNotFoundError as error:
        raise RequestError(
            "--on slurm: sbatch was not found in PATH; run this command on a host of the cluster where it is."
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TargetUnreachableError(
            f"sbatch did not answer within {_ANSWER_S:.0f} s; check that Slurm's controller runs (scontrol ping);"
            f" {unknown}."
        ) from error
    if done.returncode == 0:
        # The sbatch of a site may be a script that prints more.
        numbers = re.findall(r"^[ \t]*([0-9]+)(?:;[\w.-]*)?[ \t\r]*$", done.stdout, re.MULTILINE)
        if len(numbers) == 1:
            return str(numbers[0])
        raise SeatrialError(f"sbatch has not said the number of one job; {unknown}.")
    reason = last_error(done.stderr) or done.stderr.strip()[-200:] or f"exit code {done.returncode}"
    if any(sign in reason for sign in _NO_CONTROLLER):
        raise TargetUnreachableError(
            f"Slurm does not answer: {reason}; check that its controller runs (scontrol ping); {unknown}."
        )
    raise RequestError(f"sbatch refuses the job: {reason.rstrip('.')}; it requests {requested}.")


def _squeue_argv(number: str) -> list[str]:
    return ["squeue", "--noheader", "--states=all", f"--jobs={number}", f"--format={SQUEUE_FORMAT}"]


def _sacct_argv(number: str) -> list[str]:
    return ["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={number}", f"--format={SACCT_FORMAT}"]


def _find_state(text: str) -> JobState | None:
    return next((job for job in map(parse_state, text.splitlines()) if job is not None), None)


def _run(
    argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
