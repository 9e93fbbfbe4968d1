"""Which came first, the deletion of a pod or the end of another one, for which controllers delete all others."""

from __future__ import annotations

from collections.abc import Iterable

from seatrial.targets.kubernetes.pods import DELETED, PodStatus, seconds_of


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

    def take(self, pods: Iterable[PodStatus]) -> None:
        """Take a list of the pods, with those that it no longer has."""
        self._lists += 1
        for pod in pods:
            if pod.stop:
                self.stopped[pod.uid] = pod
                self._stopped_in.setdefault(pod.uid, self._lists)
            elif pod.state == "ended":
                self.stopped.pop(pod.uid, None)
                self._ended_in.setdefault(pod.uid, self._lists)

    def stopped_in(self, pod: PodStatus) -> int:
        """Return the number of the first list that showed the pod as stopped."""
        return self._stopped_in.get(pod.uid, self._lists)

    def may_follow(self, pod: PodStatus, end: PodStatus, *, with_run: bool) -> bool:
        """Return whether controllers may have deleted ``pod`` because ``end`` had ended by itself.

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
        ended_at = seconds_of(end.ended_at)
        if ended_in < stopped_in or not with_run or ended_at is None:
            return True
        # The run needed a pod whose deletion was requested before. When that pod ended is the word of its node.
        return pod.deletion_asked_at is None or pod.deletion_asked_at >= ended_at
