"""The words that pods have printed last, by the copies of their logs."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.targets.kubernetes.log_copies import CopiedPart, LogCopies
from seatrial.targets.kubernetes.pod_failures import MET
from seatrial.targets.kubernetes.pods import PodStatus
from seatrial.targets.launcher_messages import reason
from seatrial.util.text import quoted

LAST_LINES = 20
_LAST_BYTES = 16_000
_BEGINNING_BYTES = 16 << 20
"""The beginning of a log in which ranks say that they have met. NCCL prints some hundred kilobytes before, if asked."""
_ERROR = "Error: "


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksThatMet:
    """The ranks that say in the log of a pod that they have met the others."""

    ranks: frozenset[int]
    is_whole: bool
    """Whether the copy of the log had all lines when it was read."""
    has_beginning: bool = True
    """Whether it began with the first line of the pod."""


class PodWords:
    """The words of each pod, by the copy of its log."""

    def __init__(self, copies: LogCopies) -> None:
        self._copies = copies

    def last_output(self, pod: PodStatus, max_bytes: int = _LAST_BYTES) -> CopiedPart:
        """Return the end of what a pod has printed."""
        return self._copies.end(pod, max_bytes)

    def last_lines(self, pod: PodStatus) -> list[str]:
        """Return the last lines that a pod has printed, at most ``LAST_LINES``."""
        return self.last_output(pod).text.splitlines()[-LAST_LINES:]

    def last_line(self, pod: PodStatus) -> str:
        """Return the last line of a pod that is not blank; empty if there is none."""
        return next((line.strip() for line in reversed(self.last_lines(pod)) if line.strip()), "")

    def last_error(self, pod: PodStatus) -> str:
        """Return the last line in which a command of ours, or a script of the manifests, says why it ended."""
        lines = reversed(self.last_lines(pod))
        return next((line for line in lines if line.startswith(_ERROR)), "").removeprefix(_ERROR)

    def reason_of(self, pod: PodStatus) -> str:
        """Return the error that a pod printed last, as `` (ERROR)``; empty if it printed none."""
        text = self.last_error(pod) or self._not_found(pod)
        if pod.is_launcher:
            text = text or reason(self.last_output(pod).text)
        return text and f" ({quoted(text.rstrip('.'))})"

    def ranks_that_met(self, pod: PodStatus) -> RanksThatMet:
        """Return the ranks that say in the log of a pod that they have met the others."""
        part = self._copies.beginning(pod, _BEGINNING_BYTES)
        ranks = frozenset(map(int, MET.findall(part.data)))
        return RanksThatMet(ranks=ranks, is_whole=part.is_whole, has_beginning=not self._copies.begins_late(pod))

    def _not_found(self, pod: PodStatus) -> str:
        """Return the last line of a pod whose command, or the interpreter in it, does not exist or is no program."""
        return self.last_line(pod) if pod.exit_code in (126, 127) else ""
