"""One attempt at a run in pods: created, waited for with the reason in words, followed to its end, deleted."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from seatrial.errors import SeatrialError
from seatrial.targets.job import Job, Processes, ProgramJob
from seatrial.targets.kubernetes.applied_objects import AppliedObjects
from seatrial.targets.kubernetes.follower import PodFollower, lacks_reason
from seatrial.targets.kubernetes.log_reader import PodLog
from seatrial.targets.kubernetes.pod_failures import INTERRUPTED
from seatrial.targets.kubernetes.pods import DELETED, PodStatus
from seatrial.targets.kubernetes.run_log import RunLog
from seatrial.targets.kubernetes.run_progress import RunProgress, TooFewNodesError
from seatrial.targets.kubernetes.wait_limits import Lasting, WaitLimits
from seatrial.util.streams import print_status
from seatrial.util.text import quoted

_TURN_S = 0.1
_LAST_OUTPUT_S = 20.0
"""From the end of a pod to the end of its log."""
_UNREACHED_S = 120.0
"""The same where the log cannot be fetched: a proxy of the cluster or a kubelet that restarts takes a minute."""
_GONE_S = 4.0
"""The log of a deleted pod is deleted too; only data that is already on its way can still arrive."""
_RESTARTED_S = 90.0
"""From the end of the first pod to the next start of all: 30 s of grace for the others, and a controller that takes
over the lease of another one."""
_OTHERS_END_S = 30.0
"""Ranks that lose a peer see their sockets close at once; those that hang all the same are ended by deleting them."""
_REPORTED_S = 5.0
"""The kubelet tells the end of a container 0 to 2 s late, and the pods are asked for every two seconds."""
_MOST_NAMED = 4
_TAKEN_BACK = (
    "; the workload is suspended: a queue (such as Kueue) has taken its place back, or somebody has suspended it"
)
_CONDUCTOR_EXIT_CODES = (0, 1, 2, 3, INTERRUPTED)
"""Exit codes of the command in the first pod."""


class Attempt:
    """The life of one set of objects. Call ``run``, then always ``cleanup``."""

    def __init__(
        self,
        *,
        objects: AppliedObjects,
        job: Processes,
        limits: WaitLimits,
        run_log: RunLog,
        folder: Path,
        signals: Sequence[int],
        print_line: Callable[[str], None] = print_status,
    ) -> None:
        """Prepare the attempt; nothing is created yet.

        Args:
            objects: What is applied and deleted.
            job: What runs; its ``detail`` is a ``PodsDetail`` with a kubectl.
            limits: How long to wait for each thing.
            run_log: Takes the events.
            folder: Folder of the run, for the logs of the pods.
            signals: Signals that this process has received; it grows while the attempt runs.
            print_line: Prints a line for the user.
        """
        self._objects, self._job, self._limits, self._run_log = objects, job, limits, run_log
        self._folder, self._signals, self._print_line = folder, signals, print_line
        self._under_mpi: bool = job.detail.under_mpi
        self._restarts: bool = job.detail.workload.max_restarts > 0
        self._min_hosts: int | None = job.detail.min_hosts
        self._follower = PodFollower(objects=objects, job=job, run_log=run_log, print_line=print_line)
        self._progress = RunProgress(
            objects=objects,
            job=job,
            limits=limits,
            run_log=run_log,
            follower=self._follower,
            folder=folder,
            print_line=print_line,
        )
        follower = self._follower
        self._listed, self._warned, self._awake = map(Lasting, (follower.listed, follower.warned, follower.awake))
        self._cut_off = False
        """Whether the first pod disappeared before the end of its log was read."""
        self._absent_noted = False
        """Whether pods that never ran are in the report."""
        self._starts_again = False
        """Whether the run starts again with fewer nodes, so that nothing of this attempt is handed on."""

    @property
    def lost(self) -> int:
        """Number of events of the first pod that never arrived; a log that was cut off counts as one."""
        log = self._follower.first_log
        return (0 if log is None else log.lost) + (self._cut_off and not self._run_log.interrupted)

    @property
    def _has_conductor(self) -> bool:
        return self._run_log.started or isinstance(self._job, Job)

    def run(self) -> None:
        """Submit the objects and follow the pods to their end, or cancel them after a signal.

        Raises SeatrialError for a run that cannot come to its end, TooFewNodesError for one to start again.
        """
        self.submit()
        try:
            while not self._signals:
                if self.poll():
                    return
                time.sleep(_TURN_S)
        except TooFewNodesError:
            self._starts_again = True
            raise
        except SeatrialError:
            self._run_log.release()
            self._interrupt_undecided()
            raise
        self.cancel()

    def submit(self) -> None:
        """Create the objects. Raises SeatrialError when the cluster refuses them."""
        self._run_log.may_start_again = self._restarts
        if self._min_hosts is not None:
            self._run_log.defer()
        self._objects.apply()
        self._print_line(
            f"seatrial: created {self._objects.workload}; list its pods with: {self._objects.get_command()}"
        )
        self._follower.awaited_since = time.monotonic()

    def poll(self) -> bool:
        """Read the news and return whether the run has ended. Raises SeatrialError for one that never will."""
        self._follower.poll()
        self._undecided()  # The wait for a reason begins.
        if self._has_ended() or self._has_failed() or self._never_started():
            return True
        self._progress.require()
        return False

    def cancel(self) -> None:
        """End all pods by SIGTERM: the conductor in them completes its record, which is read as it arrives."""
        self._print_line("seatrial: stopping: the pods are being deleted")
        by = signal.Signals(self._signals[0]).name
        self._run_log.release()
        # Once all pods are deleted nothing shows any more why one was lost before.
        lost_at = self._lost_first(self._undecided())
        self._objects.delete_workload()
        while (log := self._follower.first_log) is not None and len(self._signals) < 2:
            self._follower.poll()
            gone = not self._follower.is_listed(self._follower.latest(log.pod))
            has_all = self._has_whole_record() and not log.is_open
            is_gone = gone and (has_all or self._awake.lasts("gone", _GONE_S))
            if log.complete or is_gone or self._awake.lasts("cancel", _LAST_OUTPUT_S):
                break
            time.sleep(_TURN_S)
        self._run_log.interrupt(by, before=lost_at)

    def _has_whole_record(self) -> bool:
        """Return whether the conductor has sent its last event, or no conductor has started that could."""
        return self._run_log.over or (isinstance(self._job, Job) and not self._run_log.started)

    def cleanup(self, *, keep: bool) -> list[str]:
        """Fetch the logs, then delete all objects unless ``keep``. Returns what is left, with what to do."""
        if not self._starts_again:
            self._run_log.release()
        try:
            self._require_all_ran(0.0)
            self._follower.close()
        except (OSError, SeatrialError) as error:
            # Objects may be left in the cluster, of which the report must tell all the same.
            self._run_log.note("warn", f"the logs of some pods are missing ({error})")
        left = [] if keep else self._objects.delete(keep_waiting=lambda: len(self._signals) < 2)
        if keep:
            self._print_line(
                f"seatrial: the objects are kept (--keep); delete them with: {self._objects.delete_command()}"
            )
        # Last: no object stays in the cluster because of a disk.
        for text in self._run_log.copies.finish(lambda: len(self._signals) > 1):
            self._run_log.note("warn", text)
        return left

    # The three ways in which a run ends

    def _has_ended(self) -> bool:
        """Return whether the first pod has ended and its log has been read."""
        log = self._follower.first_log
        if log is None:
            return False
        first = self._follower.latest(log.pod)
        if self._may_start_again(first):
            return False
        if not self._follower.has_gone(first):
            if not (self._run_log.over and self._awake.lasts("over", _LAST_OUTPUT_S)):
                return False
        else:
            # The run cannot start again with fewer nodes: what its conductor said decides how it ended.
            self._run_log.release()
            if not log.complete:
                if self._awaits_log(log, first):
                    return False
                # The part of the log that is missing may hold the worst event of all.
                self._cut_off = self._run_log.over
        if self._awaits_reason(first) or not self._wait_for_others(first) or self._awaits_reason(first):
            return False
        if self._follower.first_log is not log:
            return False  # All pods have started again meanwhile.
        self._conclude(self._follower.latest(first))
        return True

    def _lasts(self, condition: str, limit_s: float) -> bool:
        """Return whether lists of the pods have shown a condition for this time, or none have come for too long."""
        is_seen = self._listed.lasts(condition, limit_s)
        return self._awake.lasts(condition, limit_s + self._limits.no_answer_s) or is_seen

    def _awaits_log(self, log: PodLog, first: PodStatus) -> bool:
        """Return whether the rest of the log of the first pod, which has ended, may still be read."""
        if not self._follower.is_listed(first):
            return not self._awake.lasts(f"gone {first.uid}", _GONE_S)
        if log.failures:
            # A log that comes back has as long as any other one.
            self._awake.forget(f"reads {first.uid}")
            return not self._awake.lasts(f"unreached {first.uid}", _UNREACHED_S)
        return not self._awake.lasts(f"reads {first.uid}", _LAST_OUTPUT_S)

    def _may_start_again(self, first: PodStatus) -> bool:
        """Return whether the controller may start all pods again, now that the first one has ended."""
        is_over = self._follower.workload_over or self._follower.workload_gone
        if not self._restarts or is_over or not self._follower.has_gone(first) or first.exit_code == 0:
            return False
        return not self._lasts(f"restart {first.uid}", _RESTARTED_S)

    def _awaits_reason(self, first: PodStatus | None) -> bool:
        """Return whether the cluster may still tell why a pod failed, or why the conductor missed it."""
        condition, limit_s = f"reason {first and first.uid}", self._limits.reason_s
        unexplained, undecided = self._unexplained(), self._undecided()
        if not (unexplained or undecided) or self._awake.lasts(condition, limit_s + self._limits.no_answer_s):
            return False
        return bool(undecided) or (bool(unexplained) and not self._listed.lasts(condition, limit_s))

    def _unexplained(self) -> list[PodStatus]:
        """Return the listed pods that failed, or that the conductor missed, and of which a list may tell more."""
        return [
            pod
            for pod in self._follower.pods
            if lacks_reason(pod) or (not pod.is_explained and self._lost_at(pod) is not None)
        ]

    def _undecided(self) -> list[PodStatus]:
        """Return the lost pods whose reason the cluster may have told after all that it was asked for."""
        listed = self._unexplained()
        # The kubelet has announced it before the end of the pod.
        gone = [
            pod
            for pod in self._follower.known.values()
            if lacks_reason(pod) and not (pod.stop or self._follower.is_listed(pod))
        ]
        for_long = {pod: self._listed.lasts(f"lost {pod.uid}", self._limits.reason_s) for pod in listed}
        # The status of a pod that is listed tells the reason, too, once the list of Events has failed for too long.
        explained = {pod: self._awake.lasts(f"unwarned {pod.uid}", self._limits.no_answer_s) for pod in listed}
        return [
            pod
            for pod in (*listed, *gone)
            if not (
                (self._warned.lasts(f"lost {pod.uid}", 0.0) or explained.get(pod, False)) and for_long.get(pod, True)
            )
        ]

    def _lost_first(self, pods: Sequence[PodStatus]) -> int | None:
        """Return the ``seq`` of the first event that reports one of these pods as lost."""
        return min((at for at in map(self._lost_at, pods) if at is not None), default=None)

    def _interrupt_undecided(self) -> bool:
        """Record that nothing shows why pods were lost, since the API server has not listed them after that.

        Each of them may have been evicted, for one. Returns False where there are none.
        """
        # A run that came to its end without missing a pod no longer needed it.
        is_over = self._run_log.over and not self._run_log.interrupted
        lost = [pod for pod in self._undecided() if not is_over or self._lost_at(pod) is not None]
        if lost:
            unwarned = not self._warned.lasts(f"lost {lost[0].uid}", 0.0)
            also = ", and no list of Events has come since" if unwarned else ""
            self._interrupt_unlisted(f"why {lost[0].label} {lost[0].end or 'was lost'}", self._lost_first(lost), also)
        return bool(lost)

    def _interrupt_unlisted(self, what: str, before: int | None = None, also: str = "") -> None:
        """Record that the run ended because of something that no list shows. ``what``: a clause; ``also``: another."""
        follower = self._follower
        unlisted_s = follower.awake.total_s - follower.unlisted_since
        said = f"; kubectl says {quoted(follower.complaint)}" if follower.complaint else ""
        self._run_log.interrupt(
            f"the cluster: nothing shows {what}, since the API server does not answer as it should (the last list of"
            f" the pods came {unlisted_s:.0f} s before{also}{said})",
            before,
        )

    def _lost_at(self, pod: PodStatus) -> int | None:
        return self._run_log.lost_at(pod.number, any_node=self._under_mpi or self._job.nodes == 1)

    def _has_failed(self) -> bool:
        """Return whether a pod has failed, or all but the first one ended, without a conductor that would notice."""
        follower = self._follower
        # Where the first one has gone, its log is waited for (``_has_ended``).
        if self._has_conductor or follower.first_has_ended or not (condition := follower.others_end_the_run):
            return False
        limit_s = self._limits.replaced_s if follower.others_may_come else _OTHERS_END_S
        if not self._lasts(condition, limit_s) or self._awaits_reason(None):
            return False
        self._run_log.release()
        if self._has_conductor:  # It may have started all the same.
            return False
        if self._interrupt_undecided():
            return True
        if stopped := self._stopped_first(None):
            self._interrupt_by(stopped, None)
        else:
            self._end_by_exit_codes()
        return True

    def _never_started(self) -> bool:
        """Return whether a pod has ended before the first one ran; the controllers create no other in its place."""
        gone = [pod for pod in self._follower.known.values() if pod.stop or pod.state == "ended"]
        failure = self._follower.workload_failure
        if self._follower.first_log is not None or (self._restarts and not failure) or not (gone or failure):
            return False
        if not self._lasts("none started", _GONE_S) or self._awaits_reason(None):
            return False
        if self._interrupt_undecided():
            return True
        if not gone:
            raise SeatrialError(f"{self._objects.workload} failed before its first pod ran ({failure})")
        # When one pod ends by itself the controllers delete the others.
        cause = min(gone, key=lambda pod: pod.deleted)
        if not cause.stop:
            if isinstance(self._job, Job) and self._blame_killed([cause]):
                return True
            raise SeatrialError(
                f"{cause.label} {cause.end} before the first pod ran{self._run_log.words.reason_of(cause)}; its log is"
                f" in {self._folder}"
            )
        self._run_log.interrupt(f"the cluster: {cause.label} {cause.stop}{self._why_deleted([cause])}")
        return True

    def _conclude(self, first: PodStatus) -> None:
        if self._interrupt_undecided():
            return
        run_log, pods = self._run_log, list(self._follower.known.values())
        refused = {pod for pod in self._follower.unreplaced() if pod.never_ran}
        failed = sorted(
            (pod for pod in pods if (pod.exit_code not in (0, None) and not pod.stop) or pod in refused),
            key=lambda pod: (not pod.killed, pod.ended_at),
        )
        was_interrupted = run_log.interrupted
        if stopped := self._stopped_first(first):
            self._interrupt_by(stopped, first)
        elif failed:
            self._explain_interruption(failed, first)
        if causes := stopped or failed:
            # The last lines of the conductor have gone with its pod, because of another one.
            self._cut_off = self._cut_off and causes[0] == first
        for pod in failed:
            if run_log.started and not (pod == first and run_log.over):
                run_log.note("info", f"{pod.label} {pod.end}")
        if run_log.over and not run_log.interrupted:
            self._require_all_ran(self._limits.ended_s)
            self._require_ranks_in_place()
            self._require_spread()
        if run_log.over and not self._under_mpi and first.exit_code not in (*_CONDUCTOR_EXIT_CODES, None):
            run_log.note("error", f"{first.label} {first.end} although the run in it had come to its end")
        # Under MPI other ranks decide where a pod ran; each of its hosts is trusted with the verdict.
        may_be_filled = isinstance(self._job, Job) and not self._under_mpi and not run_log.interrupted
        filled = {pod for pod in failed if may_be_filled and run_log.ran_out_of_memory(pod)}
        failed = [pod for pod in failed if pod not in filled]
        # The conductor that would miss a pod may have ended with it, or because of it.
        if (was_interrupted or not run_log.over) and not run_log.interrupted and self._blame_killed(failed):
            return
        if run_log.over or run_log.interrupted or filled:
            return
        if self._has_conductor:
            raise SeatrialError(
                f"{first.label} {first.end or 'disappeared'}, and the conductor of the run was in it"
                f"{run_log.words.reason_of(first)}; its log is in {self._folder}"
            )
        self._end_by_exit_codes()

    def _end_by_exit_codes(self) -> None:
        """Record the outcome of a program without a conductor, once the logs of all pods that failed have been read.

        A pod that only lost its peers says so in its log alone.
        """
        pods = list(self._follower.known.values())
        failed = [pod for pod in pods if pod.state == "ended" and pod.exit_code != 0 and not self._under_mpi]
        self._run_log.end_by_exit_codes(
            pods,
            under_mpi=self._under_mpi,
            nodes=self._job.nodes,
            prints_result=not isinstance(self._job, ProgramJob) or self._job.watched,
            unread=self._follower.read_logs(failed, keep_waiting=lambda: not self._signals),
            order=self._follower.order,
        )

    def _stopped_first(self, first: PodStatus | None) -> list[PodStatus]:
        """Return the pods that were stopped from outside, without those that controllers may have deleted because
        another one had ended by itself: one that failed, or the first one. Nor those replaced before they ran.

        They also delete all pods to start them again, and the others when the first one has succeeded.
        """
        run_log, order = self._run_log, self._follower.order
        # Pods that have ended, and whether each carried the run to its end: with the verdict, or the code of mpirun.
        ends: list[tuple[PodStatus, bool]] = []
        for pod in self._follower.known.values():
            is_first = first is not None and pod.uid == first.uid
            with_run = not self._launcher_was_killed(pod) if pod.is_launcher else is_first and run_log.over
            was_asked = pod.exit_code == INTERRUPTED and not with_run
            if pod.state == "ended" and not (pod.stop or was_asked) and (is_first or pod.exit_code != 0):
                ends.append((pod, with_run))
        has_succeeded = first is not None and first.exit_code == 0 and not self._has_conductor
        ended_at = order.first_end(pod for pod, _ in ends)
        return [
            pod
            for pod in order.stopped.values()
            if not (
                ((at := order.replaced_at(pod)) and at < run_log.heard_at(self._loss_explained_by(pod), ended_at))
                or (pod.deleted and has_succeeded)
                or (self._restarts and pod.stop == DELETED)
                or (pod.deleted and any(self._may_follow(pod, end, with_run=with_run) for end, with_run in ends))
            )
        ]

    def _may_follow(self, pod: PodStatus, end: PodStatus, *, with_run: bool) -> bool:
        """Return whether controllers may have deleted ``pod`` because of ``end``, as ``PodOrder.may_follow`` does.

        Where no list shows it, a pod that the conductor missed may have been deleted before, unless it ran on.
        """
        follows = self._follower.order.may_follow(pod, end, with_run=with_run)
        lost_at = self._loss_explained_by(pod) if follows is None else None
        if lost_at is None:
            return follows is not False
        return self._follower.order.ran_after(pod, self._run_log.heard_at(lost_at))

    def _loss_explained_by(self, pod: PodStatus) -> int | None:
        """Return the ``seq`` of the first event of a loss that the end of a pod explains."""
        run_log = self._run_log
        # The end of one rank makes mpirun end all of them; where it has not, a pod explains the loss of its host only.
        own = self._under_mpi and run_log.over and not run_log.interrupted
        return run_log.lost_on(pod.node) if own and not pod.is_launcher else self._lost_at(pod)

    def _interrupt_by(self, stopped: Sequence[PodStatus], first: PodStatus | None) -> None:
        """Record that the run was ended from outside, by the end of these pods."""
        run_log = self._run_log
        lost_at = {pod.uid: self._loss_explained_by(pod) for pod in stopped}
        # A run that came to its end without missing a pod no longer needed it.
        needed = [pod for pod in stopped if not run_log.over or run_log.interrupted or lost_at[pod.uid] is not None]
        if needed:
            # When one is deleted the controllers delete the others, too: the first one says more, or one with a reason.
            # No controller deletes the launcher of MPI because of a node.
            stopped_in = self._follower.order.stopped_in
            pod = min(needed, key=lambda pod: (pod.stop == DELETED, stopped_in(pod), (pod == first) != self._under_mpi))
            why = self._why_deleted(stopped) if pod.deleted else ""
            end = first if first is not None and first.state == "ended" and not first.stop else None
            if end is not None and self._follower.order.may_follow(pod, end, with_run=True) is None:
                why += f"; nothing shows whether that was before the end of {end.label}"
            missed = [seq for seq in lost_at.values() if seq is not None]
            run_log.interrupt(f"the cluster: {pod.label} {pod.stop}{why}", min(missed, default=None))

    def _explain_interruption(self, failed: Sequence[PodStatus], first: PodStatus) -> None:
        """Drop the interruption of the conductor where the end of another pod explains it; else name that pod.

        How a pod ended is the word of its node. It counts where the conductor missed the pod before it was stopped, and
        where the node says that the pod was killed, for which it is then blamed itself. Under MPI each host is trusted
        with the verdict, and the first pod is not the conductor's.
        """
        run_log = self._run_log
        # A conductor that has come to its end was not stopped by its own end.
        others = [pod for pod in failed if self._under_mpi or not (pod == first and run_log.over)]
        any_node = self._under_mpi or self._job.nodes == 1
        for pod in others:
            if pod.never_ran:
                continue  # The conductor cannot have missed it.
            if self._under_mpi or pod.killed or run_log.missed_first(pod.number, any_node=any_node):
                run_log.clear_interruption(f"{pod.label} {pod.end}")
                return
        if others and run_log.interrupted:
            deleted = any(pod.stop and pod.deleted for pod in self._follower.known.values())
            also = "; other pods were deleted" if deleted else ""
            run_log.interrupt(f"the cluster: {others[0].label} {others[0].end}{also}")

    def _require_all_ran(self, wait_s: float) -> None:
        """Note pods of a trial that never ran although its ranks were started. ``wait_s``: for what the cluster says.

        Each pod has the token of the run, and can report in the place of another one for as long as that one waits.
        """
        is_of_pods = isinstance(self._job, Job) and self._job.nodes > 1 and not self._under_mpi
        if not (is_of_pods and self._run_log.began) or self._absent_noted:
            return
        follower = self._follower
        while absent := sorted(set(range(self._job.nodes)) - follower.ran()):
            if not wait_s or self._signals or self._lasts("absent", wait_s):
                self._absent_noted = True
                pods = {pod.number: pod.label for pod in follower.known.values()}
                named = ", ".join(pods.get(node, "no pod") + f" (node {node})" for node in absent[:_MOST_NAMED])
                more = f" and {len(absent) - _MOST_NAMED} more" if len(absent) > _MOST_NAMED else ""
                self._run_log.note(
                    "error",
                    f"ranks were started, but the cluster has not shown that these pods ran: {named}{more};"
                    " another pod may have reported in their place, so nothing of their nodes can be trusted",
                    untrusted=absent,
                )
                return
            follower.poll_pods()
            time.sleep(_TURN_S)

    def _require_spread(self) -> None:
        """Note pods of a trial that shared a node although each was to have its own, as an admission webhook has it."""
        shared = self._run_log.shared_nodes() if self._job.detail.workload.spread == "required" else []
        if shared and isinstance(self._job, Job):
            named = ", ".join(shared[:_MOST_NAMED])
            self._run_log.note(
                "error",
                f"each pod was to have a node of the cluster to itself (--spread required), but {named} had several;"
                " so other nodes were not tested",
            )

    def _require_ranks_in_place(self) -> None:
        """Note nodes of a trial under MPI on which more ranks ran than in its pods: then others had too few or none.

        The operator's host file says where they start, and others may change it.
        """
        if not (isinstance(self._job, Job) and self._under_mpi):
            return
        elsewhere = self._run_log.ranks_elsewhere(self._job.nproc_per_node)
        if elsewhere:
            named = ", ".join(
                f"{len(ranks)} on node {quoted(node)}" for node, ranks in [*elsewhere.items()][:_MOST_NAMED]
            )
            self._run_log.note(
                "error",
                f"ranks were not where the pods of this run are ({named}), so some pods held too few of them or none;"
                " see who may change ConfigMaps and pods of the namespace",
                untrusted=sorted(rank for ranks in elsewhere.values() for rank in ranks),
            )

    def _why_deleted(self, stopped: Sequence[PodStatus]) -> str:
        """Return why pods were deleted, as the end of a sentence; empty if the workload does not say it."""
        return _TAKEN_BACK if any(pod.deleted for pod in stopped) and self._objects.is_suspended() else ""

    def _launcher_was_killed(self, pod: PodStatus) -> bool:
        return self._run_log.launcher_was_killed(pod, is_read=self._follower.has_read(pod))

    def _blame_killed(self, failed: Sequence[PodStatus]) -> bool:
        """Record that the node of the first pod that was killed is lost; of a program, that it failed.

        Returns False where none was killed, or where the outcome is known already. The launcher of MPI ends with the
        exit code of what ended its ranks, so it comes last.
        """
        if isinstance(self._job, Job):
            lost = next((pod for pod in failed if pod.killed and not pod.is_launcher), None)
            lost = lost or next((pod for pod in failed if self._launcher_was_killed(pod)), None)
            if lost is not None:
                self._run_log.node_lost(lost, ranks_per_node=self._job.nproc_per_node, under_mpi=self._under_mpi)
            return lost is not None
        killed = sorted((pod for pod in failed if pod.killed), key=lambda pod: pod.is_launcher)
        if not (killed and self._run_log.started) or self._run_log.has_outcome:
            return False
        self._run_log.fail(killed[0], killed[0].end)
        return True

    def _wait_for_others(self, first: PodStatus) -> bool:
        """Wait for the ends of other pods where one of them may be the cause of the end of the first one.

        Returns False where a signal has ended the wait.
        """
        if self._has_conductor:
            # The launcher ends before the cluster tells which node it has lost.
            waits = self._under_mpi and not self._run_log.over
        else:
            has_result = self._under_mpi and self._run_log.has_result and first.exit_code == 0
            waits = not has_result and not self._stopped_first(first)
        # Under MPI the sshd of a node never ends by itself; and the kubelet reports a killed one within this time.
        condition, limit_s = f"others {first.uid}", _REPORTED_S if self._under_mpi else _OTHERS_END_S
        while waits and not self._lasts(condition, limit_s):
            if self._signals:
                return False
            if self._under_mpi and any(pod.killed for pod in self._follower.known.values() if not pod.is_launcher):
                return True
            if all(pod.state == "ended" and (pod.exit_code == 0 or pod.is_explained) for pod in self._follower.pods):
                return True
            self._follower.poll()
            self._undecided()
            time.sleep(_TURN_S)
        others = [pod for pod in self._follower.pods if pod.state != "ended"]
        if waits and others and not self._listed.lasts(condition, limit_s):
            self._interrupt_unlisted(f"how {others[0].label} ended")
        return True
