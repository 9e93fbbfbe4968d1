"""The record of a run in pods: the events of its conductor, and those that the controller adds when it ends early."""

from __future__ import annotations

import contextlib
import math
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from seatrial.errors import RequestError
from seatrial.evidence.findings import Finding
from seatrial.judge.conclude import conclude
from seatrial.protocol.connecting import OUT_OF_MEMORY, meeting_phase
from seatrial.protocol.events import (
    EndEvent,
    Event,
    InterruptedEvent,
    NodeEvent,
    NoteEvent,
    OutcomeEvent,
    ResultEvent,
    Source,
    TroubleEvent,
)
from seatrial.targets.job import Job, Processes
from seatrial.targets.kubernetes.deferred_messages import DeferredMessages
from seatrial.targets.kubernetes.log_copies import LogCopies
from seatrial.targets.kubernetes.pod_failures import (
    INTERRUPTED,
    PodLog,
    Shown,
    first_to_fail,
    named_pods,
    only_missed,
    shown_by,
    undecided,
)
from seatrial.targets.kubernetes.pod_order import PodOrder
from seatrial.targets.kubernetes.pod_words import LAST_LINES, PodWords
from seatrial.targets.kubernetes.pods import PodStatus
from seatrial.targets.kubernetes.received_events import MALFORMED, require_sound
from seatrial.util.text import quoted

_RESULT = re.compile(r"trained \d+ of \d+ steps|after step \d+ of|stopped (?:on request|at step)")
"""The first of the lines with which a training ends (``training/progress_lines.py``)."""
_LOST_DAEMON = re.compile(r"has lost communication with a remote daemon|lost connection to proxy")
"""Open MPI 4 and 5 (ORTE, PRTE), and hydra. The exit code may be 0 all the same."""
_OWN_END = re.compile(
    r"(?:mpirun|prterun) (?:noticed|detected) that|returned a non-zero exit code|BAD TERMINATION OF ONE OF YOUR"
)
"""What an mpirun prints before it ends because of a rank, with the exit code of that rank: Open MPI 4 and 5, hydra."""
_KILLED = 128 + signal.SIGKILL
_JUDGED_BYTES = 1 << 20
"""The end of a log that is searched for the failures of ranks. C++ prints a stack of kilobytes for each of them."""
_DAMAGE_CHARS = 200
_MOST_RESULT_LINES = 1_000
_LINE_CHARS = 4_000
_OF_END = ("outcome", "result", "trouble")
_BETWEEN_PODS = "network"
"""The check whose findings a NetworkPolicy explains as well as a node; their advice names both."""


def nodes_to_cordon(findings: Iterable[Finding]) -> list[str]:
    """Return the host names of the nodes that findings blame by themselves.

    A link or fabric between several nodes blames none of them, a process that died or stopped not its node, and other
    pods would meet the same policy elsewhere.
    """
    named = [
        finding.culprit.nodes
        for finding in findings
        if finding.severity == "fail"
        and finding.check != _BETWEEN_PODS
        and finding.culprit.kind != "process"
        and (finding.culprit.kind not in ("link", "fabric") or len(finding.culprit.nodes) == 1)
    ]
    return list(dict.fromkeys(node for nodes in named for node in nodes))


