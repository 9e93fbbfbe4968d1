"""Which rank of a program failed first, and the sentence that says so. Pure."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from seatrial.conductor.cancellation import is_stop_signal
from seatrial.conductor.raised_errors import Chain, error_passed_on, raised
from seatrial.conductor.rank_status import Suspicion
from seatrial.protocol.complaints import complains, is_of_socket, is_of_worker, is_own
from seatrial.protocol.connecting import CRASHES, FROM_OTHERS, is_before_meeting
from seatrial.protocol.exception_lines import (
    MOST_LATER,
    QUIET,
    ROOT_CAUSE,
    TRACEBACK,
    rank_of,
    root_cause,
    split_mark,
)
from seatrial.protocol.fabric_errors import gave_up, ranks_passed_on, says_lost, says_why_aborted
from seatrial.protocol.launchers import may_have_ended
from seatrial.protocol.own_errors import in_one_line, is_of_device, message_at, own_cause
from seatrial.protocol.timeouts import CONDUCTOR_SILENT_S
from seatrial.util.text import all_named, as_name, named_ranks, quoted, signal_words

_TOGETHER_S = 0.25
"""Two exits within this time may have been observed in the wrong order."""
_MAX_TEXT_CHARS = 300
_MOST_NAMED = 8
"""Nodes that a sentence names."""
_TORCH_SOURCE = re.compile(r"\[[^\[\]\s]+\.(?:cc|cpp|h|hpp):\d+\] ")
"""The line of its source that torch writes before a message: ``[/__w/pytorch/.../tcp/pair.cc:537]``."""
_TORCH_GUESS = " This is typically caused by"
_GROUP = re.compile(r"(?:[\w.]+\.)?(?:Base)?ExceptionGroup\b")
"""An exception that only holds others."""
_ABORTED = (-signal.SIGABRT, 128 + signal.SIGABRT, 256 - signal.SIGABRT)
"""Exit codes of a process that was aborted, of a shell above it, and of a Python that hands on its exit code."""
_CHILD_ENDED = re.compile(r"\b(?:CalledProcessError|ProcessExitedException|ChildProcessError|ChildFailedError)\b")
"""Exceptions that say nothing but how a child of the process ended."""
_BY_ABORT = re.compile(r"\bSIGABRT\b|\bsignal 6\b|(?:status|code)\W{0,8}(?:-6|134|250)\b", re.I)
_EXCEPTION = "terminated with exception: "
"""Words of the watchdog before the exception that ended it."""
_LEFT_ALONE = (
    "this controller sent nothing to the agents for %.0f s, and agents end their ranks after %.0f s without a word from"
    " it; see what kept it from its work (its host was asleep or out of memory, or a disk or a terminal did not answer)"
)
_NOISE = re.compile(
    r"(?:\[[A-Za-z_]{1,20}\d{1,9}\]:)* ?\[[WI]\d{0,8}[ \]]|.{1,300} NCCL INFO |wandb: |" + re.escape(QUIET)
)
"""Before the lines of torch, NCCL and of what records a run that tell no error."""
_THROWN = re.compile(r"\s{0,20}what\(\):\s{0,20}")
"""Before the message of an exception in C++ that ended the process."""
_RANK_WORDS = re.compile(r"\bRank (\d{1,9})\]")
_MOST_MESSAGE_LINES = 32
"""Lines after the first one that a message of a script may have."""
_AT_ITS_END = re.compile(
    r"^terminate called without an active exception|^Fatal Python error: .*at interpreter shutdown"
    r"|^Python runtime state: finalizing"
)
"""Words of a crash of a Python that was ending: a thread of Gloo still ran, or held a lock."""
_COLOR = re.compile(r"\x1b\[[\d;]{0,20}m")
"""Python and rich color their tracebacks where somebody asks for that, and then a terminal need not be there."""
_MAY_CRASH = frozenset((*CRASHES, signal.SIGABRT, signal.SIGPIPE, signal.SIGTRAP))
"""Signals that end a process by itself: where it ends after an exception its threads still run, and its libraries close
connections to peers that are gone."""
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)


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
    unheard_s: float = 0.0
    """For how long its agent had heard nothing from this process, which may be why it ended."""
    is_silent: bool = False
    """Its agent had sent nothing for long, so that no launcher need have ended it."""


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
    not_lost: tuple[int, ...] | None = None
    """The launcher may have ended the nodes that were lost, with one of them or with one of these."""

    @property
    def is_of_nodes(self) -> bool:
        """Whether it says that nodes were lost."""
        return bool(self.suspicions) and self.suspicions[0].node is not None

    @property
    def rank(self) -> int | None:
        """The first rank that it names."""
        return self.suspicions[0].rank if self.suspicions else None

    def sentence(self, hosts: Mapping[int, str], names: Mapping[int, str]) -> str:
        """Return a sentence without its full stop.

        ``hosts``: rank -> " on HOST"; ``names``: node -> its hostname, as far as it is known.
        """
        if self.whole:
            return self.text
        first = self.suspicions[0]
        if self.refused:
            where = hosts.get(first.rank or 0, "")
            return f"rank {first.rank}{where} says that the request is wrong: {quoted(self.text)}"
        if first.node is not None:
            lost = [suspicion.node for suspicion in self.suspicions if suspicion.node is not None]
            if self.not_lost is not None:
                return _by_launcher(lost, self.not_lost, first.detail, names)
            nodes = ", ".join(_named(node, names) for node in lost)
            return f"{nodes} {'was' if len(lost) == 1 else 'were'} lost: {first.detail}"
        ranks = ", ".join(f"rank {suspicion.rank}{hosts.get(suspicion.rank or 0, '')}" for suspicion in self.suspicions)
        phase = f" in {as_name(first.phase)}" if first.phase else ""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptError:
    """The error of a program, as its output shows it."""

    text: str
    """One line; empty where it says nothing."""
    is_witness: bool = False
    """It complains of others, so that its rank is a witness at most."""
    before: str = ""
    """The exception of the rank itself that came before its complaint. It may have handled that and gone on."""
    of_ranks: tuple[int, ...] = ()
    """The ranks whose error torch has passed on to this one, by their numbers in the group that the script gave to
    torch: they are those of the world where all ranks up to them are in the group."""


def _named(node: int, names: Mapping[int, str]) -> str:
    return f"node {node}{f' ({names[node]})' if names.get(node) else ''}"


def _by_launcher(lost: Sequence[int], not_lost: Sequence[int], detail: str, names: Mapping[int, str]) -> str:
    left = ", ".join(_named(node, names) for node in not_lost[:_MOST_NAMED])
    left += f" and {len(not_lost) - _MOST_NAMED} more" if len(not_lost) > _MOST_NAMED else ""
    others = f"; {left} {'was' if len(not_lost) == 1 else 'were'} not" if left else ""
    return (
        f"{len(lost)} of {len(lost) + len(not_lost)} nodes were lost, {_named(lost[0], names)} first: {detail}{others};"
        " the launcher may have ended them, after one of them or of the others: see its output"
    )


def first_failure(
    exits: Mapping[int, Exit],
    errors: Mapping[int, tuple[str, str]],
    losses: list[Loss],
    of_losses: Callable[[list[Loss]], Failure],
) -> Failure:
    """Return the first failure.

    ``errors``: rank -> cause and message, of the ranks that could still report an error. A rank that complains of the
    fabric is a witness: it is named only if no other rank failed and no node was lost. Nodes that were lost together
    are named together. ``of_losses``: ``lost_nodes`` for this run.
    """
    for rank, (cause, message) in sorted(errors.items()):
        if cause == "request":
            return Failure(suspicions=(_suspicion(rank, exits, "was refused"),), text=message, refused=True)
    others = _own_failures(exits, errors)
    earliest = min((ended.at for ended in others), default=math.inf)
    if losses and losses[0].at < earliest:
        return of_losses(losses)
    if others:
        together = [ended for ended in others if ended.at - earliest <= _TOGETHER_S]
        first = min(together, key=lambda ended: (not (ended.oom or _no_peer_causes(ended.code)), ended.at))
        line = script_error(first).text
        cause, said = errors.get(first.rank, ("fabric", ""))
        if cause == "fabric" and has_raised(first):
            said = line or said
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
    before = only_one_with_exception(exits, errors)
    rank = before.rank if before is not None else next(iter(errors))
    ended = exits.get(rank)
    detail = f"{how_ended(ended.code)} and " if ended is not None else ""
    suspicion = Suspicion(how="error", rank=rank, phase=ended.phase if ended is not None else "", detail=detail)
    return Failure(suspicions=(suspicion,), text=errors[rank][1])


def only_one_with_exception(exits: Mapping[int, Exit], errors: Collection[int]) -> Exit | None:
    """Return the one rank that had an exception before it complained of others; None where several had, or none.

    Where all ranks only complain, its exception comes first in the text, as nobody else explains what followed.
    """
    found = [exits[rank] for rank in errors if rank in exits and script_error(exits[rank]).before]
    return found[0] if len(found) == 1 else None


def lost_nodes(losses: Sequence[Loss], hosts: Mapping[int, str], *, ends_together: bool | None) -> Failure:
    """Return the failure that names the nodes lost first together, but for those that this process left alone.

    Args:
        losses: What was lost, in the order of the news; at least one.
        hosts: Node -> its host, of all nodes.
        ends_together: As of ``Config``. The nodes that a launcher may have ended are no culprits.
    """
    suspicions = [
        Suspicion(how="lost", node=loss.node, detail=loss.detail)
        for loss in losses
        if not loss.unheard_s and loss.at - losses[0].at <= _TOGETHER_S
    ]
    if not suspicions:
        text = _LEFT_ALONE % (max(loss.unheard_s for loss in losses), CONDUCTOR_SILENT_S)
        return Failure(suspicions=(), text=text, whole=True)
    closed = {loss.node: loss for loss in losses if not (loss.unheard_s or loss.is_silent)}
    if ends_together is not None and may_have_ended(closed, hosts, ends_together=ends_together):
        suspicions = [Suspicion(how="lost", node=loss.node, detail=loss.detail) for loss in closed.values()]
        return Failure(suspicions=tuple(suspicions), text="", not_lost=tuple(sorted(hosts.keys() - closed)))
    return Failure(suspicions=tuple(suspicions), text="")


def late(phases: Mapping[int, str], detail: str) -> Failure:
    """Return the failure that names these ranks as late. ``phases``: rank -> its phase."""
    suspicions = (Suspicion(how="late", rank=rank, phase=phases[rank], detail=detail) for rank in sorted(phases))
    return Failure(suspicions=tuple(suspicions), text="")


def not_ready(phases: Mapping[int, str], ready: Collection[int], allowed_s: float) -> Failure:
    """Return the failure of a training whose ranks are not all ready in time: those that did not come to the meeting.

    All others wait for a rank that stays away, and it may say that it is ready, or waits as well: nobody is named then.

    Args:
        phases: Rank that runs and is not ready -> its phase; at least one.
        ready: The ranks that said that they are ready.
        allowed_s: Seconds that the ranks had.
    """
    if early := {rank: phase for rank, phase in phases.items() if is_before_meeting(phase)}:
        return late(early, f"was not ready {allowed_s:.0f} s after it was started")
    had = f"{named_ranks(sorted(ready))} said that {'it' if len(ready) == 1 else 'they'} had, " if ready else ""
    text = (
        f"the ranks had not all met {allowed_s:.0f} s after they were started: {had}{named_ranks(sorted(phases))} still"
        " waited for others, which says of none that it stays away; check the network of their hosts with seatrial run"
    )
    return Failure(suspicions=(), text=text, whole=True)


def not_finished(phases: Mapping[int, str], finished: Collection[int], allowed_s: float) -> Failure:
    """Return the failure of a training in which others have a result and these ranks have none. Nobody is named.

    Each may wait for another rank, also for one that has a result: in a ring, what a rank sends last goes to its
    neighbor alone.

    Args:
        phases: Rank without a result -> its phase; at least one.
        finished: The ranks with a result.
        allowed_s: Seconds that the ranks had.
    """
    where = all_named("phase", [as_name(phase) for phase in dict.fromkeys(phases.values())])
    text = (
        f"{named_ranks(sorted(finished))} had finished, {named_ranks(sorted(phases))} had not {allowed_s:.0f} s later,"
        f" in {where}: a rank may wait there for any other one; check the hosts and their network with seatrial run"
    )
    return Failure(suspicions=(), text=text, whole=True)


def only_witnesses(exits: Mapping[int, Exit], errors: Mapping[int, tuple[str, str]]) -> bool:
    """Return whether others may have caused the failures of all ranks so far."""
    return not _own_failures(exits, errors) and all(cause == "fabric" for cause, _ in errors.values())


def only_stop_signals(exits: Mapping[int, Exit], errors: Mapping[int, tuple[str, str]]) -> bool:
    """Return whether all ranks that failed by themselves were ended by a signal that somebody sends to stop a job."""
    failures = _own_failures(exits, errors)
    return bool(failures) and all(is_stop_signal(ended.code) for ended in failures)


def _own_failures(exits: Mapping[int, Exit], errors: Mapping[int, tuple[str, str]]) -> list[Exit]:
    of_others = {rank for rank, (cause, _) in errors.items() if cause == "fabric" and not _is_at_fault(rank, exits)}
    of_others |= {rank for rank, ended in exits.items() if ended.may_come_from_others and rank not in errors}
    return [ended for rank, ended in exits.items() if ended.failed and rank not in of_others]


def _suspicion(rank: int, exits: Mapping[int, Exit], detail: str) -> Suspicion:
    return Suspicion(how="dead", rank=rank, phase=exits[rank].phase if rank in exits else "", detail=detail)


def _is_at_fault(rank: int, exits: Mapping[int, Exit]) -> bool:
    """Return whether a rank that has complained of others has failed by itself.

    That is so where its device ended it: NCCL may hear of that first. Of an error that torch has passed on to all ranks
    of a group the number says so where all ranks before this one have raised it as well: else its number in the group
    is another one than in the world.
    """
    if rank not in exits:
        return False
    error = script_error(exits[rank])
    ended = exits[rank]
    if ended.code < 0 and not error.is_witness and is_of_device(ended.last_lines) and not ended.may_come_from_others:
        return True
    numbers = error.of_ranks
    return rank in numbers and all(
        other in exits and script_error(exits[other]).of_ranks == numbers for other in range(rank)
    )


def _no_peer_causes(code: int) -> bool:
    """Return whether a signal ended it that the death of a peer never leads to."""
    return code in _KILLED or (code < 0 and -code not in (*_MAY_CRASH, signal.SIGTERM))


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
    error = script_error(ended)
    return error.text if error.is_witness else ""


@lru_cache(maxsize=1 << 13)
def script_error(ended: Exit) -> ScriptError:
    """Return the error of a program.

    That is its exception, else what a library said before it aborted the process, else the last line. Of several ranks
    in one output, one that failed by itself explains the others. A parent of the rank may end in many ways when the
    rank is aborted, so the exit code decides little.
    """
    lines = [_COLOR.sub("", line) for line in ended.last_lines if line.strip()]
    if ended.code < 0 and -ended.code not in _MAY_CRASH and ended.code not in _ABORTED:
        return ScriptError(text="")
    chains = raised(lines)
    errors = [(chain, _error_of(chain, ended.rank)) for chain in chains]
    is_crashed = ended.code < 0 and not any(_AT_ITS_END.search(line) for line in lines)
    ends = [(chain, error) for chain, error in errors if _has_ended(chain, is_crashed=is_crashed)]
    abort_lines = [number for number, line in enumerate(lines) if says_why_aborted(line)]
    root = _root_without_words(lines, chains, [lines[number] for number in abort_lines])
    if aborts := [_abort_at(lines, number) for number in abort_lines]:
        # What the device of the rank did comes first, and that it gave up waiting, before what others told it.
        abort = min(aborts, key=lambda each: (each.is_witness, not gave_up(each.text)))
        if not abort.is_witness:
            return abort
        is_aborted = ended.code in _ABORTED or _is_child_aborted(lines)
        # An exception without a mark of torch may be one that was logged, and the rank went on.
        own = (error for chain, error in ends if not error.is_witness and not (is_aborted and chain.rank is None))
        before = (error.text for chain, error in errors if not error.is_witness and not chain.num_later)
        return next(own, root or replace(abort, before=next(before, "")))
    # The error that ended the process outweighs an earlier complaint.
    thrown = next((line for line in lines if _THROWN.match(line) and own_cause(line)), "")
    if ends:
        own = (error for _, error in ends if not error.is_witness)
        last = ScriptError(text=_THROWN.sub("", thrown)) if thrown else root or ends[-1][1]
        return next(own, last)
    if ended.code == -signal.SIGPIPE:
        return ScriptError(text="it wrote to a connection that the other end had closed", is_witness=True)
    if ended.code < 0:
        return ScriptError(text="")
    number = next((number for number in reversed(range(len(lines))) if not _NOISE.match(lines[number])), len(lines))
    line = "".join(lines[number : number + 1]).strip()
    is_old = any(later.startswith(QUIET) for later in lines[number:])
    if not is_own(line) and not is_old and (gave_up(line) or says_lost(line)):
        return ScriptError(text=line, is_witness=True)
    # Many lines after an exception may be those of its message.
    long = [(chain, error) for chain, error in errors if not (error.is_witness or chain.is_old)]
    return next((error for chain, error in long if chain.num_later <= _MOST_MESSAGE_LINES), ScriptError(text=line))


def _has_ended(chain: Chain, *, is_crashed: bool) -> bool:
    """Return whether the exception ended the program: torch has marked it, or little or nothing followed.

    Else the program may have logged it, and have gone on. A crash needs no exception before it.
    """
    return chain.rank is not None or (chain.num_later <= (0 if is_crashed else MOST_LATER) and not chain.is_old)


def _root_without_words(lines: Sequence[str], chains: Sequence[Chain], aborts: Sequence[str]) -> ScriptError | None:
    """Return the failure of the rank that torchrun saw fail first, where others complained and that one said nothing.

    None as well where it cannot be known which ranks have said something.
    """
    root = root_cause(lines)
    said = {chain.rank for chain in chains} | {_rank_in(line) for line in aborts}
    if root is None or not said or None in said or root.rank in said:
        return None
    # Of many ranks that are aborted the words of some are left out.
    if root.code in _TERMINATED or (aborts and root.code in _ABORTED):
        return None
    return ScriptError(text=f"torchrun saw its rank {root.rank} fail first, which {how_ended(root.code)}")


def _rank_in(line: str) -> int | None:
    rank = rank_of(split_mark(line)[0])
    words = _RANK_WORDS.search(line)
    return int(words[1]) if rank is None and words else rank


def _is_child_aborted(lines: Sequence[str]) -> bool:
    """Return whether the exception of a parent of the rank says that the rank was aborted."""
    text = "\n".join(lines)
    found = _CHILD_ENDED.search(text)
    return found is not None and _BY_ABORT.search(text[found.end() :].rpartition(ROOT_CAUSE)[2]) is not None


def _abort_at(lines: Sequence[str], number: int) -> ScriptError:
    first, _, rest = message_at(lines, number).partition("\n")
    said = first.rpartition("] ")[2]
    message = f"{said.rpartition(_EXCEPTION)[2]}\n{rest}"
    return ScriptError(
        text=in_one_line(f"{said}\n{rest}"), is_witness=not own_cause(message) and complains(f"{first}\n{rest}")
    )


def _error_of(chain: Chain, rank: int) -> ScriptError:
    """Return the error that counts among exceptions that followed from one another. ``rank``: that of the process."""
    messages = chain.messages
    for message in messages:
        if ranks := ranks_passed_on(message):
            own = rank if chain.rank is None else chain.rank
            # Below a launcher, several ranks have their marks in one output: nobody knows who else has raised it.
            is_named = own in ranks and (own == 0 or own != rank)
            return ScriptError(text=error_passed_on(message), is_witness=not is_named, of_ranks=tuple(sorted(ranks)))
    complaints = [
        number
        for number, message in enumerate(messages)
        if complains(message) and (number == len(messages) - 1 or not is_of_socket(message))
    ]
    for number, message in enumerate(messages):
        # A script may have handled a lack of memory, and complain of something else later.
        if is_own(message) and not (own_cause(message) == "memory" and complaints and complaints[-1] > number):
            return ScriptError(text=in_one_line(message))
    if not complaints:
        return ScriptError(text=_text_of(messages[-1]))
    before = next((message for message in messages[: complaints[0]] if not _GROUP.match(message)), "")
    return ScriptError(text=in_one_line(messages[complaints[-1]]), is_witness=True, before=before and _text_of(before))


def _text_of(message: str) -> str:
    return error_passed_on(message) if is_of_worker(message) else in_one_line(message)


def has_raised(ended: Exit) -> bool:
    """Return whether its last lines are those of an error, and not only what it happened to print last."""
    return (
        ended.code < 0
        or bool(raised(ended.last_lines))
        or any(TRACEBACK in line or says_why_aborted(line) for line in ended.last_lines)
    )
