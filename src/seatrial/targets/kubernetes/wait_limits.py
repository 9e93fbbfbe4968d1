"""How long a run in pods waits for what the cluster does, and the time that counts for it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from seatrial.targets.kubernetes.manifest.workload import JOIN_TIMEOUT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimits:
    """How long the controller waits for each thing, in seconds."""

    queue_s: float
    """From the creation, or a restart of all pods, until all of them run (``--queue-timeout``)."""
    fewer_s: float = JOIN_TIMEOUT_S * 2 / 3
    """From the first running pod until the run starts again without the missing ones (``--min-hosts``). Less than the
    time for which the pods wait for one another."""
    hopeless_s: float = 60.0
    """For a pod that cannot start by itself. kubelet retries a failed image pull after 10, 20 and 40 seconds."""
    no_answer_s: float = 120.0
    """For an answer of the API server; its restart takes about a minute and harms no pod."""
    replaced_s: float = JOIN_TIMEOUT_S
    """For a pod that an operator has put in the place of one that was stopped, to start. The others wait no longer."""
    ready_s: float = 120.0
    """For the sshd of a node under MPI. It starts within a second, and the probe runs every two."""
    node_gone_s: float = 10.0
    """For a node that does not report. The node controller marks it after 40 to 50 s of silence, so that the run ends
    within 60 s."""
    ended_s: float = 10.0
    """For a pod that was not seen to run during the run, to end with 0. Agents end within a second after a run, their
    kubelets tell it 0 to 2 s late, and the pods are asked for every two seconds."""
    reason_s: float = 10.0
    """For why a pod ended, which a kubelet tells after the end of all containers: at once, a second later in most
    cases, or with the next round of its status manager (``syncPeriod``)."""
    no_first_pod_s: float = 20.0
    """From the start of all pods until one is the first. Operators label pods when they create them; the wait is for
    several listings to agree."""


class ObservedTime:
    """Seconds in which something was observed again and again: a gap between two observations counts as a short one."""

    def __init__(self, longest_gap_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self.total_s = 0.0
        """Up to the last observation."""
        self._observed_at = time.monotonic()

    def observe(self, at: float) -> None:
        """Take note of an observation that was begun then (``time.monotonic``)."""
        self.total_s, self._observed_at = self._until(at), at

    def now_s(self) -> float:
        """Return the seconds up to an observation that begins now."""
        return self._until(time.monotonic())

    def _until(self, at: float) -> float:
        return self.total_s + min(max(at - self._observed_at, 0.0), self._most_s())

    def _most_s(self) -> float:
        """Return the most seconds that count from the last observation until now."""
        return self._longest_gap_s


class AwakeTime(ObservedTime):
    """Seconds in which this process worked or waited for its next turn, without those in which something paused it.

    All CPU time of the process counts, since a paused one uses none: whoever gives it much to do makes no wait longer.
    """

    def __init__(self, longest_gap_s: float) -> None:
        """``longest_gap_s``: of the time without work between two observations."""
        super().__init__(longest_gap_s)
        self._cpu_s = time.process_time()

    def observe(self, at: float) -> None:
        """Take note of an observation that begins now, which is ``at`` (``time.monotonic``)."""
        super().observe(at)
        self._cpu_s = time.process_time()

    def _most_s(self) -> float:
        return super()._most_s() + time.process_time() - self._cpu_s


class Lasting:
    """For how long conditions that must not last for ever have been observed."""

    def __init__(self, observed: ObservedTime) -> None:
        self._observed = observed
        self._since: dict[str, float] = {}

    def lasts(self, condition: str, limit_s: float) -> bool:
        """Return whether the condition has lasted longer than the limit; the first call starts the count.

        Only observations count that begin after that call.
        """
        since = self._since.get(condition)
        if since is None:
            since = self._since[condition] = self._observed.now_s()
        return self._observed.total_s - since > limit_s

    def forget(self, condition: str) -> None:
        """Take note that the condition no longer holds: its count starts again."""
        self._since.pop(condition, None)