class RunLog:
    """The events of a run: they are handed on, and those that decide how the run ended are remembered."""

    def __init__(
        self,
        run: Mapping[str, Any],
        folder: Path,
        on_event: Callable[[dict[str, Any]], None],
        on_message: Callable[[dict[str, Any]], None],
    ) -> None:
        """``run``: the first event, used unless the conductor in the pods sends one."""
        self._run = dict(run)
        self.copies = LogCopies(folder)
        """Copies of the logs of all pods."""
        self.words = PodWords(self.copies)
        """The last words of the pods."""
        self.may_start_again = False
        """Whether a controller starts all pods again when one has failed."""
        self._on_event, self._on_message = on_event, on_message
        self._events: list[dict[str, Any]] = []
        self._source: Source | None = None
        """Source of the controller's events; None while there are none."""
        self._deferred: DeferredMessages | None = None
        self._begin()

    def _begin(self) -> None:
        """Begin a start of the pods. No event and no line of an earlier start says anything about this one."""
        self.started = False
        """Whether the conductor in the pods has started."""
        self.over = False
        """Whether the conductor has sent its last event."""
        self.began = False
        """Whether the conductor has started ranks."""
        self.interrupted = False
        """Whether the run was ended from outside."""
        self.has_outcome = False
        """Whether an ``outcome`` event exists."""
        self.damaged = 0
        """Number of messages of the first pod that cannot be; they are left out."""
        self._first_damaged = ""
        self._ends: list[dict[str, Any]] = []
        """Events that say how this start has ended, kept back while the pods may start again."""
        self._last_seq = 0
        self._lost_at: dict[int, int] = {}
        """Node rank -> ``seq`` of the conductor's event that reports the node as lost."""
        self._heard_at: dict[int, float] = {}
        """The same number -> when the event came (``time.monotonic``)."""
        self._first_trouble: dict[str, Any] | None = None
        """The conductor's first ``trouble`` event."""
        self._failure: dict[str, Any] | None = None
        """The conductor's outcome of a program that failed."""
        self._interruption: dict[str, Any] | None = None
        """The conductor's ``interrupted`` event, kept until its cause is known."""
        self._held_outcome: dict[str, Any] | None = None
        """The outcome of a program that was interrupted, kept for as long."""
        self._place = (0, -1)
        """Generation and step that the conductor has reached."""
        self._lost_in: dict[int, tuple[int, int]] = {}
        """Node rank -> the same when the conductor reported the node as lost."""
        self._checks: dict[int, str] = {}
        """Step -> its check."""
        self._first_ranks: dict[tuple[int, int], int] = {}
        """Generation and node rank -> the first rank there."""
        self._nodes: dict[int, str] = {}
        """Node rank -> host name, of the agents that joined; empty until that is known."""
        self._unnamed: list[tuple[float, dict[str, Any]]] = []
        """``node`` events and when they came, until a later list of pods tells the names of their nodes."""
        self._result: list[str] = []
        self._pods: tuple[PodStatus, ...] = ()
        if self._deferred is not None:
            self.defer()

    def defer(self) -> None:
        """Keep all messages back until ``release``, since the run may still start again with fewer nodes."""
        self._deferred = DeferredMessages()

    def release(self) -> None:
        """Hand on the messages that were kept back; all later ones are handed on at once."""
        deferred, self._deferred = self._deferred, None
        for message in deferred or ():
            self.take(message)

    def restart(self, job: Processes | None = None) -> None:
        """Forget all that the pods have sent and shown: they start again. ``job``: as this one, with fewer nodes."""
        if job is not None:
            self._run["job"], self._deferred = job.to_json(), None
        self._begin()

    @property
    def has_events(self) -> bool:
        """Whether events were handed on: those of another job would mix with them."""
        return bool(self._events)

    def take(self, message: dict[str, Any]) -> None:
        """Take one authenticated message of the first pod. One that cannot be is damage: it ends nothing."""
        if self._deferred is not None:
            self._deferred.add(message)
            return
        try:
            if "seq" in message:
                require_sound(message)
            self._take_sound(message)
        except MALFORMED as error:
            if "seq" in message and message.get("src") != "conductor":
                # The conductor records it as damage of the node that sent it; so does the verdict.
                with contextlib.suppress(*MALFORMED):
                    self._take(message)
                return
            self.damaged += 1
            what = f"{message.get('kind')} of {message.get('src', 'a rank')}: {type(error).__name__} {error}"
            self._first_damaged = self._first_damaged or what[:_DAMAGE_CHARS]

    def _take_sound(self, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if "seq" not in message:
            self._on_message(message)
            return
        if kind == "run":
            # The pod knows only its own placement; the request is known here.
            self.started, message = True, {**message, "job": self._run["job"]}
        if message.get("src") == "conductor":
            self._last_seq = max(self._last_seq, int(message["seq"]))
            self.over = self.over or kind == "end"
            self._note_place(message)
            if kind == "outcome" and self.interrupted:
                self._held_outcome = message
                return
            self.has_outcome = self.has_outcome or kind == "outcome"
            if kind == "outcome" and message["how"] == "failed":
                self._failure = message
            if kind == "trouble":
                self._first_trouble = self._first_trouble or message
            for suspect in message["seen"] if kind == "trouble" else ():
                if suspect.get("node") is not None:
                    self._lost_at.setdefault(int(suspect["node"]), self._last_seq)
                    self._heard_at.setdefault(self._last_seq, time.monotonic())
                    self._lost_in.setdefault(int(suspect["node"]), (int(message["gen"]), int(message["step"])))
            if kind == "interrupted":
                # The conductor does not know why its pod was stopped.
                self.interrupted, self._interruption = True, message
                return
        elif kind == "node":
            if not self._is_placed_by_mpi():
                self._nodes.setdefault(int(message["node"]), "")
                self._unnamed.append((time.monotonic(), message))
                return
            self._nodes[int(message["node"])] = str(message["hostname"])
        self._take(message)

    def _name_nodes(self, *, before: float, is_last: bool = False) -> None:
        """Hand on the ``node`` events that came before this time, of nodes that the pods tell. ``is_last``: all.

        A finding about a pod has the name that the cluster gives its node, not one that its host chooses. A list that
        was asked for earlier may lack the pod, or have one that it replaced.
        """
        placed = {} if self._is_placed_by_mpi() else _nodes_of(self._pods)
        unnamed, self._unnamed = self._unnamed, []
        for came_at, message in unnamed:
            node = int(message["node"])
            if not (is_last or (came_at < before and node in placed)):
                self._unnamed.append((came_at, message))
                continue
            self._nodes[node] = placed.get(node, "" if placed else str(message["hostname"]))
            self._take({**message, "hostname": self._nodes[node]})

    def _note_place(self, message: Mapping[str, Any]) -> None:
        if message.get("kind") == "generation":
            self.began = True
            self._place = (int(message["gen"]), -1)
            for rank, node, _ in message["ranks"]:
                self._first_ranks.setdefault((int(message["gen"]), int(node)), int(rank))
        elif message.get("kind") == "step":
            self._place = (int(message["gen"]), int(message["step"]))
            self._checks[int(message["step"])] = str(message["check"])

    def clear_interruption(self, why: str) -> None:
        """Replace the conductor's ``interrupted`` event by a note: its pod was stopped because another one failed."""
        if self._interruption is not None:
            note = {"kind": "note", "severity": "info", "text": f"the other pods were stopped because {why}"}
            self._take({**self._interruption, **note})
            self.interrupted, self._interruption, self._held_outcome = False, None, None

    def forget_result(self) -> None:
        """Take note that another first pod has the place of the one whose words were taken."""
        self._result = []

    def take_text(self, lines: list[str]) -> None:
        """Take lines of the first pod that are not events; a training without a conductor prints nothing else."""
        if self.started:
            return
        for line in lines:
            if (self._result or _RESULT.match(line)) and len(self._result) < _MOST_RESULT_LINES:
                self._result.append(line[:_LINE_CHARS])
            else:
                self._on_message({"kind": "output", "gen": 0, "rank": 0, "lines": [line[:_LINE_CHARS]], "left_out": 0})

    def take_pods(self, pods: Iterable[PodStatus], *, asked_at: float = math.inf) -> None:
        """Take note of the pods of the run, as the cluster knew them at some time after ``asked_at``."""
        self._pods = tuple(pods)
        self._name_nodes(before=asked_at)

    def note(self, severity: Literal["error", "warn", "info"], text: str, untrusted: Sequence[int] = ()) -> None:
        """Add a note of the controller to the report. ``untrusted``: nodes that may be others than they say."""
        note = NoteEvent(kind="note", severity=severity, text=text)
        if untrusted:
            note["untrusted"] = [*untrusted]
        self._add(note)

    @property
    def is_ending(self) -> bool:
        """Whether the conductor has missed a node, or has come to its end."""
        return self.over or bool(self._lost_at)

    def lost_at(self, node: int, *, any_node: bool) -> int | None:
        """Return the ``seq`` of the event that reports this node as lost; None if the conductor missed no such node.

        ``any_node``: take the first lost node instead, since MPI placed the ranks and the node of a pod is unknown.
        """
        # The first one that was lost is the first one here.
        return next(iter(self._lost_at.values()), None) if any_node else self._lost_at.get(node)

    def lost_on(self, host: str) -> int | None:
        """Return the ``seq`` of the first event that reports an agent on this node of the cluster as lost, under MPI.

        An agent whose node is not one of the pods' may be on any of them.
        """
        elsewhere = {*_nodes_of(self._pods).values()} - {host}
        lost = [seq for rank, seq in self._lost_at.items() if self._nodes.get(rank) not in elsewhere]
        return min(lost, default=None)

    def heard_at(self, seq: int | None, default: float = math.inf) -> float:
        """Return when the event came that reports a node as lost and has this ``seq`` (``time.monotonic``).

        ``default``: for no such event.
        """
        return default if seq is None else self._heard_at[seq]

    def missed_first(self, node: int, *, any_node: bool) -> bool:
        """Return whether the conductor missed this node, or ``any_node``, before it was interrupted itself."""
        lost_at = self.lost_at(node, any_node=any_node)
        return lost_at is not None and self._is_before_interruption(lost_at)

    def _is_before_interruption(self, seq: int) -> bool:
        return self._interruption is None or seq < int(self._interruption["seq"])

    def interrupt(self, by: str, before: int | None = None) -> None:
        """Record that the run was ended from outside.

        ``by``: what ended it. ``before``: ``seq`` of the conductor's first event that is a consequence of it; this
        event and all later ones blame nobody.
        """
        if self._interruption is not None and before is not None and self._is_before_interruption(before):
            self.clear_interruption(by)
        elif self._interruption is not None:
            # The conductor knows only the signal that its pod got.
            self._interruption = {**self._interruption, "by": by}
        if not self.interrupted:
            self.interrupted = True
            order = self._last_seq + 1 if before is None else before
            self._add(InterruptedEvent(kind="interrupted", by=by, order=order))
            trouble, failure = self._first_trouble, self._failure
            if trouble is not None and failure is not None and before == trouble["seq"]:
                # The program failed of that alone, unless it was started again.
                self.has_outcome = trouble["gen"] != failure["gen"]

    def node_lost(self, pod: PodStatus, *, ranks_per_node: int, under_mpi: bool) -> None:
        """Record that the node of a pod was lost, if the conductor has not. The launcher of MPI has a node too."""
        node = self._node_of(pod, ranks_per_node=ranks_per_node, under_mpi=under_mpi)
        if node not in self._nodes:
            # Its agent never joined; the cluster knows the name of its node.
            named = NodeEvent(kind="node", node=node, hostname=pod.node, address="", pid=0, cores=0)
            self._take(Source(self._run["run"], f"node{node}").event(named))
        if self.lost_at(node, any_node=under_mpi) is None:
            generation, step = self._place
            seen = [{"node": node, "how": "lost", "detail": f"{pod.label} {pod.end}"}]
            order = self._last_seq + 1
            self._add(TroubleEvent(kind="trouble", gen=generation, step=step, seen=seen, waiting=[], order=order))

    def ran_out_of_memory(self, pod: PodStatus) -> bool:
        """Record that a pod ran out of memory while its ranks met those of others, which may have filled it: no agent
        of it is left to tell that. Returns False for any other pod, also where the run came to its end with its agent.
        """
        node = max(pod.number, 0)
        if self.over and node not in self._lost_at:
            return False
        generation, step = self._lost_in.get(node, self._place)
        rank, phase = self._first_ranks.get((generation, node)), meeting_phase(self._checks.get(step, ""))
        if not (pod.out_of_memory and phase) or rank is None or len(self._pods) < 2:
            return False
        detail = f"{OUT_OF_MEMORY}{pod.label} {pod.end}"
        seen = [{"rank": rank, "how": "dead", "phase": phase, "detail": detail}]
        order = self._lost_at.get(node, self._last_seq + 1)
        self._add(TroubleEvent(kind="trouble", gen=generation, step=step, seen=seen, waiting=[], order=order))
        return True

    @property
    def known_nodes(self) -> frozenset[int]:
        """The node ranks whose agents have joined."""
        return frozenset(self._nodes)

    def ranks_elsewhere(self, ranks_per_node: int) -> dict[str, list[int]]:
        """Return the ranks of MPI on each node of the cluster on which more say they are than its pods should hold."""
        pods = Counter(_nodes_of(self._pods).values())
        on_node: dict[str, list[int]] = {}
        for rank, node in sorted(self._nodes.items()):
            on_node.setdefault(node, []).append(rank)
        return {node: ranks for node, ranks in on_node.items() if len(ranks) > pods[node] * ranks_per_node}

    def shared_nodes(self) -> list[str]:
        """Return the nodes of the cluster that hold several pods of the run, without the launcher of MPI."""
        return sorted(node for node, count in Counter(_nodes_of(self._pods).values()).items() if count > 1)

    def launcher_was_killed(self, pod: PodStatus, *, is_read: bool) -> bool:
        """Return whether something killed the launcher of MPI, which then says nothing.

        Its exit code proves nothing: mpirun also ends with 137 when a signal has killed a rank, and says so.
        ``is_read``: whether its log was read to its end.
        """
        if not pod.is_launcher or pod.stop or pod.out_of_memory:
            return pod.is_launcher and not pod.stop
        said = self.words.last_output(pod)
        says_why = _OWN_END.search(said.text) or _LOST_DAEMON.search(said.text)
        return pod.exit_code == _KILLED and is_read and said.is_whole and not says_why

    def _node_of(self, pod: PodStatus, *, ranks_per_node: int, under_mpi: bool) -> int:
        if pod.is_launcher:
            # It has no ranks and no agent, so its number comes after all others.
            return max([int(self._run["job"]["world_size"]) - 1, *self._nodes]) + 1
        number = max(pod.number, 0)  # the only pod of a run may have no number
        if not under_mpi:
            return number
        # Each rank has an agent; mpirun fills the hosts in the order of the host file. The name of the node proves it.
        expected = range(number * ranks_per_node, (number + 1) * ranks_per_node)
        here = [node for node, hostname in sorted(self._nodes.items()) if hostname == pod.node]
        return next((node for node in here if node in expected), next(iter(here), expected.start))

    def fail(self, pod: PodStatus, what: str) -> None:
        """Record that a program failed because of a pod. ``what``: a predicate, such as ``ended with exit code 1``."""
        self._outcome("failed", f"{pod.label} {what}", self.words.last_lines(pod))

    @property
    def has_result(self) -> bool:
        """Whether rank 0 of a training without a conductor has printed its result."""
        return bool(self._result)

    def end_by_exit_codes(
        self,
        pods: Sequence[PodStatus],
        *,
        under_mpi: bool,
        nodes: int = 1,
        prints_result: bool = True,
        unread: Collection[str] = (),
        order: PodOrder | None = None,
    ) -> None:
        """Record the outcome of a program without a conductor.

        A training has succeeded when rank 0 has printed its result, which it does when all ranks have ended their work,
        and no pod contradicts that. An exit code of 0 alone is no proof: the mpirun of Open MPI 5.0.7 ends with it
        although it has lost a daemon.

        Args:
            pods: All pods of the run.
            under_mpi: Whether the launcher of MPI decides; a worker decides only where it was killed.
            nodes: Of the run. The pod of one may never have been listed.
            prints_result: False for a script, which prints nothing that is known here.
            unread: Names of pods whose log was not read to its end.
            order: What the lists of the pods showed first.
        """
        judged = [pod for pod in pods if pod.is_launcher] if under_mpi else list(pods)
        first = next((pod for pod in judged if pod.is_launcher or pod.number == 0), None)
        said = self.words.last_output(first) if first is not None and first.is_launcher else None
        is_unread = first is not None and first.name in unread and (prints_result or first.is_launcher)
        is_unread = is_unread or (said is not None and not said.is_whole)
        lost_daemon = said is not None and _LOST_DAEMON.search(said.text)
        claimed = bool(self._result) or not (prints_result or is_unread or lost_daemon)
        succeeded = claimed and first is not None and first.exit_code == 0
        failed = [pod for pod in judged if pod.exit_code not in (0, INTERRUPTED)]
        # mpirun ends because of a worker that was killed.
        failed = [pod for pod in pods if under_mpi and not pod.is_launcher and pod.killed] or failed
        has_result = bool(self._result) and not under_mpi
        num_pods = max(nodes, sum(not pod.is_launcher for pod in pods))
        # Under MPI the log of the launcher has what all ranks print.
        of_all = self.words.ranks_that_met(first) if under_mpi and first is not None else None

        def log_of(pod: PodStatus) -> PodLog:
            last, met = self.words.last_output(pod, _JUDGED_BYTES), of_all or self.words.ranks_that_met(pod)
            # The sshd of a worker has nothing to say, and its log may never have been fetched.
            decides = last if said is None or pod == first else said
            is_read = pod.name not in unread and decides.is_whole and met.is_whole
            # Not by splitlines: what a rank quotes of others may hold what Python takes for the end of a line.
            lines = last.text.split("\n")
            ranks = met.ranks if num_pods > 1 else None
            return PodLog(lines=lines, met=ranks, is_read=is_read, has_beginning=met.has_beginning)

        shown = shown_by(failed, log_of, has_result=has_result)
        if first is not None and first.exit_code == 0:
            # Then operators delete the other pods. Of one that was stopped only a failure counts that its log shows.
            stopped = {pod for pod in judged if pod.stop and shown.get(pod, Shown.STOPPED) == Shown.STOPPED}
            judged = [pod for pod in judged if pod not in stopped]
            shown = {pod: what for pod, what in shown.items() if pod not in stopped}
            failed = [*shown]
        if self._result:
            self._add(ResultEvent(kind="result", gen=0, rank=0, lines=self._result))
        if not failed and judged and not succeeded and all(pod.exit_code == 0 for pod in judged):
            where = first or judged[0]
            if is_unread:
                what = "the training has a result" if prints_result else "all ranks ended"
                self._outcome("failed", f"the log of {where.label} was not read to its end: nothing shows that {what}")
                return
            what = "the training printed no result" if prints_result else "mpirun reported the loss of a node"
            self.fail(where, f"{where.end}, but {what}: nothing shows that all ranks ended")
            return
        refused = next((pod for pod in judged if pod.exit_code == RequestError.exit_code), None)
        if failed and refused:
            error = self.words.last_error(refused)
            self._outcome("refused", f"{refused.label} {f'says {quoted(error)}' if error else 'refuses the request'}")
            return
        # Each rank of a training that misses its target ends with 1, and so does the pod that prints the result.
        missed = has_result and first is not None and first.exit_code == 1 and only_missed(shown)
        if not failed or missed:
            code = 1 if missed else max((pod.exit_code or 0 for pod in judged), default=0)
            how = "all pods have ended"
            if running := [pod for pod in judged if pod.exit_code is None]:
                how = f"rank 0 has a result, and nothing shows how {named_pods(running)} ended"
            self._outcome("ended", how, code=code)
            return
        is_only = (num_pods == 1 or under_mpi) and len(judged) == 1 and failed == judged
        worst = failed[0] if is_only else first_to_fail(shown, order or PodOrder())
        if worst is None:
            last = [f"{pod.name}: {line}" for pod in failed if (line := self.words.last_line(pod))]
            asked = [pod for pod in judged if pod.exit_code == INTERRUPTED and not pod.stop]
            self._outcome("failed", undecided(shown, asked), last[:LAST_LINES])
        else:
            self.fail(worst, worst.end or worst.stop or "has not ended")

    def close(self, job: Processes) -> None:
        """Complete the record: it has a first event, the pods that were left out, and an end of the controller."""
        self.release()
        self._hand_on_ends()
        self._name_nodes(before=math.inf, is_last=True)
        if self._interruption is not None:
            self._take(self._interruption)
            if self._held_outcome is not None:
                self.has_outcome = True
                self._take(self._held_outcome)
        if self.damaged:
            self.note(
                "error",
                f"the first pod has sent {self.damaged} messages that cannot be read (the first one: "
                f"{quoted(self._first_damaged)}); see whether the image has the same seatrial, and who can write to its"
                " host",
            )
        if not self.started:
            self._on_event(self._run)
        elif isinstance(job, Job):
            for node in self._nodes_at_fault(under_mpi=job.detail.under_mpi, ranks_per_node=job.nproc_per_node):
                cordon = job.detail.kubectl.command_line("cordon", node)
                self.note("info", f"to keep other work off {node}: {cordon}")
        for pod_and_reason in job.absent:
            self.note("warn", f"left out: {pod_and_reason}")
        if self.interrupted and not self.has_outcome and "plan" not in self._run:
            self._outcome("interrupted", "stopped before the ranks had ended")
        if self._source is not None:
            self._on_event(self._source.event(EndEvent(kind="end")))

    def _is_placed_by_mpi(self) -> bool:
        """Return whether the number of a pod is not that of its node, as MPI places the ranks."""
        return any(pod.is_launcher for pod in self._pods)

    def _nodes_at_fault(self, *, under_mpi: bool, ranks_per_node: int) -> list[str]:
        """Return the nodes of the cluster that the verdict blames, by the names that the cluster gives them.

        A person copies the command with such a name. The name that a host gives itself counts only under MPI, where
        each rank has an agent, and only if it is that of a pod's node, which no more agents claim than it has ranks.
        """
        conclusion = conclude(self._events)
        known = {entry.name: entry.hostname for entry in conclusion.trial.nodes}
        named = [known.get(node, "") for node in nodes_to_cordon(conclusion.findings)]
        doubted = self.ranks_elsewhere(ranks_per_node) if under_mpi else ()
        hosts = {*_nodes_of(self._pods).values()}
        return [node for node in dict.fromkeys(named) if node in hosts and node not in doubted]

    def _take(self, message: dict[str, Any]) -> None:
        self._events.append(message)
        if self.may_start_again and message.get("kind") in _OF_END:
            self._ends.append(message)
        else:
            self._on_event(message)

    def _hand_on_ends(self) -> None:
        """Hand on the events that were kept back, since no start follows."""
        ends, self._ends, self.may_start_again = self._ends, [], False
        for event in ends:
            self._on_event(event)

    def _outcome(
        self,
        how: Literal["ended", "failed", "refused", "interrupted"],
        text: str,
        last_lines: Sequence[str] = (),
        code: int = 0,
    ) -> None:
        self.has_outcome = True
        lines = list(last_lines)
        self._add(OutcomeEvent(kind="outcome", gen=0, restarts=0, how=how, text=text, last_lines=lines, code=code))

    def _add(self, event: Event) -> None:
        self._hand_on_ends()
        self._source = self._source or Source(self._run["run"], "controller")
        # The search for the nodes at fault needs all that the verdict knows.
        self._take(self._source.event(event))


def _nodes_of(pods: Iterable[PodStatus]) -> dict[int, str]:
    return {max(pod.number, 0): pod.node for pod in pods if pod.node and not pod.is_launcher}
