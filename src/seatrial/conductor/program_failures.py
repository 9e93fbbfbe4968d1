"""Which rank of a program failed first, and the sentence that says so. Pure."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from seatrial.conductor.cancellation import is_stop_signal
from seatrial.conductor.raised_errors import TRACEBACK, exception_name, raised
from seatrial.conductor.rank_status import Suspicion
from seatrial.protocol.connecting import FROM_OTHERS
from seatrial.protocol.fabric_errors import FABRIC_MARKS, gave_up, is_end_by_watchdog
from seatrial.protocol.own_errors import in_one_line, message_at, own_cause
from seatrial.util.text import quoted, signal_words

_TOGETHER_S = 0.25
"""Two exits within this time may have been observed in the wrong order."""
_MAX_TEXT_CHARS = 300
_TORCH_RAISES = re.compile(r"([\w.]+\.)?(RuntimeError|AcceleratorError|Dist\w*Error|Exception)")
"""Exceptions of torch and MPI when a peer is gone. A URLError is about something else, whatever it says."""
_SOCKET_RAISES = re.compile(r"Connection(Reset|Aborted)?Error|BrokenPipeError")
"""Exceptions of Python's own sockets. Others that follow from them are about a host on the internet."""
_MISUSE = ("enforce fail", "ncclinvalid", "duplicate gpu", "eaddrinuse")
"""Parts of messages of Gloo, NCCL and the store, in lower case, about a call that is wrong by itself."""
_TORCH_SOURCE = re.compile(r"\[[^\[\]\s]+\.(?:cc|cpp|h|hpp):\d+\] ")
"""The line of its source that torch writes before a message: ``[/__w/pytorch/.../tcp/pair.cc:537]``."""
_TORCH_GUESS = " This is typically caused by"
_LOST_STORE = re.compile(r"(?:[\w.]+\.)?Dist(?:Network|Store)Error$")
"""Exceptions of torch that say nothing but that a peer or the store in it is gone or silent."""
_ABORTED = re.compile(
    r"watchdog thread terminated with exception|(?:throwing an instance of '|^)gloo::|due to \S{1,40} watchdog hang",
    re.I,
)
"""What NCCL's watchdog and Gloo print before they abort their process, because of a peer or of a device that failed."""
_THREADS_LEFT = "terminate called without an active exception"
"""A Python that exits after a traceback may be aborted because a thread of Gloo still runs: it had failed before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The exit of one rank."""

    rank: int
    code: int
    """Exit code; negative: number of the signal."""
    expected: int | None = 0
    """The exit code of a good end: the one that a watched rank announced with its result, None without a result."""
    ours: bool
    """Its agent ended it."""
    at: float
    """Time at which the conductor received the event, in monotonic seconds."""
    oom: str = ""
    """A phrase: the kernel's out-of-memory killer ended it, and what was allowed. Empty: it did not."""
    phase: str = ""
    """The last phase of the rank."""
    last_lines: tuple[str, ...] = ()
    """The last lines of its output."""
    may_come_from_others: bool = False
    """Ranks of other hosts may have ended it, since it was connecting to them."""

    @property
    def failed(self) -> bool:
        """Whether the rank itself ended in a way that is no good end. An exit code of 0 alone proves nothing."""
        return not self.ours and self.code != self.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A node that the conductor lost."""

    node: int
    at: float
    """Time of the news, in monotonic seconds."""
    detail: str
    """How it was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason why a generation was ended."""

    suspicions: tuple[Suspicion, ...]
    text: str
    """The error as the rank reported it, or an empty text."""
    last_line: str = ""
    """The last line that it printed, where no traceback and nothing else says why it ended."""
    refused: bool = False
    """The request was wrong, so a restart does not help."""
    whole: bool = False
    """The text is the whole sentence."""

    def sentence(self, hosts: Mapping[int, str], names: Mapping[int, str]) -> str:
        """Return a sentence without its full stop.

        ``hosts``: rank -> " on HOST"; ``names``: node -> its hostname, or an empty text.
        """
        if self.whole:
            return self.text
        first = self.suspicions[0]
        if self.refused:
            where = hosts.get(first.rank or 0, "")
            return f"rank {first.rank}{where} says that the request is wrong: {quoted(self.text)}"
        if first.node is not None:
            lost = [suspicion.node for suspicion in self.suspicions if suspicion.node is not None]
            nodes = ", ".join(f"node {node}{f' ({names[node]})' if names.get(node) else ''}" for node in lost)
            return f"{nodes} {'was' if len(lost) == 1 else 'were'} lost: {first.detail}"
        ranks = ", ".join(f"rank {suspicion.rank}{hosts.get(suspicion.rank or 0, '')}" for suspicion in self.suspicions)
        phase = f" in {first.phase}" if first.phase else ""
        error = f": {short_error(self.text)}" if self.text else ""
        if self.last_line:
            error += f" without a traceback; its last line: {quoted(self.last_line, _MAX_TEXT_CHARS)}"
        if first.how == "frozen":
            return f"{ranks} made no progress for {first.waited_s:.0f} s{phase} ({first.detail}) while others waited"
        if first.may_come_from_others:
            return f"{ranks} {first.detail}{phase}{error}, while connecting to other hosts: {FROM_OTHERS}"
        if first.how == "error":
            return f"connection between ranks lost; {ranks} {first.detail}reported it first{phase}{error}"
        return f"{ranks} {first.detail}{phase}{error}"


def first_failure(
    exits: Mapping[int, Exit], errors: Mapping[int, tuple[str, str]], losses: Sequence[Loss] = ()
) -> Failure:
    """Return the first failure.

    ``errors``: rank -> cause and message, of the ranks that could still report an error. A rank that complains of the
    fabric is a witness: it is named only if no other rank failed and no node was lost. Nodes that were lost together
    are named together.
    """
    for rank, (cause, message) in sorted(errors.items()):
        if cause == "request":
            return Failure(suspicions=(_suspicion(rank, exits, "was refused"),), text=message, refused=True)
    others = _own_failures(exits, errors)
    earliest = min((ended.at for ended in others), default=math.inf)
    if losses and losses[0].at < earliest:
        together_lost = [loss for loss in losses if loss.at - losses[0].at <= _TOGETHER_S]
        return lost_nodes(together_lost)
    if others:
        together = [ended for ended in others if ended.at - earliest <= _TOGETHER_S]
        first = min(together, key=lambda ended: (not _killed(ended.code), ended.at))
        line, _ = _error(first)
        said = errors.get(first.rank, ("", ""))[1] or (line if has_raised(first) else "")
        text = "; ".join(filter(None, (said, first.oom)))
        suspicion = _suspicion(first.rank, exits, how_ended(first.code))
        return Failure(suspicions=(suspicion,), text=text, last_line="" if text else line)
    # Errors are in the order of their arrival.
    for rank, (cause, message) in errors.items():
        if cause != "fabric":
            return Failure(suspicions=(_suspicion(rank, exits, "failed and did not end"),), text=message)
    if crashed := [ended for ended in exits.values() if ended.failed and ended.may_come_from_others]:
        first = min(crashed, key=lambda ended: ended.at)
        suspicion = replace(_suspicion(first.rank, exits, how_ended(first.code)), may_come_from_others=True)
        return Failure(suspicions=(suspicion,), text=first.oom)
    rank = next(iter(errors))
    ended = exits.get(rank)
    detail = f"{how_ended(ended.code)} and " if ended is not None else ""
    suspicion = Suspicion(how="error", rank=rank, phase=ended.phase if ended is not None else "", detail=detail)
    return Failure(suspicions=(suspicion,), text=errors[rank][1])


def lost_nodes(losses: Sequence[Loss]) -> Failure:
    """Return the failure that names these nodes."""
    suspicions = (Suspicion(how="lost", node=loss.node, detail=loss.detail) for loss in losses)
    return Failure(suspicions=tuple(suspicions), text="")


def only_witnesses(exits: Mapping[int, Exit], errors: Mapping[int, tuple[str, str]]) -> bool:
    """Return whether others may have caused the failures of all ranks so far."""
    return not _own_failures(exits, errors) and all(cause == "fabric" for cause, _ in errors.values())


def only_stop_signals(exits: Mapping[int, Exit], errors: Mapping[int, tuple[str, str]]) -> bool:
    """Return whether all ranks that failed by themselves were ended by a signal that somebody sends to stop a job."""
    failures = _own_failures(exits, errors)
    return bool(failures) and all(is_stop_signal(ended.code) for ended in failures)


def _own_failures(exits: Mapping[int, Exit], errors: Mapping[int, tuple[str, str]]) -> list[Exit]:
    of_others = {rank for rank, (cause, _) in errors.items() if cause == "fabric"}
    of_others |= {rank for rank, ended in exits.items() if ended.may_come_from_others and rank not in errors}
    return [ended for rank, ended in exits.items() if ended.failed and rank not in of_others]


def _suspicion(rank: int, exits: Mapping[int, Exit], detail: str) -> Suspicion:
    return Suspicion(how="dead", rank=rank, phase=exits[rank].phase if rank in exits else "", detail=detail)


def _killed(code: int) -> bool:
    """Return whether a signal ended it that no peer's death leads to: NCCL's watchdog ends its process by SIGABRT."""
    return code < 0 and -code not in (signal.SIGABRT, signal.SIGTERM)


def how_ended(code: int) -> str:
    """Return how a rank ended, by its exit code: ``failed with exit code 1``."""
    if code == 0:
        return "ended with exit code 0 before it had told a result"
    if code > 0:
        return f"failed with exit code {code}"
    return f"was killed by {signal_words(-code)}"


def short_error(text: str) -> str:
    """Return an error without the file of torch that raised it, and without what torch guesses of the reason."""
    shown = _TORCH_SOURCE.sub("", text).partition(_TORCH_GUESS)[0].rstrip(". ")
    return shown if len(shown) <= _MAX_TEXT_CHARS else f"{shown[:_MAX_TEXT_CHARS].rpartition(' ')[0]} ..."


def fabric_error(ended: Exit) -> str:
    """Return the error of a script if it complains of the fabric, so that it is a witness at most; else nothing."""
    message, is_witness = _error(ended)
    return message if is_witness else ""


def says_why_aborted(line: str) -> bool:
    """Return whether NCCL's watchdog or Gloo says in this line why it aborted the process."""
    return _of_watchdog(line) or _ABORTED.search(line) is not None


