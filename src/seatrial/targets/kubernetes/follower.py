"""Observation of a run in pods: the state of its pods, their logs, and the warnings of the cluster's controllers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from seatrial.conductor.event_allowance import EventAllowance
from seatrial.targets.job import Processes, ProgramJob
from seatrial.targets.kubernetes.api_json import items_of
from seatrial.targets.kubernetes.applied_objects import AppliedObjects
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.kubectl import Kubectl, PendingCall
from seatrial.targets.kubernetes.log_reader import PodLog, PodLogs
from seatrial.targets.kubernetes.manifest.wait_for_hosts import WAITING
from seatrial.targets.kubernetes.pending_pods import PendingPods
from seatrial.targets.kubernetes.pod_order import PodOrder
from seatrial.targets.kubernetes.pod_owners import event_object
from seatrial.targets.kubernetes.pods import (
    DELETED,
    PodStatus,
    first_pod,
    is_over,
    is_taken_up,
    pods_of,
    stops_announced,
    suspended,
    workload_failure,
)
from seatrial.targets.kubernetes.run_log import RunLog
from seatrial.targets.kubernetes.wait_limits import AwakeTime, ObservedTime
from seatrial.targets.kubernetes.warnings_of_run import CreationWarnings, creation_warnings, events_of_run, pod_warnings
from seatrial.util.text import quoted

_POLL_S = 2.0
_CHANGING_POLL_S = 1.0
"""While pods start, and once the conductor has missed a node or has come to its end: a list between two changes shows
which of them came first."""
_LONGEST_GAP_S = 3.0
"""By which one list makes a wait for news in the lists shorter, however long ago the one before was asked for."""
_LONGEST_IDLE_S = 1.0
"""For which this process waits between two looks, beside its work. Where it takes longer something has paused it."""
_FETCH_S = 10.0
_FETCH_EACH_S = 0.5
"""Added for each log that is fetched: a kubectl takes up to a second of a core, and each log takes two of them."""
_MOST_EVENTS_BYTES = 16 << 20
"""Some 15,000 Events, which take this process about a second. Anybody who may create them could keep it from its work.
"""
_MAX_FOREIGN_LINES = 4
_MAX_WAITING_LINES = 100


class PodFollower:
    """The pods of one attempt; where all of them start again, those of the newest start.

    ``poll`` asks the cluster and reads the logs, and ``poll_pods`` only asks; neither ever waits.
    """

    def __init__(
        self,
        *,
        objects: AppliedObjects,
        job: Processes,
        run_log: RunLog,
        print_line: Callable[[str], None],
    ) -> None:
        self.pods: tuple[PodStatus, ...] = ()
        """The pods that the API server listed last."""
        self._uids: frozenset[str] = frozenset()
        """Their uids."""
        self.known: dict[str, PodStatus] = {}
        """Name -> last state, of all pods that were ever listed."""
        self._start_number = 0
        self._earlier: list[PodStatus] = []
        """The pods of earlier starts."""
        self.order = PodOrder()
        self.first_log: PodLog | None = None
        """The log of the first pod of this start; None until this pod runs."""
        self.all_started = False
        """Whether all pods of this start have been running, or have ended, at the same time."""
        self.awaited_since = time.monotonic()
        """Since when the pods of this start are waited for (``time.monotonic``)."""
        self._ran: dict[int, set[str]] = {}
        """Node rank -> uids of its pods that were seen to run before the conductor's last event, or to end with 0."""
        self._newest: dict[int, str] = {}
        """Node rank -> uid of the newest of its pods until then."""
        self.awake = AwakeTime(_LONGEST_IDLE_S)
        """The time of this process, without what paused it."""
        self.listed = ObservedTime(_LONGEST_GAP_S)
        """The time that lists of the pods cover, each from when it was asked for."""
        self.warned = ObservedTime(_LONGEST_GAP_S)
        """The same of the warnings of the cluster, also where the user may not read them."""
        self.unlisted_since = 0.0
        """Since when no list of the pods has come, in ``awake``."""
        self.silent_since = 0.0
        """Since when no list of the pods and no news of the first log have come, in ``awake``."""
        self.complaint = ""
        """The last error of kubectl."""
        self.workload_gone = False
        """Whether the workload no longer exists."""
        self.workload_failure = ""
        """Why the controller of the workload has marked it as failed; empty if it has not."""
        self.workload_over = False
        """Whether its controller has marked it as completed or failed."""
        self.is_unattended = False
        """Whether the workload exists and no controller has written a status for it."""
        self._objects, self._job, self._run_log = objects, job, run_log
        self._print_line = print_line
        self._kubectl: Kubectl = job.detail.kubectl
        self._kind = KINDS[job.target]
        # The pods of a training have no conductor, except the only one.
        sends_no_events = isinstance(job, ProgramJob) and job.watched and job.nodes > 1
        self._token: str | None = None if sends_no_events else job.detail.workload.token
        self._under_mpi: bool = job.detail.under_mpi
        # The events of all agents, and those of the conductor. All that its first pods send stays in memory.
        agents = job.world_size if self._under_mpi else job.nodes
        self._allowance = EventAllowance(time.monotonic(), agents + 1)
        self._restarts: bool = job.detail.workload.max_restarts > 0
        self._calls: dict[str, PendingCall] = {}
        self._asked_at: dict[str, float] = {}
        """When each call was started last (``time.monotonic``)."""
        self._news_at = -math.inf
        """When the log of the first pod told that lists may show something new (``time.monotonic``)."""
        self._warnings = CreationWarnings()
        self._pod_warnings: Mapping[str, str] = {}
        self._announced: dict[str, str] = {}
        """uid -> how a kubelet says that it stops this pod."""
        self._suspended = False
        self._pod_logs = PodLogs(self._kubectl, run_log.copies)
        self._events: Any = None
        """The last warnings about objects that are named like those of the run."""
        self._listed: list[Any] = []
        """The last list of pods, of others with the labels of the run too."""
        self.listed_at = time.monotonic()
        """When it was asked for."""
        self._foreign_reported: set[str] = set()
        self._waiting_lines = 0

    @property
    def pending(self) -> PendingPods:
        return PendingPods(
            pods=self.pods,
            nodes=self._job.nodes,
            under_mpi=self._under_mpi,
            warnings=self._warnings,
            pod_warnings=self._pod_warnings,
            suspended=self._suspended,
        )

    def first(self) -> PodStatus | None:
        """Return the pod whose log has the events of the run; None if there is none. While it runs no other replaces
        it, except where all pods restart together."""
        log = self.first_log
        if log is not None and not self._restarts and self.is_listed(log.pod):
            first = self.latest(log.pod)
            if first.uid == log.pod.uid and first.state == "running":
                return first
        return first_pod(self.pods, nodes=self._job.nodes, under_mpi=self._under_mpi)

    @property
    def first_has_ended(self) -> bool:
        """Whether the pod of the first log has ended, or no longer exists."""
        return self.first_log is not None and self.has_gone(self.latest(self.first_log.pod))

    @property
    def others_end_the_run(self) -> str:
        """A word for a pod that has failed and that nothing restarts, or for all pods but the first one, if none of
        them runs any more: then the run is over. Empty: neither. It is another word where other pods have ended.

        The rank of the first one shares the last exchange of a training with the others, and can only print after it.
        Where all pods can start again, they do so after each end but those with exit code 0, once the first has ended.
        """
        first = "" if self.first_log is None else self.first_log.pod.uid
        ended = [pod for pod in self.pods if pod.state == "ended"]
        if any(pod.exit_code != 0 and (self._restarts or not pod.stop) for pod in ended):
            return "" if self._restarts else f"{first} failed"
        if not (first and self.all_started) or self._job.nodes == 1 or self._under_mpi:
            return ""
        # An operator may put another pod in the place of one that was stopped, which may still be listed, and has its
        # name or another one.
        going = {pod.number for pod in self.pods if pod.state == "running"}
        known = ended if self._restarts else self.known.values()
        over = [pod for pod in known if pod.uid != first and pod.number not in going]
        have_all_ended = len({pod.number for pod in over}) >= self._job.nodes - 1
        return " ".join([first, *sorted(pod.uid for pod in over)]) if have_all_ended else ""

    @property
    def others_may_come(self) -> bool:
        """Whether a pod has yet to start in the place of another one, and none has failed that nothing restarts."""
        has_failed = any(pod.state == "ended" and pod.exit_code != 0 and not pod.stop for pod in self.pods)
        return not has_failed and any(pod.state == "waiting" for pod in self.pods)

    def has_gone(self, pod: PodStatus) -> bool:
        """Return whether a pod has ended, or no longer exists."""
        return pod.state == "ended" or not self.is_listed(pod)

    def latest(self, pod: PodStatus) -> PodStatus:
        """Return the last known state of a pod."""
        return self.known.get(pod.name, pod)

    def is_listed(self, pod: PodStatus) -> bool:
        """Return whether the pod still exists."""
        return pod.uid in self._uids

    def has_read(self, pod: PodStatus) -> bool:
        """Return whether the log of the first pod, which this must be, has been read to its end."""
        return self.first_log is not None and self.first_log.pod.uid == pod.uid and self.first_log.complete

    def unreplaced(self) -> list[PodStatus]:
        """Return the known pods in whose place no controller has made another one."""
        newest = {pod.number: pod.uid for pod in self.known.values()}
        return [pod for pod in self.known.values() if pod.number < 0 or newest[pod.number] == pod.uid]

    def poll(self) -> None:
        """Ask the cluster and read what the first pod has written."""
        self.poll_pods()
        self._read_first_log()
        self._pod_logs.poll()

    def poll_pods(self) -> None:
        """Take the answers that have arrived, and ask again when it is time."""
        now = time.monotonic()
        self.awake.observe(now)
        self._take_results()
        self._start_if_due("pods", *self._objects.pods_question())
        pending = self.pending
        if pending.missing > 0 or pending.waiting or self._run_log.is_ending or any(map(lacks_reason, self.pods)):
            events = self._kubectl.raw(self._objects.namespace, "events", fieldSelector="type=Warning")
            self._start_if_due("events", *events, most_bytes=_MOST_EVENTS_BYTES)
        if pending.missing > 0 or (self._restarts and any(pod.state == "ended" for pod in self.pods)):
            self._start_if_due("workload", "get", self._objects.workload, "--ignore-not-found", "-o", "json")

    def read_logs(self, pods: Sequence[PodStatus], *, keep_waiting: Callable[[], bool]) -> set[str]:
        """Read the logs of pods that have ended to their ends, for a time that grows with their number.

        Returns the names of those whose log was not read.
        """
        others = [pod for pod in pods if not self._is_first(pod)]
        unread = self._pod_logs.read_to_end(others, _FETCH_S + _FETCH_EACH_S * len(others), keep_waiting)
        log = self.first_log
        return unread if log is None or log.complete else {*unread, log.pod.name}

    def close(self) -> None:
        """Fetch the logs that are missing, then end all calls and streams."""
        try:
            known = (*self._earlier, *self.known.values())
            self._pod_logs.close([pod for pod in known if not self._is_first(pod)])
        finally:
            for call in self._calls.values():
                call.cancel()
            if self.first_log is not None:
                self.first_log.close()

    def _start_if_due(self, what: str, *words: str, most_bytes: int | None = None) -> None:
        """Ask again after a while, and after news. A question that is on its way may be older than these."""
        every_s = _POLL_S if self.all_started and not self._run_log.is_ending else _CHANGING_POLL_S
        asked_at = self._asked_at.get(what, -math.inf)
        if what not in self._calls and (asked_at <= self._news_at or time.monotonic() >= asked_at + every_s):
            self._start(what, *words, most_bytes=most_bytes)

    def _start(self, what: str, *words: str, most_bytes: int | None = None) -> None:
        self._asked_at[what] = time.monotonic()
        self._calls[what] = self._kubectl.start(*words, most_bytes=most_bytes)

    def _take_results(self) -> None:
        for what in list(self._calls):
            result = self._calls[what].poll()
            if result is None:
                continue
            del self._calls[what]
            if what == "owners":
                self._objects.owners.take_answer(result)
                self._take_owned()
                self._take_events()
            elif result.code != 0:
                self.complaint = result.complaint
                if what == "events" and "(forbidden)" in result.err.lower():
                    self.warned.observe(self._asked_at[what])
            elif what == "workload":
                # For a workload that does not exist kubectl prints nothing; another one may have its name.
                workload = result.json
                self.workload_gone = not self._objects.is_ours(workload)
                self.workload_failure = workload_failure(workload)
                self.workload_over = is_over(workload)
                self._suspended = suspended(workload)
                self.is_unattended = not (self.workload_gone or self._suspended or is_taken_up(workload))
            elif (items := result.items) is None:
                self.complaint = f"the API server answers the question for {what} with no list"
            elif what == "pods":
                self.silent_since = self.unlisted_since = self.awake.total_s
                self._listed, self.listed_at = items, self._asked_at[what]
                self.listed.observe(self.listed_at)
                self._take_owned()
            else:
                self._events = events_of_run({"items": items}, self._objects.run)
                self.warned.observe(self._asked_at[what])
                self._take_events()

    def _take_events(self) -> None:
        """Take the warnings about the run, and ask whose the objects are that are named like its own."""
        owners, of_run = self._objects.owners, (self._objects.run, self._objects.created_at)
        pods = self._job.detail.min_hosts or self._job.nodes
        self._warnings = creation_warnings(self._events, *of_run, owners.is_about_run, pods=pods)
        self._pod_warnings = pod_warnings(self._events, *of_run)
        if (announced := stops_announced(self._events)) != self._announced:
            self._announced = announced
            self._take_owned()
        else:
            self._ask_for_owners()

    def _ask_for_owners(self) -> None:
        objects = filter(None, map(event_object, items_of(self._events, "items")))
        if "owners" not in self._calls and (names := self._objects.owners.question(self._listed, objects)):
            self._start("owners", "get", *names, "--ignore-not-found", "-o", "json")

    def _take_owned(self) -> None:
        """Take the listed pods of the run, and ask for owners that are not known."""
        owners = self._objects.owners
        self._ask_for_owners()
        self._take_pods(pods_of({"items": owners.owned(self._listed)}, self._kind))
        for pod in pods_of({"items": owners.foreign(self._listed)}, self._kind):
            if pod.uid not in self._foreign_reported and len(self._foreign_reported) < _MAX_FOREIGN_LINES:
                self._foreign_reported.add(pod.uid)
                self._print_line(
                    f"seatrial: pod {pod.name} has the labels of this run, but {self._objects.workload} does not own"
                    " it; it is left alone"
                )

    def ran(self) -> set[int]:
        """Return the node ranks of which one pod ran, and no other one took its place."""
        return {number for number, uids in self._ran.items() if uids == {self._newest[number]}}

    def _take_pods(self, pods: tuple[PodStatus, ...]) -> None:
        self._forget_earlier_start(pods)
        self.pods = pods = tuple(
            self._as_announced(self._as_it_ended(pod)) for pod in pods if pod.start == self._start_number
        )
        self._uids = listed = frozenset(pod.uid for pod in pods)
        # When the first pod has succeeded, the operators delete the others.
        first = self.first() or (None if self.first_log is None else self.latest(self.first_log.pod))
        has_succeeded = first is not None and first.exit_code == 0
        # They disappeared between two answers.
        gone = [
            replace(pod, stop=DELETED, deleted=True)
            for pod in self.known.values()
            if pod.uid not in listed and pod.state != "ended" and not (pod.stop or self._restarts)
        ]
        gone += [pod for pod in self.known.values() if pod.uid not in listed and _is_unexplained(pod)]
        gone = list(map(self._as_announced, gone))
        stopped_names = {pod.name for pod in self.order.stopped.values()}
        for pod in (*gone, *pods):
            if pod.stop and pod.name not in stopped_names and not has_succeeded:
                self._print_line(f"seatrial: {pod.label} {pod.stop}")
            elif pod.never_ran and not ((before := self.known.get(pod.name)) and before.state == "ended"):
                self._print_line(f"seatrial: {pod.label} {pod.end}")
            self.known[pod.name] = pod
        self.order.take((*gone, *pods), asked_at=self.listed_at)
        self._run_log.take_pods(self.known.values(), asked_at=self.listed_at)
        over = self._run_log.over
        # The agent of one that started later waits for a conductor, and does not end with 0.
        for pod in pods:
            if not over or pod.number not in self._newest:
                self._newest[pod.number] = pod.uid
            if pod.exit_code == 0 or (not over and (pod.state == "running" or pod.exit_code is not None)):
                self._ran.setdefault(pod.number, set()).add(pod.uid)
        started = [pod for pod in pods if pod.state != "waiting"]
        if not self.all_started and len(started) >= self.pending.wanted:
            self.all_started = True
            self._run_log.release()
        is_new = first is not None and (self.first_log is None or self.first_log.pod.uid != first.uid)
        if first is not None and is_new and self.is_listed(first) and first.state != "waiting":
            if self.first_log is not None:
                self.first_log.close()
                self._run_log.forget_result()
            copies = self._run_log.copies
            self.first_log = PodLog(self._kubectl, first, self._token, copies, self._take_text, self._allowance)
        self._pod_logs.take_pods([pod for pod in pods if not self._is_first(pod)])

    def _forget_earlier_start(self, pods: tuple[PodStatus, ...]) -> None:
        """Judge only the pods of the newest start: it takes the place of all that came before."""
        newest = max((pod.start for pod in pods), default=0)
        if newest > self._start_number:
            self._start_number = newest
            self._earlier += self.known.values()
            self.known, self.order = {}, PodOrder()
            # The earlier start decides nothing from now on, however long the new pods wait.
            if self.first_log is not None:
                self.first_log.close()
            self.first_log, self.all_started, self.awaited_since = None, False, time.monotonic()
            self._run_log.restart()
            self._print_line(f"seatrial: all pods start again (restart {newest})")

    def _as_it_ended(self, pod: PodStatus) -> PodStatus:
        """Return a pod as lists have shown its end and its deletion: the clock of its node may be ahead or behind.

        No deletion has ended one that a list showed ended by itself. One has ended a pod that a list showed
        to be deleted before its end, except where its memory ran out; and an sshd of MPI that ended with 0, which it
        does only on request.
        """
        before = self.known.get(pod.name)
        is_same = before is not None and before.uid == pod.uid
        if before is not None and is_same and before.state == "ended" and not before.stop:
            return replace(pod, stop="") if pod.stop == DELETED else pod
        was_asked = before is not None and is_same and before.stop == DELETED and not pod.out_of_memory
        is_asked = self._under_mpi and not pod.is_launcher and pod.deleted and pod.exit_code == 0
        return replace(pod, stop=pod.stop or DELETED) if is_asked or was_asked else pod

    def _as_announced(self, pod: PodStatus) -> PodStatus:
        """Return a pod that was stopped as its kubelet has announced it."""
        is_stopped = _is_unexplained(pod) or (pod.stop == DELETED and not pod.out_of_memory)
        return replace(pod, stop=self._announced.get(pod.uid, pod.stop)) if is_stopped else pod

    def _take_text(self, lines: list[str]) -> None:
        """Take lines of the first pod that are not events; show for which hosts the launcher of MPI waits."""
        self.silent_since = self.awake.total_s
        for line in lines:
            # Anybody in that pod can print such a line, also for ever.
            is_waiting = self._under_mpi and not self._run_log.started and self._waiting_lines < _MAX_WAITING_LINES
            if is_waiting and line.startswith(WAITING):
                self._waiting_lines += 1
                self._print_line(f"seatrial: the launcher pod says: {quoted(line.removeprefix('seatrial: '))}")
        self._run_log.take_text([line for line in lines if not line.startswith(WAITING)])

    def _is_first(self, pod: PodStatus) -> bool:
        return self.first_log is not None and pod.name == self.first_log.pod.name

    def _read_first_log(self) -> None:
        log = self.first_log
        if log is None:
            return
        was_open, was_ending = log.is_open, self._run_log.is_ending
        for message in log.read(container_ended=self.latest(log.pod).state == "ended"):
            self.silent_since = self.awake.total_s
            self._run_log.take(message)
        if (was_open and not log.is_open) or self._run_log.is_ending != was_ending:
            # The pod may have ended, or another one.
            self._news_at = time.monotonic()


def lacks_reason(pod: PodStatus) -> bool:
    """Return whether a pod has failed and the cluster has not told all about it."""
    return pod.exit_code not in (0, None) and not pod.is_explained


def _is_unexplained(pod: PodStatus) -> bool:
    """Return whether the end of its memory does not say either why a pod has failed."""
    return lacks_reason(pod) and not pod.out_of_memory
