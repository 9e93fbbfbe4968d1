"""A job of Slurm from its submission to its end: waited for with the reason in words, watched, cancelled."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from seatrial.errors import RequestError, SeatrialError
from seatrial.launch.agents import Adopt
from seatrial.launch.command import Command
from seatrial.launch.launchers import prepare, refuse
from seatrial.launch.slurm_words import ACCOUNTED, ASKED, JobState, complaint, ended_by, read_state, waits_for
from seatrial.report.streams import tell

__all__ = ["Batch"]

_ANSWER_S = 60.0
"""Slurm's own commands try again for as long as its configuration says, which may be minutes."""
_QUEUE_LOOK_S = 2.0
_RUN_LOOK_S = 5.0
_SILENT_S = 120.0
"""A restart of slurmctld takes a minute and harms no job."""
_END_LOOK_S = 0.5
_END_S = 8.0
_CANCEL_S = 10.0
_NOBODY_ANSWERS = ("Unable to contact", "Socket timed out", "Connection refused", "configuration", "Zero Bytes")
_STOPPED = ("CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE", "SUSPENDED", "STOPPED", "REVOKED")


class Batch:
    """A Driver of one job."""

    def __init__(
        self,
        *,
        queue_timeout_s: float,
        asked: str,
        tell: Callable[[str], None] = tell,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``asked``: for what the job asks, for those who are told that it is refused."""
        self.number = ""
        """Of the job; empty before it is submitted."""
        self._asked = asked
        self._queue_timeout_s = queue_timeout_s
        self._say = tell
        self._clock = clock
        self._nodes: tuple[int, ...] = ()
        self._log = Path()
        self._looking: subprocess.Popen[str] | None = None
        self._look_at = 0.0
        self._lost: list[tuple[int, str]] = []
        self._over = False

    def start(self, commands: Sequence[Command], folder: Path, caught: Sequence[int], adopt: Adopt) -> None:
        """Submit, and wait until it runs. Raises RequestError for what Slurm refuses, SeatrialError for the rest."""
        (command,) = commands
        self._nodes, self._log = command.nodes, folder / "slurm.log"
        prepare(command)
        self.number = _submit(command, self._asked)
        self._say(f"seatrial: submitted as Slurm job {self.number}")
        self._wait_in_queue(caught)

    def _wait_in_queue(self, caught: Sequence[int]) -> None:
        began = heard = self._clock()
        told = ""
        while not caught:
            job = self._look()
            now = self._clock()
            if job is None:
                if now - heard > _SILENT_S:
                    number = self.number
                    raise SeatrialError(
                        f"Slurm has said nothing of job {number} for {_SILENT_S:.0f} s; see squeue -j {number}."
                    )
            elif job.running:
                self._say(f"seatrial: Slurm job {self.number} runs on {job.nodes}")
                return
            elif not job.waiting:
                refuse(self._log)
                raise SeatrialError(f"Slurm job {self.number}: {ended_by(job)}{self._complaint()}.")
            elif job.never:
                raise RequestError(
                    f"Slurm job {self.number} will never start: {waits_for(job)}; it asks for {self._asked}."
                )
            else:
                heard = now
                if waits_for(job) != told:
                    told = waits_for(job)
                    self._say(f"seatrial: Slurm job {self.number} waits: {told}")
            if now - began > self._queue_timeout_s:
                raise SeatrialError(
                    f"Slurm job {self.number} has not started for {now - began:.0f} s (--queue-timeout):"
                    f" {told or 'no reason was told'}."
                )
            time.sleep(_QUEUE_LOOK_S)

    def news(self) -> tuple[int, str] | str | None:
        """The end of the job, which is that of all agents that have not said how they ended.

        Raises RequestError when srun in it refuses what it is asked for.
        """
        if self._lost:
            return self._lost.pop(0)
        job = None if self._over else self._look_again()
        if job is None or job.waiting or job.running:
            return None
        self._over = True
        words = f"Slurm job {self.number}: {ended_by(job)}"
        if job.state in _STOPPED:
            return words
        refuse(self._log)
        self._lost = [(node, words + self._complaint()) for node in self._nodes]
        return None

    def kill(self) -> None:
        """Cancel it without waiting for the answer."""
        if self.number:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                _run(["scancel", self.number], timeout_s=_CANCEL_S)

    def end(self) -> list[tuple[int, str]]:
        """Its agents were told to end; cancel it when it goes on."""
        if self._looking is not None:
            self._looking.kill()
            self._looking.communicate()
            self._looking = None
        if not self.number or (self._is_over(_END_S) if self._nodes else False):
            return []
        self.kill()
        if self._is_over(_CANCEL_S):
            return []
        return [(0, f"Slurm job {self.number} may still be there, Slurm does not say; type scancel {self.number}")]

    def _is_over(self, timeout_s: float) -> bool:
        until = self._clock() + timeout_s
        while True:
            job = self._look()
            if job is not None and not job.waiting and (not job.running or job.state == "COMPLETING"):
                return True
            if (job is not None and job.waiting) or self._clock() > until:
                return False
            time.sleep(_END_LOOK_S)

    def _look(self) -> JobState | None:
        """None: nobody answers, or nobody knows it any more and no account is kept."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            return _state_in(_run(_look_argv(self.number), timeout_s=_CANCEL_S).stdout) or _state_in(
                _run(_accounted_argv(self.number), timeout_s=_CANCEL_S).stdout
            )
        return None

    def _look_again(self) -> JobState | None:
        """As ``_look``, without waiting: what the question of some seconds ago has brought."""
        now = self._clock()
        if self._looking is None:
            if now >= self._look_at:
                self._look_at = now + _RUN_LOOK_S
                with contextlib.suppress(OSError):
                    self._looking = subprocess.Popen(
                        _look_argv(self.number),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        text=True,
                        start_new_session=True,
                    )
            return None
        if self._looking.poll() is None:
            if now > self._look_at + _ANSWER_S:
                self._looking.kill()
            return None
        told, _ = self._looking.communicate()
        self._looking = None
        return _state_in(told)

    def _complaint(self) -> str:
        try:
            said = complaint(self._log.read_text(errors="replace"))
        except OSError:
            said = ""
        return f"; {said}" if said else ""


def _submit(command: Command, asked: str) -> str:
    """The number of the new job."""
    try:
        done = _run(command.argv, env=command.env, timeout_s=_ANSWER_S)
    except FileNotFoundError as error:
        raise RequestError(
            "--on slurm: sbatch is not to be found; type this on a host of the cluster where PATH leads to it."
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SeatrialError(
            f"sbatch has not answered within {_ANSWER_S:.0f} s; see that Slurm's controller runs (scontrol ping)."
        ) from error
    number = re.match(r"([0-9]+)(;|$)", done.stdout.strip())
    if done.returncode == 0 and number:
        return number[1]
    said = complaint(done.stderr) or done.stderr.strip()[-200:] or f"exit code {done.returncode}"
    if any(sign in said for sign in _NOBODY_ANSWERS):
        raise SeatrialError(f"Slurm does not answer: {said}; see that its controller runs (scontrol ping).")
    raise RequestError(f"sbatch refuses the job: {said.rstrip('.')}; it asks for {asked}.")


def _look_argv(number: str) -> list[str]:
    return ["squeue", "--noheader", "--states=all", f"--jobs={number}", f"--format={ASKED}"]


def _accounted_argv(number: str) -> list[str]:
    return ["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={number}", f"--format={ACCOUNTED}"]


def _state_in(text: str) -> JobState | None:
    return next((job for job in map(read_state, text.splitlines()) if job is not None), None)


def _run(
    argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
