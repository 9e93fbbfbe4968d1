"""Which rank of a program failed first, and in which words it is told. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from seatrial.conductor.watch import Seen
from seatrial.verdict.complaints import FABRIC

__all__ = ["Exit", "Failure", "complaint", "first_failure", "only_witnesses"]

_TOGETHER_S = 0.25
"""Two ends so close to one another may have been met in the wrong order."""
_LINE = 300
_RAISED = re.compile(r"(?:\[rank\d+\]: ?)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?::|$).*)")
"""The line of a traceback that says what was raised; torch puts the rank before it."""
_THREADS_LEFT = "terminate called without an active exception"
"""A Python that ends after a traceback may be aborted, because a thread of Gloo still runs: it had failed before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The end of one rank. ``at``: when the conductor heard of it; ``ours``: after we asked for it."""

    rank: int
    code: int
    ours: bool
    at: float
    phase: str = ""
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a generation was ended. ``text`` is what the rank itself said of it, where it said something."""

    seen: tuple[Seen, ...]
    text: str
    refused: bool = False
    """The request was wrong, which a restart does not mend."""

    def words(self, where: Mapping[int, str], hosts: Mapping[int, str]) -> str:
        """A sentence without its full stop. ``where``: " on HOST" of a rank; ``hosts``: name of a node, or nothing."""
        if self.refused:
            return self.text
        first = self.seen[0]
        if first.node is not None:
            name = hosts.get(first.node) or ""
            nodes = ", ".join(f"node {seen.node}" for seen in self.seen)
            return f"{nodes}{f' ({name})' if name else ''} was lost: {first.detail}"
        ranks = ", ".join(f"rank {seen.rank}{where.get(seen.rank or 0, '')}" for seen in self.seen)
        phase = f" in {first.phase}" if first.phase else ""
        told = f": {self.text[:_LINE]}" if self.text else ""
        if first.how == "frozen":
            return f"{ranks} did not move for {first.waited_s:.0f} s{phase} ({first.detail}) while others waited"
        if first.how == "error":
            return f"the ranks lost one another; {ranks} {first.detail}said so first{phase}{told}"
        return f"{ranks} {first.detail}{phase}{told}"


def first_failure(
    exits: Mapping[int, Exit], errors: Mapping[int, tuple[str, str]], results: Mapping[int, int]
) -> Failure:
    """Who failed first, of those that failed.

    ``errors``: cause and message by rank, of those that could still tell; ``results``: the exit code that a rank
    announced together with its result, which is no failure. A rank that complains of the fabric is a witness: it is
    named only where there is nobody else.
    """
    for rank, (cause, message) in sorted(errors.items()):
        if cause == "request":
            return Failure(seen=(_seen(rank, exits, "was refused"),), text=message, refused=True)
    others = _own_failures(exits, errors, results)
    if others:
        earliest = min(ended.at for ended in others)
        together = [ended for ended in others if ended.at - earliest <= _TOGETHER_S]
        first = min(together, key=lambda ended: (not _killed(ended.code), ended.at))
        said = errors.get(first.rank, ("", ""))[1] or _last_word(first)
        return Failure(seen=(_seen(first.rank, exits, _how(first.code)),), text=said)
    # Errors come in the order in which they were told.
    for rank, (cause, message) in errors.items():
        if cause != "fabric":
            return Failure(seen=(_seen(rank, exits, "failed and did not end"),), text=message)
    rank = next(iter(errors))
    ended = exits.get(rank)
    detail = f"{_how(ended.code)} and " if ended is not None else ""
    seen = Seen(how="error", rank=rank, phase=ended.phase if ended is not None else "", detail=detail)
    return Failure(seen=(seen,), text=errors[rank][1])


def only_witnesses(
    exits: Mapping[int, Exit], errors: Mapping[int, tuple[str, str]], results: Mapping[int, int]
) -> bool:
    """Whether all that failed so far complain of others: of the fabric."""
    return not _own_failures(exits, errors, results) and all(cause == "fabric" for cause, _ in errors.values())


def _own_failures(
    exits: Mapping[int, Exit], errors: Mapping[int, tuple[str, str]], results: Mapping[int, int]
) -> list[Exit]:
    return [
        ended
        for rank, ended in exits.items()
        if ended.code != 0
        and not ended.ours
        and results.get(rank) != ended.code
        and errors.get(rank, ("", ""))[0] != "fabric"
    ]


def _seen(rank: int, exits: Mapping[int, Exit], detail: str) -> Seen:
    return Seen(how="dead", rank=rank, phase=exits[rank].phase if rank in exits else "", detail=detail)


def _killed(code: int) -> bool:
    """By a signal that a peer's death does not lead to: NCCL's own watchdog ends its process by SIGABRT."""
    return code < 0 and -code not in (signal.SIGABRT, signal.SIGTERM)


def _how(code: int) -> str:
    if code >= 0:
        return f"failed with exit code {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"was killed by signal {-code}{name}"


def complaint(ended: Exit) -> str:
    """What a script that failed said of the others, so that it is a witness at most; else nothing."""
    word = _last_word(ended)
    return word if any(mark in word.lower() for mark in FABRIC) else ""


def _last_word(ended: Exit) -> str:
    """Why a program ended, as it said: what it raised, else its last line. A signal leaves no such line."""
    lines = [line for line in ended.last_lines if line.strip()]
    if ended.code == -signal.SIGABRT and lines and lines[-1].startswith(_THREADS_LEFT):
        lines = [line for line in lines if _RAISED.match(line)]
    elif ended.code < 0:
        return ""
    if not lines:
        return ""
    # What torch warns of at the very end is no reason.
    raised = [match[1] for line in lines if (match := _RAISED.match(line))]
    return (raised or lines)[-1].strip()
