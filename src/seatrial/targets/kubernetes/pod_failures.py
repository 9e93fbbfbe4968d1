"""Which pod of a training failed first, by what its ranks print and what the cluster says of its end. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from seatrial.conductor.program_failures import Exit, fabric_error, has_raised
from seatrial.protocol.connecting import FROM_OTHERS, TRAINING_MEETS, may_come_from_others
from seatrial.protocol.fabric_errors import says_why_aborted
from seatrial.protocol.own_errors import message_at
from seatrial.targets.kubernetes.pod_order import PodOrder
from seatrial.targets.kubernetes.pods import PodStatus
from seatrial.util.text import all_named

_SIGNALS = "|".join(sorted({*signal.Signals.__members__, "SIGSTKFLT", "SIGPWR", "SIGRTMIN", "SIGRTMAX"}, reverse=True))
"""Names of the signals of Linux, also where macOS reads the log; of two the longer one comes first."""
_SAID = re.compile(
    r"seatrial: rank (?P<rank>\d{1,9})(?: of \d{1,9})? (?:(?P<how>lost its peers|failed) in "
    rf"|was killed by (?P<signal>{_SIGNALS}|signal \d+)"
    r"|ended with exit code (?P<code>\d{1,9}))"
)
"""What a rank of a training says when it fails (``worker/train_rank.py``), and the parent of the ranks of a pod about
one that says nothing (``worker/train_spawn.py``)."""
MET = re.compile(rb"^seatrial: rank (\d{1,9}) of \d{1,9} on ", re.MULTILINE)
"""The line of a rank of a training that has met the others (``worker/train_report.py``)."""
_OF_RANK = re.compile(r"\brank ?(\d{1,9})\]", re.IGNORECASE)
"""The mark of a rank before a line of torch: ``[rank0]:[E ProcessGroupNCCL.cpp:2068] [PG ID 0 Rank 0] ...``."""
INTERRUPTED = 130
"""Exit code of a command that was asked to end."""
_LAST_LINES = 20
_MOST_LINE_CHARS = 4_000
"""Characters of a line that are judged; torch and NCCL print shorter ones."""


class Shown(IntEnum):
    """What a pod shows of its failure. The pod with the lowest value explains those of the others."""

    KILLED = 0
    """A signal that no peer's end leads to has ended the pod or one of its ranks, or the limit of its memory has."""
    FAILED = 1
    """It failed by itself."""
    UNKNOWN = 2
    """It has not ended, or its log has not been read to the end."""
    CRASHED = 3
    """It crashed, or ran out of memory, before its ranks had met those of the other pods, which may have caused it."""
    ABORTED = 4
    """Several of its ranks aborted, some of them because of a connection, and nothing shows which ones."""
    LOST_PEERS = 5
    """All ranks that failed complain of the connections to others."""
    STOPPED = 6
    """It was deleted, as controllers do when another pod has failed."""
    MISSED = 7
    """It ended with 1, and no rank of it says that it failed: all ranks end so when the target is missed, a number is
    NaN or the digests differ, also where the last exchange fails for rank 0, which alone would print that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLog:
    """What the log of a pod that failed tells of its end."""

    lines: Sequence[str]
    """The last ones."""
    met: Collection[int] | None
    """The ranks of the pod that had met the others before; None: there are no other pods."""
    is_read: bool
    """Whether it was read to its end."""
    has_beginning: bool
    """Whether it was read from its beginning, in which ranks say that they have met."""


def shown_by(
    pods: Collection[PodStatus], log_of: Callable[[PodStatus], PodLog], *, has_result: bool
) -> dict[PodStatus, Shown]:
    """Return what each pod that failed shows.

    Args:
        pods: Those that failed.
        log_of: Returns the log of each of them. No more than that of one is held at once.
        has_result: Whether rank 0 has printed the result of the training, which it does after the end of all work.
    """
    # Operators delete pods when another one has failed, or all of them, those that ended by themselves too.
    some_stay = not all(pod.deleted for pod in pods)
    return {
        pod: _shown(pod, log_of(pod), was_stopped=bool(pod.stop) or (pod.deleted and some_stay), has_result=has_result)
        for pod in pods
    }


def _shown(
    pod: PodStatus,
    log: PodLog,
    *,
    was_stopped: bool,
    has_result: bool,
) -> Shown:
    lines, met, is_read = [line[:_MOST_LINE_CHARS] for line in log.lines], log.met, log.is_read
    of_ranks = _by_rank(lines, met, is_oom=pod.out_of_memory)
    worst = min(of_ranks.values(), default=Shown.UNKNOWN)
    if was_stopped:
        return worst if worst <= Shown.FAILED else Shown.STOPPED
    if pod.out_of_memory and (worst == Shown.CRASHED or (met is not None and not met and worst > Shown.FAILED)):
        # A kernel that ends all processes of the pod leaves none that could say it.
        return Shown.CRASHED if is_read else Shown.UNKNOWN
    if pod.killed or pod.out_of_memory:
        return Shown.KILLED
    if worst <= Shown.FAILED or pod.never_ran:
        return min(worst, Shown.FAILED)
    if pod.state != "ended" or not is_read:
        return Shown.UNKNOWN
    if of_ranks:
        return worst
    last = _exit(1, lines[-_LAST_LINES:])
    may_have_worked = met is None or bool(met) or not log.has_beginning
    if pod.exit_code == 1 and (has_result or (may_have_worked and not has_raised(last))):
        return Shown.MISSED
    return _shown_by_exit(last)


def first_to_fail(shown: Mapping[PodStatus, Shown], order: PodOrder) -> PodStatus | None:
    """Return the pod whose failure explains those of the others; None where nothing shows which one it is.

    That a pod lost its peers says nothing about itself, whichever ended first; nor does it that one has not ended,
    since it may wait for any other, also for one that has ended well.
    """
    worst = min(shown.values())
    pods = [pod for pod, what in shown.items() if what == worst]
    if worst > Shown.FAILED:
        return None
    return pods[0] if len(pods) == 1 else order.first_to_end(pods)


def only_missed(shown: Mapping[PodStatus, Shown]) -> bool:
    """Return whether no pod contradicts that the training came to its end, and missed what it had to reach."""
    return all(what in (Shown.UNKNOWN, Shown.STOPPED, Shown.MISSED) for what in shown.values())


def undecided(shown: Mapping[PodStatus, Shown], asked: Sequence[PodStatus]) -> str:
    """Return the sentence about pods of which nothing shows which one failed first.

    ``asked``: those that ended as if somebody had asked them to, which nobody has.
    """
    by_shown = {what: [pod for pod, said in shown.items() if said == what] for what in Shown}
    failed = by_shown[Shown.KILLED] or by_shown[Shown.FAILED]
    if failed:
        return f"{named_pods(failed)} failed, and nothing shows which of them failed first"
    unknown = by_shown[Shown.UNKNOWN]
    parts = []
    if lost := by_shown[Shown.LOST_PEERS]:
        where = "between" if len(lost) > 1 else "to others of"
        parts.append(f"the connection {where} {named_pods(lost)} was lost")
    if crashed := by_shown[Shown.CRASHED]:
        parts.append(
            f"{named_pods(crashed)} crashed or ran out of memory while connecting to the ranks of other pods:"
            f" {FROM_OTHERS}"
        )
    if aborted := by_shown[Shown.ABORTED]:
        parts.append(f"nothing shows why the ranks of {named_pods(aborted)} aborted")
    if unread := [pod for pod in unknown if pod.state == "ended"]:
        parts.append(f"the log of {named_pods(unread)} was not read to its end")
    if running := [pod for pod in unknown if pod.state != "ended"]:
        parts.append(f"{named_pods(running)} {'has' if len(running) == 1 else 'have'} not ended")
        if asked:
            parts.append(f"{named_pods(asked)} ended with exit code {INTERRUPTED}, as if somebody had asked for it")
    if (missed := by_shown[Shown.MISSED]) and not parts:
        parts.append(f"{named_pods(missed)} ended with exit code 1, and no rank there says that it failed")
    if not parts:
        stopped = by_shown[Shown.STOPPED]
        parts.append(f"{named_pods(stopped)} {'was' if len(stopped) == 1 else 'were'} stopped")
    return "; ".join([*parts, "nothing shows which node is at fault"])


def named_pods(pods: Sequence[PodStatus]) -> str:
    """Return ``pods t-0 on node a and t-1 on node b``; of many the first eight and how many more."""
    return all_named("pod", [pod.label.removeprefix("pod ") for pod in pods])


def _by_rank(lines: Sequence[str], met: Collection[int] | None, *, is_oom: bool) -> dict[int, Shown]:
    """Return what each rank that failed shows, by the first line that says so: its end follows from what it said.

    ``met``: ranks that had met the others before; None: all. ``is_oom``: memory of the pod ran out.
    """
    shown: dict[int, Shown] = {}
    aborted: set[int] = set()
    codes: dict[int, int] = {}
    for line in lines:
        said = _SAID.match(line)
        if said is None or (rank := int(said["rank"])) in shown or rank in aborted:
            continue
        if said["how"]:
            # A rank knows best: it has read its whole error.
            shown[rank] = Shown.FAILED if said["how"] == "failed" else Shown.LOST_PEERS
        elif said["signal"] == signal.SIGABRT.name:
            aborted.add(rank)
        else:
            is_kill = said["signal"] not in (None, signal.SIGTERM.name)
            shown[rank] = Shown.KILLED if is_kill else Shown.FAILED
        if said["signal"]:
            codes[rank] = -getattr(signal.Signals, said["signal"], 0)
    if aborted:
        shown |= _by_aborted_rank(aborted, lines)
    early = [rank for rank in codes if shown[rank] <= Shown.FAILED and met is not None and rank not in met]
    # A log has room for thousands of ranks, and its lines are the same for each.
    from_others = {
        code: may_come_from_others(TRAINING_MEETS, code, lines, is_oom=is_oom and -code == signal.SIGKILL)
        for code in {codes[rank] for rank in early}
    }
    early = [rank for rank in early if from_others[codes[rank]]]
    return shown | dict.fromkeys(early, Shown.CRASHED)


def _by_aborted_rank(aborted: Collection[int], lines: Sequence[str]) -> dict[int, Shown]:
    """Return what each rank shows that was aborted. Torch marks most lines with the rank; those of Gloo have no mark.

    A line may be marked with all of them, so each message is judged once. A failure of the rank itself counts more than
    what others have told it.
    """
    unmarked = 0
    said: dict[int, Shown] = {}
    for number, line in enumerate(lines):
        if not says_why_aborted(line):
            continue
        marks = {int(found) for found in _OF_RANK.findall(line)}
        message = message_at(lines, number).splitlines()
        shown = _shown_by_exit(_exit(-signal.SIGABRT, message))
        for rank in marks.intersection(aborted):
            said[rank] = min(shown, said.get(rank, shown))
        unmarked += not marks and shown != Shown.FAILED
    silent = len(aborted) - len(said)
    # Each rank that Gloo aborts prints a line, and two of them may write into the same one.
    of_silent = Shown.ABORTED if unmarked else Shown.FAILED
    if unmarked >= silent:
        of_silent = Shown.LOST_PEERS
    return {rank: said.get(rank, of_silent) for rank in aborted}


def _exit(code: int, lines: Sequence[str]) -> Exit:
    return Exit(rank=0, code=code, ours=False, at=0.0, last_lines=tuple(lines))


def _shown_by_exit(ended: Exit) -> Shown:
    return Shown.LOST_PEERS if fabric_error(ended) else Shown.FAILED
