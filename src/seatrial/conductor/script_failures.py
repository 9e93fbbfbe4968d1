"""Facts about a failed script beside its first failure: the other ranks, and where to look. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from seatrial.conductor.program_failures import Exit, Failure, how_ended, script_error, short_error
from seatrial.conductor.rank_status import Suspicion
from seatrial.protocol.fabric_errors import is_end_by_watchdog
from seatrial.util.text import all_named, all_of, format_seconds, named_ranks

_TOGETHER_S = 0.25
"""Two exits within this time may have been observed in the wrong order."""
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_SAVED, _MAX_CODES = frozenset((0, 130)), 4
_TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a process that the signal ended, and of a shell above it."""
_NO_SCRIPT = re.compile(r"can't open file '.*': \[Errno 2\]")
"""The line that Python prints, with exit code 2, when its script is not there."""
_LIBUV = "use_libuv was requested"
"""Message of a torch that was built without libuv (2.6 of Debian 13), at a rendezvous by env:// or tcp://."""
_NO_MPI = "package doesn't have MPI built in"
"""Message of a torch whose build has no MPI backend, as all of PyPI, at ``backend="mpi"``."""


def with_peers(
    failure: Failure, exits: Mapping[int, Exit], running: Collection[int], on_host: Callable[[int], str]
) -> Failure:
    """Return the failure with the state of the other ranks, for a rank that complains of the fabric.

    Where no other rank had ended or complained, nobody was lost: then the rank has failed, whatever its words. The one
    rank that had ended with 0 before is the first: its last output is shown. ``on_host``: rank -> " on HOST".
    """
    ended = None if failure.rank is None else exits.get(failure.rank)
    if ended is None or (first := failure.suspicions[0]).how != "error":
        return failure
    others = [other for other in exits.values() if other is not ended and not other.ours]
    is_alone = not any(other.at <= ended.at + _TOGETHER_S or other.code != 0 for other in others)
    left = [] if is_alone or script_error(ended).of_ranks else ended_before(ended, exits)
    found = "" if left else own_words(ended)
    witness = f"rank {ended.rank}{on_host(ended.rank)}"
    said = (
        f"{short_error(failure.text)}{''.join(f'; {other}' for other in peers(ended, exits, running, well=not left))}"
    )
    if found:
        text = f"{witness} {first.detail}{found}: {said}"
    elif is_alone:
        text = f"{witness} {first.detail.removesuffix(' and ')}: {said}"
    elif left:
        text = f"{ended_well(ended, exits, on_host)}; then {witness} {first.detail}reported a lost connection: {said}"
    else:
        text = f"connection between ranks lost; {witness} {first.detail}reported it first: {said}"
    if len(left) == 1:
        first = Suspicion(how="dead", rank=left[0].rank, detail="had ended with exit code 0")
    return replace(failure, suspicions=(first,), text=text, whole=True)


def own_words(ended: Exit) -> str:
    """Return what a rank that complains of others says beside that, as a predicate; empty: nothing."""
    error = script_error(ended)
    if error.of_ranks:
        s = "" if len(error.of_ranks) == 1 else "s"
        return f"passed on an error of number{s} {', '.join(map(str, error.of_ranks[:_MAX_CODES]))} of its group"
    did = "was ended by NCCL's watchdog" if is_end_by_watchdog(error.text) else "complained of others"
    return error.before and f"{did} after {short_error(error.before)}"


def ended_before(ended: Exit, exits: Mapping[int, Exit]) -> list[Exit]:
    """Return the ranks that had ended with 0 before this one, by rank."""
    return sorted((other for other in exits.values() if other.code == 0 and other.at <= ended.at), key=lambda x: x.rank)


def ended_well(ended: Exit, exits: Mapping[int, Exit], on_host: Callable[[int], str]) -> str:
    """Return a phrase about the ranks that had ended with 0 before this one; may be empty."""
    well = ended_before(ended, exits)
    before = f", {ended.at - well[0].at:.1f} s earlier" if len(well) == 1 else ""
    hosts = {on_host(other.rank) for other in well}
    host = hosts.pop() if len(hosts) == 1 else ""
    return f"{named_ranks([other.rank for other in well])}{host} had ended with exit code 0{before}" if well else ""


