"""Strict readers of the commands by which an agent starts processes.

Their values get into environments, arguments and paths of the ranks. The host that conducts is not always trusted with
more than the verdict, so each value must be what an honest conductor sends, and nothing that a shell could execute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from seatrial.protocol.fields import DamageError
from seatrial.protocol.job_digest import Start, digest_of_start

ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:%-]{0,254}")
"""An address or the name of a host. It begins as no option does."""
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NUMBERS = ("spawns", "nnodes", "world_size", "group_rank", "max_restarts")
_MOST = 1 << 31


def fault_of_start(start: Start, job: str) -> str:
    """Return why an agent must not obey a command, or an empty text. ``job``: the digest of what it may start."""
    try:
        if digest_of_start(start) != job:
            return (
                "was asked to start what its own command line does not name (all nodes need the same options, folder"
                " and Python)"
            )
        _require_sound(start)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        return f"was asked to start processes by a value that no controller sends ({error})"
    return ""


def _require_sound(start: Start) -> None:
    # Variables, command, arguments and folder are those of the digest.
    _require_number(start, "gen")
    if start["kind"] == "node_step":
        _require_number(start, "step")
        return
    if not (isinstance(start["run"], str) and _RUN.fullmatch(start["run"])):
        raise DamageError("run")
    for place in start["places"]:
        _require_numbers({"places": place}, "places")
        if len(place) != 2:
            raise DamageError("places")
    if start["kind"] == "start_workers":
        return
    program = start["program"]
    # The digest of a trial is that of an empty command.
    if not (isinstance(program["argv"], list) and program["argv"]):
        raise DamageError("argv")
    if not isinstance(program["args"], list):
        raise DamageError("args")
    for name in _NUMBERS:
        _require_number(program, name)
    _require_numbers(program, "shown")
    if type(program["watched"]) is not bool:
        raise DamageError("watched")
    if not (isinstance(program["master_addr"], str) and ADDRESS.fullmatch(program["master_addr"])):
        raise DamageError("master_addr")
    if type(program["master_port"]) is not int or not 0 < program["master_port"] < 1 << 16:
        raise DamageError("master_port")


def _require_number(fields: Mapping[str, Any], name: str) -> None:
    if type(fields[name]) is not int or not 0 <= fields[name] < _MOST:
        raise DamageError(name)


def _require_numbers(fields: Mapping[str, Any], name: str) -> None:
    if not isinstance(fields[name], list):
        raise DamageError(name)
    for number in fields[name]:
        _require_number({name: number}, name)
