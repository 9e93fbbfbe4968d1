"""Ranks of a script that gave up waiting by its own timeout, and the rank that they waited for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from seatrial.conductor.program_failures import Exit, Failure, only_one_with_exception, short_error
from seatrial.conductor.rank_status import Suspicion
from seatrial.conductor.script_failures import ended_well, not_exited, own_words
from seatrial.conductor.script_stacks import main_thread_frames, place_of, waits_for_ranks
from seatrial.protocol.fabric_errors import gave_up, is_end_by_watchdog, wait_timeout_s
from seatrial.util.text import all_of, named_ranks

_TEARDOWN_S = 3.0
"""A rank that gives up takes so long to exit, and its peers may lose their connection to it, and exit, before."""


def late_failure(
    exits: Mapping[int, Exit],
    errors: Mapping[int, tuple[str, str]],
    stacks: Mapping[int, Mapping[str, Any]],
    running: Collection[int],
    on_host: Callable[[int], str],
) -> Failure | None:
    """Return the failure of a script whose ranks all only complain, where they gave up waiting; else None.

    Those that gave up only waited. The one rank that still ran is named; of several none is, as all but one of them may
    wait as well. Nor is one that NCCL's watchdog ended before it gave up: it may have begun to wait a little later.

    Args:
        exits: rank -> its end.
        errors: rank -> cause and message, of ranks that complain of others alone.
        stacks: rank that still runs -> its ``stack`` event.
        running: ranks that still run.
        on_host: rank -> " on HOST".
    """
    complained = sorted((ended for rank, ended in exits.items() if rank in errors), key=lambda ended: ended.at)
    waited = [ended for ended in complained if gave_up(errors[ended.rank][1])]
    others = [ended.rank for ended in complained if ended not in waited]
    aborted = [rank for rank in others if is_end_by_watchdog(errors[rank][1])]
    lost = sorted(set(others) - set(aborted))
    if not waited or any(waited[0].at > exits[rank].at + _TEARDOWN_S for rank in lost):
        return None
    error = short_error(errors[waited[0].rank][1])
    text = _heading(waited, errors, everybody=len(waited) == len(exits) + len(running))
    if lost:
        text += f", and {named_ranks(lost)} lost the connection"
    left = [ended.rank for ended in exits.values() if ended.code == 0 and ended.at <= complained[0].at]
    if left:
        text = f"{ended_well(complained[0], exits, on_host)}; then {text}"
    silent = [*left, *aborted, *running]
    if before := only_one_with_exception(exits, errors):
        text = f"rank {before.rank}{on_host(before.rank)} {own_words(before)}; {text}"
    # A watchdog that ends a rank shortly before its timeout does so where the rank began to wait a little later, too.
    if len(silent) != 1 or aborted:
        it = "it" if len(aborted) == 1 else "them"
        phrases = [f"{named_ranks(sorted(aborted))} had not yet when NCCL's watchdog ended {it}"] if aborted else []
        phrases += [not_exited(running)] if running else []
        suspicion = Suspicion(how="error", rank=(before or waited[0]).rank, detail="gave up waiting")
        return Failure(suspicions=(suspicion,), text="; ".join((f"{text}: {error}", *phrases)), whole=True)
    (rank,) = silent
    if running:
        text += f"; rank {rank}{on_host(rank)} {_where(stacks.get(rank), error)}"
    if "trying to connect" in error:  # the address is said, as a firewall may be the reason
        text += f"; the error: {error}"
    return Failure(suspicions=(Suspicion(how="late", rank=rank, detail="did not give up"),), text=text, whole=True)


def _heading(waited: Collection[Exit], errors: Mapping[int, tuple[str, str]], *, everybody: bool) -> str:
    seconds = sorted({wait_timeout_s(errors[ended.rank][1]) for ended in waited} - {None}, key=lambda s: s or 0.0)
    after = " to ".join(f"{second:g} s" for second in dict.fromkeys((*seconds[:1], *seconds[-1:])))
    ranks = all_of(len(waited), "rank") if everybody else named_ranks(sorted(ended.rank for ended in waited))
    return f"{ranks} gave up waiting (timed out{after and f' after {after}'})"


def _where(stack: Mapping[str, Any] | None, error: str) -> str:
    """Return where the rank is that did not give up; "never arrived" only where that is no wait for others."""
    if stack is None:
        return "still ran"
    if stack.get("state") in ("T", "t"):
        return "was stopped (state T)"
    place = place_of(stack)
    is_known = bool(main_thread_frames(str(stack.get("text", ""))))
    # With NCCL the script waits for its GPU at any line.
    if is_known and not waits_for_ranks(stack) and "watchdog" not in error.lower():
        return f"still ran and never arrived: {place}"
    return f"still ran{place and f', in {place}'}"
