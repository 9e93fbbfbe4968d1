"""Strict readers of the commands by which an agent starts processes.

Their values get into environments, arguments and paths of the ranks. The host that conducts is not always trusted with
more than the verdict, so each value must be what an honest conductor sends, and nothing that a shell could execute.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from seatrial.protocol.commands import AgentCommand
from seatrial.protocol.fields import INTERFACE_NAME, DamageError
from seatrial.protocol.job_digest import Start, digest_of_start

ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:%-]{0,254}")
"""An address or the name of a host. It begins as no option does."""
MOST_PLACES = 4096
"""Ranks on a node: above the 512 CPU processes and the accelerators that a machine has."""
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_WORDS = {"device": ("auto", "cpu", "cuda", "rocm"), "backend": ("auto", "gloo", "nccl", "mpi")}
_NUMBERS = ("spawns", "nnodes", "world_size", "group_rank", "max_restarts")
_MOST = 1 << 31
_MOST_RANKS = 1 << 20
"""Each rank lists all of them. No cluster has a million accelerators."""


def fault_of_command(command: AgentCommand, job: str, *, ranks_run: bool) -> str:
    """Return why an agent must not obey a command, or an empty text. Commands that start nothing have no fault.

    Args:
        command: of any kind.
        job: the digest of what the agent may start.
        ranks_run: whether ranks that it has started run.
    """
    if command["kind"] not in ("node_step", "start_workers", "start_program"):
        return ""
    start: Start = command
    try:
        if digest_of_start(start) != job:
            return (
                "was asked to start what its own command line does not name (all nodes need the same options,"
                " planted faults, folder and Python)"
            )
        _require_sound(start)
        # A conductor has a generation killed before it starts the next one.
        if ranks_run and start["kind"] != "node_step":
            return "was asked to start ranks while others run"
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        return f"was asked to start processes by a value that no controller sends ({error})"
    return ""


def _require_sound(start: Start) -> None:
    # Variables, command, arguments and folder are those of the digest.
    _require_number(start, "gen")
    if start["kind"] == "node_step":
        _require_number(start, "step")
        _require_words(start)
        if type(start["watches"]) is not bool:
            raise DamageError("watches")
        return
    if not (isinstance(start["run"], str) and _RUN.fullmatch(start["run"])):
        raise DamageError("run")
    _require_places(start["places"])
    if start["kind"] == "start_workers":
        _require_ranks(start["ranks"], (rank for rank, _ in start["places"]))
        _require_words(start)
        if start["interface"] != "" and not INTERFACE_NAME.fullmatch(start["interface"]):
            raise DamageError("interface")
        return
    program = start["program"]
    # The digest of a trial is that of an empty command.
    if not (isinstance(program["argv"], list) and program["argv"]):
        raise DamageError("argv")
    if not isinstance(program["args"], list):
        raise DamageError("args")
    for name in _NUMBERS:
        _require_number(program, name)
    if program["spawns"] > MOST_PLACES:
        raise DamageError("spawns")
    _require_numbers(program, "shown")
    if type(program["watched"]) is not bool:
        raise DamageError("watched")
    if not (isinstance(program["master_addr"], str) and ADDRESS.fullmatch(program["master_addr"])):
        raise DamageError("master_addr")
    if type(program["master_port"]) is not int or not 0 < program["master_port"] < 1 << 16:
        raise DamageError("master_port")


def _require_words(start: Mapping[str, Any]) -> None:
    for name, words in _WORDS.items():
        if start[name] not in words:
            raise DamageError(name)


def _require_places(places: object) -> None:
    # [rank, local_rank]: a process for each of them.
    if not (isinstance(places, list) and len(places) <= MOST_PLACES):
        raise DamageError("places")
    for place in places:
        _require_numbers({"places": place}, "places")
        if len(place) != 2:
            raise DamageError("places")
    if any(len(set(numbers)) != len(places) for numbers in zip(*places, strict=True)):
        raise DamageError("places")


def _require_ranks(ranks: object, here: Iterable[int]) -> None:
    # [first, last], ascending; those of this node are among them.
    if not isinstance(ranks, list):
        raise DamageError("ranks")
    before, count = -1, 0
    for pair in ranks:
        _require_numbers({"ranks": pair}, "ranks")
        if len(pair) != 2 or not before < pair[0] <= pair[1]:
            raise DamageError("ranks")
        before, count = pair[1], count + pair[1] - pair[0] + 1
    firsts = [first for first, _ in ranks]
    for rank in here:
        at = bisect_right(firsts, rank) - 1
        if at < 0 or rank > ranks[at][1]:
            raise DamageError("ranks")
    if count > _MOST_RANKS:
        raise DamageError("ranks")


def _require_number(fields: Mapping[str, Any], name: str) -> None:
    if type(fields[name]) is not int or not 0 <= fields[name] < _MOST:
        raise DamageError(name)


def _require_numbers(fields: Mapping[str, Any], name: str) -> None:
    if not isinstance(fields[name], list):
        raise DamageError(name)
    for number in fields[name]:
        _require_number({name: number}, name)
