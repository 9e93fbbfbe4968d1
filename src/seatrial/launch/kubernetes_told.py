"""What a run in pods has told, and what is said of it here when it ends otherwise than it should."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.conductor.conclude import conclude
from seatrial.conductor.program_failures import Exit, complaint
from seatrial.errors import RequestError
from seatrial.kubernetes.pods import PodSeen
from seatrial.launch.agents import said_last
from seatrial.launch.job import Job, Processes
from seatrial.launch.launcher_words import reason
from seatrial.verdict.events import Source

__all__ = ["Told"]

_RESULT = re.compile(r"trained \d+ of \d+ steps|after step \d+ of|stopped (?:on request|at step)")
"""The first of the lines with which a training ends (``worker/train_words.py``)."""
_SIGNALLED = 128
"""Higher exit codes tell a signal."""
_ERROR = "Error: "
_LAST_LINES = 20
_LAST_BYTES = 16_000


class Told:
    """Hands events on, and remembers what the end of the run is judged by."""

    def __init__(
        self,
        run: Mapping[str, Any],
        folder: Path,
        keep: Callable[[dict[str, Any]], None],
        hear: Callable[[dict[str, Any]], None],
    ) -> None:
        """``run``: the first event, as it is told from here."""
        self.spoke = False
        """The conductor in the pods has begun."""
        self.over = False
        """It has come to its end."""
        self.interrupted = False
        self.outcome = False
        self._run = dict(run)
        self._folder = folder
        self._keep, self._hear = keep, hear
        self._events: list[dict[str, Any]] = []
        self._own: Source | None = None
        self._last = 0
        self._lost_at: dict[int, int] = {}
        self._held: dict[str, Any] | None = None
        self._waiting: list[dict[str, Any]] | None = None
        self._result: list[str] = []

    def hold_back(self) -> None:
        """Until ``settle`` the run may still begin anew."""
        self._waiting = []

    def settle(self) -> None:
        """It does not; hand on what was told so far."""
        waiting, self._waiting = self._waiting, None
        for message in waiting or ():
            self.take(message)

    def restart(self, job: Processes) -> None:
        """The run begins again with fewer nodes, and nothing was told."""
        self._run["job"] = job.to_json()
        self._waiting = None

    def take(self, message: dict[str, Any]) -> None:
        """One message of the first pod, which it has proved to be its own."""
        if self._waiting is not None:
            self._waiting.append(message)
            return
        kind = message.get("kind")
        if "seq" not in message:
            self._hear(message)
            return
        if kind == "run":
            # What was asked for is known here: the pod knows its own place only.
            self.spoke, message = True, {**message, "job": self._run["job"]}
        if message.get("src") == "conductor":
            self._last = max(self._last, int(message["seq"]))
            self.over = self.over or kind == "end"
            self.outcome = self.outcome or kind == "outcome"
            for seen in message["seen"] if kind == "trouble" else ():
                if seen.get("node") is not None:
                    self._lost_at.setdefault(int(seen["node"]), self._last)
            if kind == "interrupted":
                # Why the pods were told to end is not known in there.
                self.interrupted, self._held = True, message
                return
        self._take(message)

    def excuse(self, why: str) -> None:
        """The pods were told to end only because one of them had failed by itself, so nobody interrupted the run."""
        if self._held is not None:
            told = {"kind": "note", "severity": "info", "text": f"the other pods were told to end, as {why}"}
            self._take({**self._held, **told})
            self.interrupted, self._held = False, None

    def text(self, lines: list[str]) -> None:
        """What the first pod has printed besides. Of a training without a conductor that is all there is."""
        if self.spoke:
            return
        for line in lines:
            if self._result or _RESULT.match(line):
                self._result.append(line)
            else:
                self._hear({"kind": "output", "gen": 0, "rank": 0, "lines": [line], "left_out": 0, "kept": True})

    def note(self, severity: str, text: str) -> None:
        """A word of ours, in the report."""
        self._tell("note", severity=severity, text=text)

    def lost_at(self, node: int, *, any_node: bool) -> int | None:
        """Which of the conductor's events told that this node was lost; None: it has missed nobody there.

        ``any_node``: which pod holds which is not known, as MPI has placed the ranks.
        """
        return min(self._lost_at.values(), default=None) if any_node else self._lost_at.get(node)

    def stopped(self, by: str, before: int | None = None) -> None:
        """Somebody has ended the run from outside.

        ``before``: an event of the conductor that tells a consequence of it, as all that follow do: nobody's fault.
        """
        if not self.interrupted:
            self.interrupted = True
            self._tell("interrupted", by=by, order=self._last + 1 if before is None else before)

    def ended(self, pods: Sequence[PodSeen], *, under_mpi: bool) -> None:
        """By their exit codes, for a training that no conductor speaks of. Raises RequestError for a wrong request."""
        judged = [pod for pod in pods if pod.is_launcher] if under_mpi else list(pods)
        codes = {pod.name: pod.exit_code for pod in judged}
        worst = min((pod for pod in judged if pod.exit_code not in (0, 130)), key=self._suffers, default=None)
        if self._result:
            self._tell("result", gen=0, rank=0, lines=self._result)
        if worst is None:
            code = max((code or 0 for code in codes.values()), default=0)
            self._outcome("ended", "all pods have ended", code=code)
            return
        refused = next((pod for pod in judged if pod.exit_code == RequestError.exit_code), None)
        lines = self._last_lines(refused or worst)
        if refused:
            self._outcome("refused", _error(lines) or "the request is wrong")
        else:
            self._outcome("failed", f"{worst.label} {worst.ended or worst.stopped or 'has not ended'}", lines)

    def close(self, job: Processes) -> None:
        """Whatever happened: the first event is there, who was left out is told, and our own source has an end."""
        self.settle()
        if self._held is not None:
            self._take(self._held)
        if not self.spoke:
            self._keep(self._run)
        elif isinstance(job, Job):
            for node in self._culprits():
                self.note("info", f"to keep work off {node}: {job.detail.kubectl.shown('cordon', node)}")
        for words in job.absent:
            self.note("warn", f"left out: {words}")
        if self.interrupted and not self.outcome and "plan" not in self._run:
            self._outcome("interrupted", "stopped")
        if self._own is not None:
            self._keep(self._own.event("end"))

    def _culprits(self) -> list[str]:
        """The nodes of the cluster where somebody was found to be at fault."""
        findings = [finding for finding in conclude(self._events).findings if finding.severity == "fail"]
        known = {event.get("hostname") for event in self._events if event.get("kind") == "node"}
        named = dict.fromkeys(node for finding in findings for node in finding.culprit.nodes)
        return [node for node in named if node in known]

    def _take(self, message: dict[str, Any]) -> None:
        self._events.append(message)
        self._keep(message)

    def _outcome(self, how: str, text: str, last_lines: Sequence[str] = (), code: int = 0) -> None:
        self.outcome = True
        what = {"how": how, "text": text, "last_lines": list(last_lines), "code": code}
        self._tell("outcome", gen=0, restarts=0, **what)

    def _tell(self, kind: str, **payload: Any) -> None:
        self._own = self._own or Source(self._run["run"], "controller")
        self._keep(self._own.event(kind, **payload))

    def _suffers(self, pod: PodSeen) -> tuple[bool, bool, bool]:
        """How well the end of another explains that of a pod: it was told to end, was not killed, misses others."""
        code = pod.exit_code or 0
        last = Exit(rank=0, code=code, ours=False, at=0.0, last_lines=tuple(self._last_lines(pod)))
        return pod.deleted, code <= _SIGNALLED, bool(complaint(last))

    def why(self, pod: PodSeen) -> str:
        """What a pod said was wrong, behind what is told of it; nothing, if it has said nothing of the kind."""
        said = _error(self._last_lines(pod)) or (reason(self._last_words(pod)) if pod.is_launcher else "")
        return said and f" ({said.rstrip('.')})"

    def _last_lines(self, pod: PodSeen) -> list[str]:
        return self._last_words(pod).splitlines()[-_LAST_LINES:]

    def _last_words(self, pod: PodSeen) -> str:
        return said_last(self._folder / f"{pod.name}.log", _LAST_BYTES)


def _error(lines: Sequence[str]) -> str:
    """The last line by which a command of ours, or a script of the manifests, tells why it ended."""
    return next((line for line in reversed(lines) if line.startswith(_ERROR)), "").removeprefix(_ERROR)
