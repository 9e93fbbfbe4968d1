"""Which came first, the deletion of a pod or the end of another one, for which controllers delete all others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from seatrial.targets.kubernetes.pods import DELETED, PodStatus, seconds_of

_LONG_ENOUGH_S = 12.0
"""For which one pod of a training must be listed as running after the end of another one, so that no rank of it had
failed before that end. Its last rank ends at most 6 s after the first that failed (``worker/train_spawn.py``), and its
kubelet tells that up to 5 s late."""
_SEEN_S = 10.0
"""From one list to the next: the ranks of a pod that waits in the first one, and is stopped in the next, have met no
others meanwhile."""


class PodOrder:
    """The order in which lists of the pods showed their ends and deletions.

    How and when a pod ended is the word of its node, by the clock of that node. Lists are better: no controller acts on
    an end that no list shows yet. Only where the same list was the first to show both do their times count.
    """

    def __init__(self) -> None:
        self.stopped: dict[str, PodStatus] = {}
        """uid -> last state of each pod that was stopped; operators make another one with its name."""
        self._lists = 0
        self._stopped_in: dict[str, int] = {}
        """uid -> number of the first list that showed the pod as stopped."""
        self._ended_in: dict[str, int] = {}
        """uid -> number of the first list that showed that the pod had ended by itself."""

        self._end_listed_at: dict[str, float] = {}
        """uid -> when the first list came that showed the pod as ended (``time.monotonic``)."""
        self._running_at: dict[str, float] = {}
        """uid -> when the last list was asked for that did not show the pod as ended."""
        self._asked_at = -math.inf
        """When the last list was asked for (``time.time``, which goes on while this machine is suspended)."""
        self._never_ran: dict[str, float] = {}
        """uid -> when the first list came that showed the pod as stopped, of those that had waited until then."""
        self._ran: dict[tuple[bool, int], dict[str, float]] = {}
        """Place in the run -> uid of each pod there -> when the first list came that showed that it ran."""

    def take(self, pods: Iterable[PodStatus], *, asked_at: float) -> None:
        """Take a list of the pods that was asked for then, with those that it no longer has."""
        self._lists += 1
        now, time_s = time.monotonic(), time.time()
        is_gap, self._asked_at = time_s - self._asked_at > _SEEN_S, time_s - (now - asked_at)
        for pod in pods:
            if pod.state == "running" or pod.exit_code is not None:
                self._ran.setdefault(_place(pod), {}).setdefault(pod.uid, now)
            elif pod.state == "waiting" and pod.stop and pod.uid not in self._stopped_in and not is_gap:
                self._never_ran[pod.uid] = now
            if pod.state == "ended":
                self._end_listed_at.setdefault(pod.uid, now)
            elif not pod.stop:
                self._running_at[pod.uid] = asked_at
            if pod.stop:
                self.stopped[pod.uid] = pod
                self._stopped_in.setdefault(pod.uid, self._lists)
            elif pod.state == "ended":
                self.stopped.pop(pod.uid, None)
                self._ended_in.setdefault(pod.uid, self._lists)

    def stopped_in(self, pod: PodStatus) -> int:
        """Return the number of the first list that showed the pod as stopped."""
        return self._stopped_in.get(pod.uid, self._lists)

    def first_end(self, pods: Iterable[PodStatus]) -> float:
        """Return when the first list came that showed one of these pods as ended (``time.monotonic``)."""
        return min((self._end_listed_at.get(pod.uid, math.inf) for pod in pods), default=math.inf)

    def replaced_at(self, pod: PodStatus) -> float | None:
        """Return when the first list came that showed another pod as running in the place of this one
        (``time.monotonic``), which was stopped before it ran. None for any other pod: the run may miss it for longer.
        """
        in_its_place, stopped_at = self._ran.get(_place(pod), {}), self._never_ran.get(pod.uid)
        if stopped_at is None or pod.uid in in_its_place:
            return None
        return min((at for at in in_its_place.values() if at >= stopped_at), default=None)

    def first_to_end(self, pods: Sequence[PodStatus]) -> PodStatus | None:
        """Return the one that ended while all the others ran on long enough; None where no lists show such a pod."""
        first = min(pods, key=lambda pod: self._end_listed_at.get(pod.uid, math.inf))
        since = self._end_listed_at.get(first.uid, math.inf) + _LONG_ENOUGH_S
        ran_on = all(self._running_at.get(pod.uid, -math.inf) >= since for pod in pods if pod != first)
        return first if ran_on else None

    def ran_after(self, pod: PodStatus, time_s: float) -> bool:
        """Return whether a list that was asked for after this time (``time.monotonic``) showed the pod as running."""
        return self._running_at.get(pod.uid, -math.inf) > time_s

    def may_follow(self, pod: PodStatus, end: PodStatus, *, with_run: bool) -> bool | None:
        """Return whether controllers may have deleted ``pod`` because ``end`` had ended by itself; None where nothing
        shows which of the two came first.

        ``with_run``: whether ``end`` only carried the run to its end, which the loss of ``pod`` may have brought about.
        """
        stopped_in, ended_in = self.stopped_in(pod), self._ended_in.get(end.uid, self._lists)
        if stopped_in < ended_in:
            return False
        if end.killed and not with_run:
            return True
        if pod.stop != DELETED:
            # The cluster says why, and it is never that another pod has ended.
            return False
        if ended_in < stopped_in or not with_run:
            return True
        # The run needed a pod whose deletion was requested before. When that pod ended is the word of its node.
        asked_at, ended_at = pod.deletion_asked_at, seconds_of(end.ended_at)
        return None if asked_at is None or ended_at is None else asked_at >= ended_at


def _place(pod: PodStatus) -> tuple[bool, int]:
    return pod.is_launcher, max(pod.number, 0)  # the only pod of a run may have no number
