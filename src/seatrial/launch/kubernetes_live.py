"""A run in pods from its manifests to its end: made, waited for with the reason in words, followed, deleted."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seatrial.errors import SeatrialError
from seatrial.kubernetes.gathering import Gathering
from seatrial.kubernetes.pods import PodSeen, complaints, failure, first_pod, pods_of
from seatrial.kubernetes.workload import JOIN_TIMEOUT_S
from seatrial.launch.job import Job, Processes
from seatrial.launch.kubectl import Asked, Kubectl
from seatrial.launch.kubernetes_log import Followed, Kept
from seatrial.launch.kubernetes_made import Made, selector_of
from seatrial.launch.kubernetes_told import Told
from seatrial.report.streams import tell

__all__ = ["Attempt", "Limits", "TooFewError"]

_LOOK_S = 2.0
_WAITING_LOOK_S = 1.0
_TURN_S = 0.1
_TOLD_SILENT_S = 20.0
_SILENT_S = 120.0
"""A restart of an API server takes a minute and harms no pod."""
_TOLD_WAITING_S = 3.0
"""Pods that are being made as usual are no news."""
_HOPELESS_S = 60.0
"""A registry that hiccups: kubelet tries again after 10, 20 and 40 seconds."""
_READY_S = 120.0
"""An sshd is there within a second, and is asked every two."""
_LAST_WORDS_S = 20.0
"""From the end of a pod to the end of its log."""
_GONE_S = 4.0
"""The log of a pod that is gone is gone, too; what is on its way comes within seconds."""
_OTHERS_END_S = 30.0
"""Ranks whose peer is gone are told by their sockets at once; a rank that hangs all the same ends by our hand."""
_SPARE_S = 120.0
"""Beyond the deadline that the pods keep themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long is waited for what."""

    queue_s: float
    """From the making until all pods run (``--queue-timeout``)."""
    fewer_s: float = JOIN_TIMEOUT_S * 2 / 3
    """From the first pod that runs until the run begins again without those that do not; the pods themselves wait
    for one another longer than that."""
    hopeless_s: float = _HOPELESS_S
    silent_s: float = _SILENT_S
    ready_s: float = _READY_S


_OWN_CODES = (0, 1, 2, 3, 130)
"""With which the command ends in the first pod."""


class TooFewError(SeatrialError):
    """Not all pods have come, but ``--min-hosts`` have."""

    def __init__(self, running: int, absent: tuple[str, ...]) -> None:
        super().__init__(f"{running} of {running + len(absent)} pods run")
        self.running = running
        self.absent = absent


class Attempt:
    """One life of the objects. ``hold``, then ``end``, whatever happened."""

    def __init__(
        self,
        *,
        kubectl: Kubectl,
        made: Made,
        job: Processes,
        limits: Limits,
        told: Told,
        folder: Path,
        caught: Sequence[int],
        say: Callable[[str], None] = tell,
    ) -> None:
        self._kubectl, self._made, self._job = kubectl, made, job
        self._token: str = job.detail.workload.token
        self._under_mpi: bool = job.detail.under_mpi
        self._restarts: bool = job.detail.workload.max_restarts > 0
        self._min_hosts: int | None = job.detail.min_hosts
        self._limits, self._told, self._folder, self._caught, self._say = limits, told, folder, caught, say
        self._pods: tuple[PodSeen, ...] = ()
        self._known: dict[str, PodSeen] = {}
        """All that were ever seen, as they were seen last."""
        self._asking: dict[str, Asked] = {}
        self._look_at = self._answered_at = self._began_at = time.monotonic()
        self._since: dict[str, float] = {}
        """When each thing was seen for the first time that must not last for ever."""
        self._complaints: tuple[str, ...] = ()
        """Of the cluster's controllers."""
        self._workload_gone = False
        self._given_up = ""
        """Why, by whoever looks after the workload."""
        self._log: Followed | None = None
        self._kept = Kept(kubectl, folder)
        self._words = ""
        self._all_came = False
        self._cut = False
        self._complaint = ""

    @property
    def lost(self) -> int:
        """Messages of the first pod that never came; an end that was not seen counts as one."""
        return (0 if self._log is None else self._log.lost) + (self._cut and not self._told.interrupted)

    def hold(self) -> None:
        """From the making to the end of the first pod. Raises SeatrialError for a run that cannot come to its end."""
        if self._min_hosts is not None:
            self._told.hold_back()
        self._made.apply()
        self._say(f"seatrial: made {self._made.workload}; {self._made.look()} shows it")
        self._began_at = self._answered_at = time.monotonic()
        while not self._caught:
            self._ask()
            self._listen()
            if self._has_ended() or self._has_failed() or self._never_began():
                return
            self._see_that_it_goes_on()
            time.sleep(_TURN_S)
        self._interrupt()

    def end(self, *, keep: bool) -> list[str]:
        """Get the logs, delete all; returns what is left."""
        try:
            self._kept.end([pod for pod in self._known.values() if not self._is_followed(pod)])
        finally:
            for asked in self._asking.values():
                asked.give_up()
            if self._log is not None:
                self._log.close()
            left = [] if keep else self._made.delete(patient=lambda: len(self._caught) < 2)
        if keep:
            self._say(f"seatrial: left as it is (--keep); to delete it: {self._made.by_hand()}")
        return left

    # What is asked of the cluster, without ever waiting for it

    def _ask(self) -> None:
        now = time.monotonic()
        for what in list(self._asking):
            answer = self._asking[what].take()
            if answer is None:
                continue
            del self._asking[what]
            if answer.code != 0:
                self._complaint = answer.complaint
            elif what == "workload":
                # Of one that is gone nothing is printed.
                self._workload_gone = not answer.out.strip()
                self._given_up = failure(answer.json)
            elif answer.json is not None:
                self._answered_at = now
                if what == "pods":
                    self._take_pods(pods_of(answer.json))
                else:
                    self._complaints = complaints(answer.json, self._made.run, self._made.since)
        if now < self._look_at:
            return
        self._look_at = now + (_LOOK_S if self._all_came else _WAITING_LOOK_S)
        self._begin("pods", "get", "pods", "-l", selector_of(self._made.run), "-o", "json")
        if self._gathering().missing > 0:
            self._begin("events", "get", "events", "--field-selector", "type=Warning", "-o", "json")
            self._begin("workload", "get", self._made.workload, "--ignore-not-found", "-o", "json")

    def _begin(self, what: str, *words: str) -> None:
        if what not in self._asking:
            self._asking[what] = self._kubectl.begin(*words)

    def _gathering(self) -> Gathering:
        return Gathering(pods=self._pods, nodes=self._job.nodes, under_mpi=self._under_mpi, complaints=self._complaints)

    def _take_pods(self, pods: tuple[PodSeen, ...]) -> None:
        self._pods = pods
        for pod in pods:
            if pod.stopped and not (pod.name in self._known and self._known[pod.name].stopped):
                self._say(f"seatrial: {pod.label} {pod.stopped}")
            self._known[pod.name] = pod
        listed = {pod.name for pod in pods}
        for pod in self._known.values():
            if pod.name not in listed and pod.state != "ended" and not (pod.stopped or self._restarts):
                # It went between two looks.
                self._known[pod.name] = replace(pod, stopped="was deleted", deleted=True)
                self._say(f"seatrial: {pod.label} was deleted")
        came = [pod for pod in pods if pod.state != "waiting"]
        if not self._all_came and len(came) >= self._gathering().wanted:
            self._all_came = True
            self._told.settle()
        first = first_pod(pods, under_mpi=self._under_mpi)
        if first is not None and first.state != "waiting" and (self._log is None or self._log.pod.uid != first.uid):
            if self._log is not None:
                self._log.close()
            self._log = Followed(self._kubectl, first, self._token, self._folder, self._told.text)
        self._kept.look([pod for pod in pods if not self._is_followed(pod)])

    def _is_followed(self, pod: PodSeen) -> bool:
        return self._log is not None and pod.name == self._log.pod.name

    def _listen(self) -> None:
        if self._log is not None:
            flowing = self._log.flows
            for message in self._log.read(container_ended=self._now(self._log.pod).state == "ended"):
                self._told.take(message)
            if flowing and not self._log.flows:
                self._look_at = 0.0
            self._answered_at = max(self._answered_at, self._log.heard_at)

    def _now(self, pod: PodSeen) -> PodSeen:
        return self._known.get(pod.name, pod)

    # What is made of it

    def _has_ended(self) -> bool:
        """Whether the first pod has ended and all it had to say is here."""
        if self._log is None:
            return False
        first = self._now(self._log.pod)
        is_there = any(pod.uid == first.uid for pod in self._pods)
        if first.state != "ended" and is_there:
            return self._told.over and self._lasts("over", _LAST_WORDS_S)
        if not self._log.complete:
            if not self._lasts("first ended", _LAST_WORDS_S if is_there else _GONE_S):
                return False
            # What it had still to say after its last step may have been the worst.
            self._cut = self._told.over
        self._conclude(first)
        return True

    def _never_began(self) -> bool:
        """Whether a pod has come to its end before the first one ran: whoever looks after them makes no other."""
        gone = [pod for pod in self._known.values() if pod.stopped or pod.state == "ended"]
        if self._log is not None or self._restarts or not (gone or self._given_up):
            return False
        if not self._lasts("none began", _GONE_S):
            return False
        if not gone:
            raise SeatrialError(f"{self._made.workload} has failed before its first pod ran ({self._given_up})")
        # The others are deleted for the sake of the one that went by itself.
        cause = min(gone, key=lambda pod: pod.deleted)
        if not cause.stopped:
            raise SeatrialError(
                f"{cause.label} {cause.ended} before the first pod has run{self._told.why(cause)}; its log is in"
                f" {self._folder}"
            )
        self._told.stopped(f"the cluster: {cause.label} {cause.stopped}")
        return True

    def _conclude(self, first: PodSeen) -> None:
        failed = [pod for pod in self._known.values() if pod.exit_code not in (0, None) and not pod.stopped]
        # Who looks after the pods deletes the others when one of them has failed, or was stopped.
        causes = [pod for pod in self._known.values() if pod.stopped and not pod.deleted] or failed
        was_told = self._told.interrupted
        if causes:
            self._told.excuse(f"{causes[0].label} {causes[0].stopped or causes[0].ended}")
        for pod in self._known.values():
            if pod.stopped and not (pod.deleted and (causes or self._restarts)):
                lost_at = self._told.lost_at(pod.number, any_node=self._under_mpi)
                # A run that has come to its end without missing the pod had no more use for it.
                if not self._told.over or was_told or lost_at is not None:
                    self._told.stopped(f"the cluster: {pod.label} {pod.stopped}", lost_at)
        for pod in failed:
            if self._told.spoke and not (pod == first and self._told.over):
                self._told.note("info", f"{pod.label} {pod.ended}")
        if self._told.over and not self._under_mpi and first.exit_code not in (*_OWN_CODES, None):
            self._told.note("error", f"{first.label} {first.ended} before it had ended by itself")
        if self._told.over or self._told.interrupted:
            return
        if self._told.spoke or isinstance(self._job, Job):
            how = first.ended or "is gone"
            why = self._told.why(first)
            raise SeatrialError(
                f"{first.label} {how}, and with it who conducts the run{why}; its log is in {self._folder}"
            )
        self._wait_for_others()
        self._told.ended([self._now(pod) for pod in self._known.values()], under_mpi=self._under_mpi)

    def _wait_for_others(self) -> None:
        until = time.monotonic() + _OTHERS_END_S
        while any(pod.state != "ended" for pod in self._pods) and not self._under_mpi and time.monotonic() < until:
            self._ask()
            time.sleep(_TURN_S)

    def _interrupt(self) -> None:
        """SIGTERM for all pods: the conductor in them keeps what was measured, and says so."""
        self._say("seatrial: stopped: the pods are told to end")
        by = signal.Signals(self._caught[0]).name
        self._kubectl.ask("delete", "--ignore-not-found", "--wait=false", self._made.workload)
        until = time.monotonic() + _LAST_WORDS_S
        while self._log is not None and len(self._caught) < 2 and time.monotonic() < until:
            self._ask()
            self._listen()
            first = self._now(self._log.pod)
            gone = not any(pod.uid == first.uid for pod in self._pods)
            if self._log.complete or (gone and self._lasts("gone", _GONE_S)):
                break
            time.sleep(_TURN_S)
        self._told.stopped(by)

    def _see_that_it_goes_on(self) -> None:
        now = time.monotonic()
        silent_s = now - self._answered_at
        if silent_s > self._limits.silent_s:
            raise SeatrialError(
                f"the cluster's API server has given no answer for {silent_s:.0f} s"
                f" ({self._complaint or 'not a word'}); see that {self._kubectl.shown('get', 'pods')} works"
            )
        if silent_s > _TOLD_SILENT_S and self._lasts("silence", 0.0) and "told" not in self._since:
            self._since["told"] = now
            self._say(f"seatrial: the cluster's API server has said nothing for {silent_s:.0f} s; still asking")
        if self._workload_gone and not self._pods and self._log is None:
            self._told.stopped(f"somebody who has deleted {self._made.workload}")
            raise SeatrialError(f"{self._made.workload} is gone: somebody has deleted it before its pods ran")
        self._see_to_those_that_wait(now)
        if isinstance(self._job, Job) and self._log is not None:
            most_s = float(self._job.plan.deadline_s.value) + JOIN_TIMEOUT_S + _SPARE_S
            if self._lasts("running", most_s):
                raise SeatrialError(f"the pods have not come to an end within {most_s:.0f} s")

    def _see_to_those_that_wait(self, now: float) -> None:
        gathering = self._gathering()
        if self._all_came or (not gathering.waiting and gathering.missing <= 0):
            return
        for pod in gathering.waiting:
            if pod.hopeless and self._lasts(f"hopeless {pod.uid}", self._limits.hopeless_s):
                raise SeatrialError(f"{pod.label} does not start: {pod.waits}")
        words = gathering.words()
        if words != self._words and self._lasts("waiting", _TOLD_WAITING_S):
            self._words = words
            self._say(f"seatrial: {words}")
        if (unready := gathering.unready) and self._lasts("unready", self._limits.ready_s):
            raise SeatrialError(f"{words}; see {unready[0].name}.log in {self._folder}")
        late = now - self._began_at > self._limits.queue_s
        least = self._min_hosts
        running = len(gathering.running)
        enough = least is not None and least <= running < self._job.nodes
        if enough and (late or self._lasts("fewer", self._limits.fewer_s)):
            raise TooFewError(running, gathering.absent(self._words))
        if late:
            raise SeatrialError(
                f"not all pods have started within {self._limits.queue_s:g} s (--queue-timeout): {words}"
            )

    def _has_failed(self) -> bool:
        """Without a conductor nobody else sees that the others wait for somebody who is gone."""
        failed = [pod for pod in self._pods if pod.state == "ended" and pod.exit_code != 0 and not pod.stopped]
        if self._told.spoke or isinstance(self._job, Job) or self._restarts or not failed:
            return False
        if not self._lasts("failed", _OTHERS_END_S):
            return False
        self._told.ended(failed[:1], under_mpi=False)
        return True

    def _lasts(self, what: str, limit_s: float) -> bool:
        """Whether that has been so for longer than the limit; the first call begins to count."""
        now = time.monotonic()
        return now - self._since.setdefault(what, now) > limit_s
