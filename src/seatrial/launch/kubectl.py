"""kubectl, or oc, as a process: the user's own logins, contexts and plug-ins count, and no call lasts for ever."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from seatrial.errors import RequestError, SeatrialError

__all__ = ["Answer", "Asked", "Kubectl", "end_at_once", "find_kubectl"]

_ANSWER_S = 20.0
"""For one answer. A healthy API server takes less than a second, a login of a cloud's plug-in a few."""
_SERVER_S = 15
"""kubectl itself gives up then, and says in its own words what it waited for."""
_PROGRAMS = ("kubectl", "oc")
_TIMED_OUT = 124


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a call came to."""

    code: int
    out: str
    err: str
    silent: bool = False
    """It was given up: nobody answered in time."""

    @property
    def json(self) -> Any:
        """What was printed; None where that is no JSON."""
        try:
            return json.loads(self.out)
        except (ValueError, RecursionError):
            return None

    @property
    def complaint(self) -> str:
        """The last line that says what is wrong; whatever stands before it are mostly warnings."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        telling = [line for line in lines if line.lower().startswith(("error", "unable to", "the server"))]
        return (telling or lines or [f"exit code {self.code}"])[-1][:600]


class Asked:
    """A call under way. Its output goes to files, as a list of pods is longer than a pipe holds."""

    def __init__(self, argv: Sequence[str], feed: bytes | None, answer_s: float) -> None:
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - closed by _close
        self._until = time.monotonic() + answer_s
        self._answer_s = answer_s
        with contextlib.ExitStack() as stack:
            stdin: int | IO[bytes] = subprocess.DEVNULL
            if feed is not None:
                stdin = stack.enter_context(tempfile.TemporaryFile())
                stdin.write(feed)
                stdin.seek(0)
            # A terminal's Ctrl-C is for us alone: what was made is still to be deleted.
            self._process = subprocess.Popen(
                argv, stdin=stdin, stdout=self._out, stderr=self._err, start_new_session=True
            )

    def take(self) -> Answer | None:
        """The answer, or None as long as there is none; one that does not come in time is given up."""
        code = self._process.poll()
        if code is not None:
            answer = Answer(code=code, out=_read(self._out), err=_read(self._err))
            self._close()
            return answer
        if time.monotonic() < self._until:
            return None
        self.give_up()
        return Answer(code=_TIMED_OUT, out="", err=f"no answer within {self._answer_s:g} s", silent=True)

    def wait(self) -> Answer:
        """The answer, whenever it comes."""
        while True:
            if (answer := self.take()) is not None:
                return answer
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, self._until - time.monotonic()))

    def give_up(self) -> None:
        """End the call, and the plug-ins that it has started."""
        end_at_once(self._process)
        self._close()

    def _close(self) -> None:
        self._out.close()
        self._err.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """One program, one namespace."""

    program: str
    namespace: str | None
    """None: that of the user's own context."""
    answer_s: float = _ANSWER_S

    def argv(self, *words: str, follows: bool = False) -> list[str]:
        """The command. ``follows``: it goes on for as long as there is something to tell."""
        place = [] if self.namespace is None else ["--namespace", self.namespace]
        return [self.program, *place, *words, *([] if follows else [f"--request-timeout={_SERVER_S}s"])]

    def begin(self, *words: str, feed: bytes | None = None) -> Asked:
        """Ask without waiting. Raises RequestError when the program cannot be started."""
        try:
            return Asked(self.argv(*words), feed, self.answer_s)
        except OSError as error:
            raise RequestError(
                f"--kubectl {self.program}: it cannot be started ({error.strerror or error}); name another one."
            ) from error

    def ask(self, *words: str, feed: bytes | None = None) -> Answer:
        """Ask, and wait for the answer, at most ``answer_s``."""
        return self.begin(*words, feed=feed).wait()

    def json(self, *words: str) -> Any:
        """What a call that must succeed prints. Raises SeatrialError."""
        answer = self.ask(*words, "-o", "json")
        if answer.code != 0 or answer.json is None:
            raise SeatrialError(f"{self.shown(*words)}: {answer.complaint}; see that it answers, and try again.")
        return answer.json

    def shown(self, *words: str) -> str:
        """The command as a person would type it."""
        place = "" if self.namespace is None else f" -n {self.namespace}"
        return " ".join([os.path.basename(self.program) + place, *words])


def find_kubectl(told: str | None) -> str:
    """The program of ``--kubectl``, else kubectl, else oc. Raises RequestError where there is none."""
    found = next(filter(None, (shutil.which(name) for name in ([told] if told else _PROGRAMS))), None)
    if found is None:
        what = f"--kubectl {told}: there is no such program" if told else "neither kubectl nor oc is in PATH"
        raise RequestError(
            f"{what}; name it with --kubectl PATH, or print the manifests with --dry-run and apply them elsewhere."
        )
    return found


def end_at_once(process: subprocess.Popen[bytes]) -> None:
    """A process that leads a session of its own, and what it has started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