def peers(ended: Exit, exits: Mapping[int, Exit], running: Collection[int], *, well: bool = True) -> list[str]:
    """Return phrases about the other ranks.

    They name those that had ended well before this one, unless ``well`` is False, those that failed as well, and those
    that the conductor is about to end: a report is read when all of them are gone.
    """
    phrases = [before] if well and (before := ended_well(ended, exits, lambda rank: "")) else []
    failed = [other for other in exits.values() if other.failed and other is not ended]
    if failed and len(failed) + 1 == len(exits) + len(running) and {other.code for other in failed} == {ended.code}:
        phrases.append(f"{all_of(len(exits), 'rank')} {how_ended(ended.code)}")
        return phrases
    for is_later, when in ((False, "at the same time"), (True, "afterwards")):
        ranks = sorted(other.rank for other in failed if (other.at > ended.at + _TOGETHER_S) is is_later)
        phrases += [f"{named_ranks(ranks)} failed {when}"] if ranks else []
    return [*phrases, not_exited(running)] if running else phrases


def not_exited(running: Collection[int]) -> str:
    """Return a phrase about the ranks that the conductor is about to end."""
    it = "it" if len(running) == 1 else "them"
    return f"{named_ranks(sorted(running))} had not exited, and seatrial ended {it}"


def how_stopped(
    exits: Mapping[int, Exit], ranks: Collection[int], grace_used_s: float, on_host: Callable[[int], str]
) -> str:
    """Return how each rank of a run that somebody stopped has ended: one that was killed may not have saved.

    Args:
        exits: rank -> its end.
        ranks: all ranks.
        grace_used_s: seconds from SIGTERM to SIGKILL.
        on_host: rank -> " on HOST".
    """
    killed = sorted(rank for rank, ended in exits.items() if ended.ours and ended.code in _KILLED)
    unhandled = sorted(rank for rank, ended in exits.items() if ended.code in _TERMINATED)
    own = sorted(exits.keys() - {*killed, *unhandled})
    lost = sorted(set(ranks) - exits.keys())
    used = f"after {format_seconds(grace_used_s)}"

    def those(found: Sequence[int], verb: str) -> str:
        if len(found) == len(ranks) > 1:
            return f"{all_of(len(found), 'rank')} {verb}"
        return f"{named_ranks(found)}{on_host(found[0]) if len(found) == 1 else ''} {verb}"

    codes = sorted({exits[rank].code for rank in own})[:_MAX_CODES]
    said = "" if {*codes} <= _SAVED else f" (exit code{'' if len(codes) == 1 else 's'} {', '.join(map(str, codes))})"
    were = "was" if len(killed) == 1 else "were"
    phrases = (
        (own, f"ended by {'itself' if len(own) == 1 else 'themselves'}{said}"),
        (unhandled, "ended at SIGTERM without handling it"),
        (killed, f"{were} ended {used}"),
        (lost, "sent no news of an end"),
    )
    return "; ".join(those(found, verb) for found, verb in phrases if found)


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
    if ended.code in _KILLED and not ended.oom:
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


def py_spy_hint(program: str, hosts: Sequence[str], *, ends: bool) -> str:
    """Return how to get the Python stacks of a script, without a full stop.

    Args:
        program: what each rank executes; an interpreter, unless the script is a program.
        hosts: names of the hosts whose ranks have no stack.
        ends: the ranks are about to be ended.
    """
    python = program if "python" in program.rpartition("/")[2] else "the Python of the ranks"
    install = f"{python} -m pip install py-spy" if python == program else "pip install py-spy"
    on = all_named("node", hosts)
    when = "before the next launch" if ends else "even now, and press Ctrl-\\ here"
    return (
        f"for the Python stacks: install py-spy beside {python} on {on} ({install}), {when}; where pip refuses that,"
        " make a virtual environment with torch and py-spy on the hosts, and launch with --python VENV/bin/python"
    )