def _error(ended: Exit) -> tuple[str, bool]:
    """Return the error of a program in one line, and whether it complains of the fabric.

    That is its exception, else its last line. A signal leaves none, unless a library said why it aborted.
    """
    lines = [line for line in ended.last_lines if line.strip()]
    chains = raised(lines)
    if ended.code == -signal.SIGABRT:
        # NCCL's watchdog ends its process so, and Gloo. What its own device did comes first in this case.
        aborts = [message_at(lines, number) for number, line in enumerate(lines) if says_why_aborted(line)]
        if aborts:
            message = next((abort for abort in aborts if own_cause(abort)), aborts[0])
            first, _, rest = message.partition("\n")
            return in_one_line(f"{first.rpartition('] ')[2]}\n{rest}"), _complains(message)
        if not (chains and lines[-1].startswith(_THREADS_LEFT)):
            return "", False
    elif ended.code < 0:
        return "", False
    if not chains:
        # A line without an exception may be a message of torch all the same.
        return (lines[-1].strip(), _complains(lines[-1])) if lines else ("", False)
    errors = [_error_of(chain) for chain in chains]
    # Of several ranks in one output, one that failed by itself explains the others.
    return next((error for error in errors if not error[1]), errors[-1])


def _error_of(chain: Sequence[str]) -> tuple[str, bool]:
    """Return the error that counts among exceptions that followed from one another, and whether it complains."""
    if own := next((message for message in chain if _is_own(message)), ""):
        return in_one_line(own), False
    *before, last = chain
    complaints = [message for message in before if _complains(message) and not _SOCKET_RAISES.match(message)]
    if _complains(last):
        complaints.append(last)
    return in_one_line(complaints[-1] if complaints else last), bool(complaints)


def _is_own(message: str) -> bool:
    words = message.lower()
    return bool(own_cause(message)) or any(mark in words for mark in _MISUSE)


def _complains(message: str) -> bool:
    """Return whether a message of torch is about the connections to other ranks."""
    exception, line = exception_name(message), message.partition("\n")[0]
    if exception and not (_TORCH_RAISES.fullmatch(exception) or _SOCKET_RAISES.fullmatch(exception)):
        return False
    if _is_own(message):
        return False
    if gave_up(line) or is_end_by_watchdog(line) or _LOST_STORE.match(exception):
        return True
    return any(mark in line.lower() for mark in FABRIC_MARKS)


def has_raised(ended: Exit) -> bool:
    """Return whether its last lines are those of an error, and not only what it happened to print last."""
    return ended.code < 0 or bool(raised(ended.last_lines)) or any(TRACEBACK in line for line in ended.last_lines)


def _of_watchdog(line: str) -> bool:
    return "rank" in line.lower() and "timeout" in line and (gave_up(line) or is_end_by_watchdog(line))
