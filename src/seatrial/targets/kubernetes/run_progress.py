"""What a run in pods waits for, in words, and the conditions under which it will never come to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from seatrial.errors import JobNotStartedError, SeatrialError, TargetUnreachableError
from seatrial.targets.job import Job, Processes
from seatrial.targets.kubernetes.applied_objects import AppliedObjects
from seatrial.targets.kubernetes.follower import PodFollower
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.kubectl import Kubectl
from seatrial.targets.kubernetes.manifest.workload import JOIN_TIMEOUT_S
from seatrial.targets.kubernetes.pending_pods import why_no_launcher
from seatrial.targets.kubernetes.pod_failures import named_pods
from seatrial.targets.kubernetes.run_log import RunLog
from seatrial.targets.kubernetes.wait_limits import Lasting, WaitLimits
from seatrial.targets.kubernetes.warnings_of_run import warning_said
from seatrial.util.text import quoted

_REPORT_NO_ANSWER_S = 20.0
_REPORT_WAITING_S = 3.0
"""Pods that start as usual are not worth a line."""
_REPORT_JOINING_S = 20.0
"""Agents ask for the name of the first pod up to 2 s after their start, and again after 2.5 and 6 s."""
_UNATTENDED_S = 30.0
"""Controllers write a first status within a second; another one that takes over the lease of a lost one, after 15 s
(``LeaseDuration`` of client-go)."""
_MOST_REASONS = 50
_SPARE_S = 120.0
"""Added to the deadline that the pods keep themselves."""


class TooFewNodesError(SeatrialError):
    """Some pods are missing, but as many run as ``--min-hosts`` asks for."""

    def __init__(self, running: int, absent: tuple[str, ...]) -> None:
        super().__init__(f"{running} of {running + len(absent)} pods run")
        self.running = running
        self.absent = absent


class RunProgress:
    """Whether a run in pods still can come to its end; what it waits for is printed."""

    def __init__(
        self,
        *,
        objects: AppliedObjects,
        job: Processes,
        limits: WaitLimits,
        run_log: RunLog,
        follower: PodFollower,
        folder: Path,
        print_line: Callable[[str], None],
    ) -> None:
        """``folder``: the folder of the run, which has the logs of its pods."""
        self._objects, self._job, self._limits, self._run_log = objects, job, limits, run_log
        self._follower, self._folder, self._print_line = follower, folder, print_line
        self._kubectl: Kubectl = job.detail.kubectl
        self._kind = KINDS[job.target]
        self._under_mpi: bool = job.detail.under_mpi
        self._min_hosts: int | None = job.detail.min_hosts
        self._begin()

    def _begin(self) -> None:
        """Begin to wait for the pods of a start: nothing of an earlier one counts, and each reason is news."""
        self._awaited_since = self._follower.awaited_since
        # What the lists show counts for as long as they show it.
        self._listed, self._awake = Lasting(self._follower.listed), Lasting(self._follower.awake)
        self._first_ran_at: float | None = None
        """When the first list was asked for that showed a running pod (``time.monotonic``)."""
        self._printed_reason = ""
        self._printed: set[str] = set()
        self._reasons: set[str] = set()
        """The kinds of reason for which the run was said to wait."""

    @property
    def _has_conductor(self) -> bool:
        return self._run_log.started or isinstance(self._job, Job)

    def require(self) -> None:
        """Raise SeatrialError when the run cannot come to its end."""
        if self._awaited_since != self._follower.awaited_since:
            self._begin()
        self._require_answers()
        if self._follower.workload_gone and not self._follower.pods and self._follower.first_log is None:
            self._run_log.interrupt(f"the deletion of {self._objects.workload}")
            raise SeatrialError(f"{self._objects.workload} was deleted by somebody before its pods ran")
        self._require_first_pod()
        self._require_pods()
        self._require_nodes()
        self._report_absent_agents()
        if isinstance(self._job, Job) and self._follower.first_log is not None:
            spare_s = JOIN_TIMEOUT_S + _SPARE_S
            limit_s = float(self._job.plan.deadline_s.value) + spare_s
            if self._awake.lasts("running", limit_s):
                running = [pod for pod in self._follower.pods if pod.state != "ended"]
                raise SeatrialError(
                    f"{named_pods(running) if running else 'the run'} {'have' if len(running) > 1 else 'has'} not ended"
                    f" within {limit_s:.0f} s (--deadline, or that of the plan, and {spare_s:.0f} s); see what"
                    " runs there"
                )

    def _require_answers(self) -> None:
        """Raise SeatrialError when the API server has not answered for too long; say so when it lists no pods.

        A run that is ending has limits for what it waits for, and may have come to its verdict.
        """
        follower = self._follower
        now_s, why = follower.awake.total_s, follower.complaint or "no error message"
        silent_s, unlisted_s = now_s - follower.silent_since, now_s - follower.unlisted_since
        if silent_s > self._limits.no_answer_s and not (self._run_log.over or follower.first_has_ended):
            raise TargetUnreachableError(
                f"the cluster's API server has not answered for {silent_s:.0f} s ({why}); make sure that"
                f" {self._kubectl.command_line('get', 'pods')} works"
            )
        if unlisted_s > _REPORT_NO_ANSWER_S:
            self._print_once(
                f"the cluster's API server has listed no pods for {unlisted_s:.0f} s ({why}); still trying; make sure"
                f" that {self._kubectl.command_line('get', 'pods')} works",
                "unlisted",
            )
        else:
            self._printed.discard("unlisted")

    def _require_first_pod(self) -> None:
        """Raise SeatrialError when all pods have started and none of them can be followed."""
        follower = self._follower
        if not follower.all_started or follower.first_log or self._under_mpi or follower.first():
            self._listed.forget("no first")
        elif self._listed.lasts("no first", self._limits.no_first_pod_s):
            raise SeatrialError(
                f"all pods of {self._objects.workload} have started, but by the label {self._kind.index_label} none of"
                f" them is the first node; check that the operator is a release that --on {self._kind.name} supports"
            )

    def _require_pods(self) -> None:
        """Raise SeatrialError when pods do not start, TooFewNodesError when enough of them have."""
        pending = self._follower.pending
        if self._follower.all_started or (not pending.waiting and pending.missing <= 0):
            return
        unready = {pod.uid: pod for pod in pending.unready}
        for pod in pending.pods:
            if pod.uid not in unready:
                self._listed.forget(f"unready {pod.uid}")
        if not (refusal := pending.final_refusal):
            self._listed.forget("refused")
        elif self._listed.lasts("refused", _REPORT_WAITING_S):
            raise JobNotStartedError(
                f"{pending.missing} of {pending.wanted} pods will never be created: {warning_said(refusal)}; change the"
                " request, or what the namespace allows"
            )
        if (
            self._follower.is_unattended
            and not pending.warnings.newest
            and self._listed.lasts("unattended", _UNATTENDED_S)
        ):
            operator = "the Job controller" if self._kind.operator is None else self._kind.operator.release
            self._print_once(
                f"{self._objects.workload} has had no status for {_UNATTENDED_S:.0f} s: nobody has taken it up; is the"
                f" operator running ({operator})?"
            )
        for pod in pending.waiting:
            if not pod.hopeless:
                self._listed.forget(f"hopeless {pod.uid}")
            elif self._listed.lasts(f"hopeless {pod.uid}", self._limits.hopeless_s):
                raise JobNotStartedError(f"{pod.label} does not start: {pod.waits_for}")
        reason = pending.reason()
        if self._listed.lasts("waiting", _REPORT_WAITING_S):
            self._printed_reason = reason
            # Anybody who may create events writes warnings, each in other words.
            if len(self._reasons) < _MOST_REASONS:
                self._reasons.add(kind := pending.kind_of_reason())
                self._print_once(reason, kind)
        for pod in unready.values():
            if self._listed.lasts(f"unready {pod.uid}", self._limits.ready_s):
                raise SeatrialError(f"{why_no_launcher(pod)}; see {pod.name}.log in {self._folder}")
        is_late = self._follower.listed_at - self._awaited_since > self._limits.queue_s
        running = len(pending.running)
        if self._first_ran_at is None and running:
            self._first_ran_at = self._follower.listed_at
        is_enough = self._min_hosts is not None and self._min_hosts <= running < self._job.nodes
        # The pods wait for one another by the clock, however slowly the lists come.
        waited_s = 0.0 if self._first_ran_at is None else self._follower.listed_at - self._first_ran_at
        may_start_again = not (self._run_log.has_events or self._follower.first_has_ended)
        if is_enough and may_start_again and (is_late or waited_s > self._limits.fewer_s):
            raise TooFewNodesError(running, pending.left_out(self._printed_reason))
        if is_late:
            raise SeatrialError(
                f"not all pods have started within {self._limits.queue_s:g} s (--queue-timeout): {reason}"
            )

    def _require_nodes(self) -> None:
        """Raise SeatrialError when the node of a pod no longer reports to the cluster and nobody else would notice."""
        log = self._follower.first_log
        for pod in self._follower.pods:
            if not pod.node_gone:
                self._listed.forget(f"node gone {pod.uid}")
                continue
            self._print_once(f"{pod.label}: its node no longer reports to the cluster (NodeNotReady)")
            # The conductor misses an agent after 15 s of silence. It cannot miss itself.
            is_missed = self._has_conductor and not (self._under_mpi or (log and pod.name == log.pod.name))
            if self._listed.lasts(f"node gone {pod.uid}", self._limits.node_gone_s) and not is_missed:
                raise SeatrialError(
                    f"{pod.label} is lost: its node no longer reports to the cluster (NodeNotReady); see whether"
                    f" {pod.node} and its kubelet are up"
                )

    def _report_absent_agents(self) -> None:
        """Say which pods run and have not joined, and what they said last. They wait for JOIN_TIMEOUT_S."""
        run_log, follower = self._run_log, self._follower
        if not (follower.all_started and run_log.started) or run_log.began or self._under_mpi:
            self._awake.forget("joining")
        elif self._awake.lasts("joining", _REPORT_JOINING_S):
            absent = [pod for pod in follower.pods if pod.state == "running" and pod.number not in run_log.known_nodes]
            if absent:
                line = run_log.words.last_line(absent[0])
                said = f" ({quoted(line)})" if line else ""
                self._print_once(
                    f"{len(absent)} of {self._job.nodes} pods run and have not joined for {_REPORT_JOINING_S:.0f} s,"
                    f" {absent[0].label} among them{said}; see whether network policies of the"
                    " namespace let the pods reach DNS and one another (--allow-egress)",
                    "joining",
                )

    def _print_once(self, line: str, kind: str | None = None) -> None:
        """Print a line for the user. ``kind``: what makes two lines the same news; default: the line itself."""
        if (kind or line) not in self._printed:
            self._printed.add(kind or line)
            self._print_line(f"seatrial: {line}")
