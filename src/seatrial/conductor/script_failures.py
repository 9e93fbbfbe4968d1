"""Facts about a failed script beside its first failure: the other ranks, and where to look. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from seatrial.conductor.program_failures import Exit, Failure, fabric_error
from seatrial.util.text import named_ranks

_TOGETHER_S = 0.25
"""Two exits within this time may have been observed in the wrong order."""
_TIME_IS_OVER = ("timed out", "timeout")
"""Parts of messages, in lower case, of ranks that waited for a peer for as long as the script allows."""
_NO_SCRIPT = re.compile(r"can't open file '.*': \[Errno 2\]")
"""The line that Python prints, with exit code 2, when its script is not there."""
_LIBUV = "use_libuv was requested"
"""Message of a torch that was built without libuv (2.6 of Debian 13), at a rendezvous by env:// or tcp://."""
_NO_MPI = "package doesn't have MPI built in"
"""Message of a torch whose build has no MPI backend, as all of PyPI, at ``backend="mpi"``."""


def waited_in_vain(exits: Mapping[int, Exit], running: Collection[int]) -> list[int]:
    """Return the ranks that failed, if each of them says that its time for a peer is over, and others still run."""
    failed = [ended for ended in exits.values() if ended.failed]
    waited = [ended.rank for ended in failed if any(words in fabric_error(ended).lower() for words in _TIME_IS_OVER)]
    ended_before = any(ended.code == 0 for ended in exits.values())
    return sorted(waited) if running and not ended_before and len(waited) == len(failed) else []


def with_peers(
    failure: Failure, exits: Mapping[int, Exit], running: Collection[int], on_host: Callable[[int], str]
) -> Failure:
    """Return the failure with the state of the other ranks, for a rank that complains of the fabric.

    Where no other rank had ended or complained, nobody was lost: then the rank has failed, whatever its words. Where
    all complaints are that the time for a peer is over, the ranks that still run are the ones to look at.

    ``on_host`` returns " on HOST" for a rank.
    """
    first = failure.suspicions[0]
    ended = None if first.rank is None else exits.get(first.rank)
    if first.how != "error" or ended is None:
        return failure
    if waited := waited_in_vain(exits, running):
        left = sorted(running)
        named = f"{named_ranks(left)}{on_host(left[0])} was" if len(left) == 1 else f"{named_ranks(left)} were"
        ended_by_us = f"seatrial ended {'it' if len(left) == 1 else 'them'}"
        # Their own words: a rank that lies says so of peers that came.
        say = "says that it" if len(waited) == 1 else "say that they"
        return replace(
            failure,
            before=f"{named_ranks(waited)} {say} gave up waiting for a peer",
            is_wait=True,
            peers=f"{named} still running: look there first; {ended_by_us}",
        )
    others = [other for other in exits.values() if other is not ended and not other.ours]
    if not any(other.at <= ended.at + _TOGETHER_S or other.code != 0 for other in others):
        detail = first.detail.removesuffix(" and ")
        first = replace(first, how="dead", detail=detail)
    # The ranks that had left stand before the one that lost them.
    before = ended_well(ended, exits, on_host) if first.how == "error" else ""
    return replace(failure, suspicions=(first,), before=before, peers=peers(ended, exits, running, well=not before))


def ended_well(ended: Exit, exits: Mapping[int, Exit], on_host: Callable[[int], str] = lambda rank: "") -> str:
    """Return a phrase about the ranks that had ended with 0 before this one; may be empty."""
    well = sorted((other for other in exits.values() if other.code == 0 and other.at <= ended.at), key=lambda x: x.rank)
    before = f", {ended.at - well[0].at:.1f} s earlier" if len(well) == 1 else ""
    where = on_host(well[0].rank) if len(well) == 1 else ""
    return f"{named_ranks([other.rank for other in well])}{where} had ended with exit code 0{before}" if well else ""


def peers(ended: Exit, exits: Mapping[int, Exit], running: Collection[int], *, well: bool = True) -> str:
    """Return a phrase about the other ranks; may be empty.

    It names those that had ended well before this one, unless ``well`` is False, those that failed too, and those that
    the conductor is about to end: a report is read when all of them are gone.
    """
    after = sorted(rank for rank, other in exits.items() if other.failed and other.at > ended.at + _TOGETHER_S)
    together = sorted(rank for rank, other in exits.items() if other.failed and rank not in (*after, ended.rank))
    phrases = [before] if well and (before := ended_well(ended, exits)) else []
    if together:
        phrases.append(f"{named_ranks(together)} failed at the same time")
    if after:
        phrases.append(f"{named_ranks(after)} failed afterwards")
    if running:
        it = "it" if len(running) == 1 else "them"
        phrases.append(f"{named_ranks(sorted(running))} had not exited, and seatrial ended {it}")
    return "; ".join(phrases)


def ended_ranks(exits: Mapping[int, Exit]) -> str:
    """Return a phrase about the ranks that have ended, by exit code; may be empty."""
    codes = sorted({ended.code for ended in exits.values()})
    return "; ".join(
        f"{named_ranks(sorted(rank for rank, ended in exits.items() if ended.code == code))} had ended with {code}"
        for code in codes
    )


def advice(ended: Exit, host: str, *, lacks_script_here: bool) -> str:
    """Return where to look after such an end, or an empty text.

    Args:
        ended: the end of a rank.
        host: " on HOST".
        lacks_script_here: the script is not on the controller's machine.
    """
    if ended.code in (-signal.SIGKILL, 128 + signal.SIGKILL) and not ended.oom:
        return (
            "SIGKILL comes from the kernel when memory runs out, from a scheduler or from a person: see dmesg"
            f"{host}, and the memory limit of its job, container or cgroup"
        )
    if ended.code == 2 and any(_NO_SCRIPT.search(line) for line in ended.last_lines):
        if lacks_script_here:
            return f"the script is not{host}, and not on this machine either: check its path"
        return (
            f"the script is not{host}, or not at that path: copy it there, or start it in a folder that all hosts share"
        )
    if any(_LIBUV in line for line in ended.last_lines):
        return "this torch was built without libuv: launch the script with --env USE_LIBUV=0"
    if any(_NO_MPI in line for line in ended.last_lines):
        return (
            "this torch was built without MPI: in the script, import seatrial.mpi, name its BACKEND in place of"
            ' "mpi", and use --on mpirun (docs/mpi.md)'
        )
    return ""
