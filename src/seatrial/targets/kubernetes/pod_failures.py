"""Which pod of a training failed first, by what its ranks print and what the cluster says of its end. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum

from seatrial.conductor.program_failures import Exit, fabric_error
from seatrial.targets.kubernetes.pod_order import PodOrder
from seatrial.targets.kubernetes.pods import PodStatus
from seatrial.util.text import all_named

_SAID = re.compile(
    r"seatrial: rank (?P<rank>\d{1,9})(?: of \d{1,9})? (?:(?P<how>lost its peers|failed) in (?P<error>.*)"
    r"|was killed by (?P<signal>\S{1,30})|ended with exit code (?P<code>\d{1,9}))"
)
"""What a rank of a training says when it fails (``worker/train_rank.py``), and the parent of the ranks of a pod about
one that says nothing (``worker/train_spawn.py``)."""
_OF_RANK = re.compile(r"\brank ?(\d{1,9})\]", re.IGNORECASE)
"""The mark of a rank before a line of torch: ``[rank0]:[E ProcessGroupNCCL.cpp:2068] [PG ID 0 Rank 0] ...``."""
_LAST_LINES = 20


class Shown(IntEnum):
    """What a pod shows of its failure. The pod with the lowest value explains those of the others."""

    KILLED = 0
    """A signal that no peer's end leads to has ended the pod or one of its ranks, or the limit of its memory has."""
    FAILED = 1
    """It failed by itself."""
    UNKNOWN = 2
    """It has not ended, or its log has not been read to the end."""
    LOST_PEERS = 3
    """All ranks that failed complain of the connections to others."""
    STOPPED = 4
    """It was deleted, as controllers do when another pod has failed."""


def shown_by(lines: Mapping[PodStatus, Sequence[str]], unread: Collection[str]) -> dict[PodStatus, Shown]:
    """Return what each pod that failed shows.

    Args:
        lines: What each of them has printed.
        unread: Names of pods that may have printed more.
    """
    # Operators delete pods when another one has failed, or all of them, those that ended by themselves too.
    some_stay = not all(pod.deleted for pod in lines)
    shown = {}
    for pod, printed in lines.items():
        was_stopped = bool(pod.stop) or (pod.deleted and some_stay)
        shown[pod] = _shown(pod, printed, is_read=pod.name not in unread, was_stopped=was_stopped)
    return shown


def _shown(pod: PodStatus, lines: Sequence[str], *, is_read: bool, was_stopped: bool) -> Shown:
    of_ranks = _by_rank(lines)
    worst = min(of_ranks.values(), default=Shown.UNKNOWN)
    if was_stopped:
        return worst if worst <= Shown.FAILED else Shown.STOPPED
    if pod.killed or pod.out_of_memory:
        return Shown.KILLED
    if worst <= Shown.FAILED or pod.never_ran:
        return min(worst, Shown.FAILED)
    if pod.state != "ended" or not is_read:
        return Shown.UNKNOWN
    last = Exit(rank=0, code=1, ours=False, at=0.0, last_lines=tuple(lines[-_LAST_LINES:]))
    return Shown.LOST_PEERS if of_ranks or fabric_error(last) else Shown.FAILED


def says_nothing(lines: Sequence[str]) -> bool:
    """Return whether no rank of a pod says that it failed."""
    return not _by_rank(lines)


def first_to_fail(shown: Mapping[PodStatus, Shown], order: PodOrder) -> PodStatus | None:
    """Return the pod whose failure explains those of the others; None where nothing shows which one it is.

    That a pod lost its peers says nothing about itself, whichever ended first.
    """
    worst = min(shown.values())
    pods = [pod for pod, what in shown.items() if what == worst]
    if worst == Shown.LOST_PEERS or (worst > Shown.FAILED and len(shown) > 1):
        return None
    return pods[0] if len(pods) == 1 else order.first_to_end(pods)


def undecided(shown: Mapping[PodStatus, Shown]) -> str:
    """Return the sentence about pods of which nothing shows which one failed first."""
    by_shown = {what: [pod for pod, said in shown.items() if said == what] for what in Shown}
    failed = by_shown[Shown.KILLED] or by_shown[Shown.FAILED]
    if failed:
        return f"{_named(failed)} failed, and nothing shows which of them failed first"
    lost, unknown = by_shown[Shown.LOST_PEERS], by_shown[Shown.UNKNOWN]
    unread = [pod for pod in unknown if pod.state == "ended"]
    running = [pod for pod in unknown if pod.state != "ended"]
    parts = []
    if lost:
        where = "between" if len(lost) > 1 else "to others of"
        parts.append(f"the connection {where} {_named(lost)} was lost")
    if unread:
        parts.append(f"the log of {_named(unread)} was not read to its end")
    if running:
        parts.append(f"{_named(running)} {'has' if len(running) == 1 else 'have'} not ended")
    if not parts:
        parts.append(f"{_named(by_shown[Shown.STOPPED])} were stopped")
    return "; ".join([*parts, "nothing shows which node is at fault"])


def _named(pods: Sequence[PodStatus]) -> str:
    return all_named("pod", [pod.label.removeprefix("pod ") for pod in pods])


def _by_rank(lines: Sequence[str]) -> dict[int, Shown]:
    """Return what each rank that failed shows, by the first line that says so: its end follows from what it said."""
    shown: dict[int, Shown] = {}
    aborted: list[int] = []
    for line in lines:
        said = _SAID.search(line)
        if said is None or (rank := int(said["rank"])) in shown or rank in aborted:
            continue
        if said["how"]:
            message = said["error"].partition(": ")[2]
            # NCCL passes on what the own device does. Else a rank knows best whether it lost its peers.
            is_sure = said["how"] != "failed" and not message.startswith("DistBackendError: ")
            shown[rank] = Shown.LOST_PEERS if is_sure else _of_exit(1, [message])
        elif said["signal"] == signal.SIGABRT.name:
            aborted.append(rank)
        else:
            is_kill = said["signal"] not in (None, signal.SIGTERM.name)
            shown[rank] = Shown.KILLED if is_kill else Shown.FAILED
    for rank in aborted:
        # Torch marks most lines with the rank; those of the C++ library have no mark.
        marks = [{int(found) for found in _OF_RANK.findall(line)} for line in lines]
        own = [line for line, of in zip(lines, marks, strict=True) if rank in of or (not of and len(aborted) == 1)]
        shown[rank] = _of_exit(-signal.SIGABRT, own)
    return shown


def _of_exit(code: int, lines: Sequence[str]) -> Shown:
    ended = Exit(rank=0, code=code, ours=False, at=0.0, last_lines=tuple(lines))
    return Shown.LOST_PEERS if fabric_error(ended) else Shown.FAILED
