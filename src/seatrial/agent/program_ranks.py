"""The environment and the output of a rank that executes a program instead of our worker."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from seatrial.environment.flight_recorder import BUFFER, recorder_settings
from seatrial.environment.script_variables import CARRIED, CONDUCT, in_agreement, torchrun_variables
from seatrial.environment.self_location import without_import_variables
from seatrial.environment.working_folder import FolderTrust, is_here, refusal
from seatrial.protocol import job_digest
from seatrial.protocol.commands import MOST_OUTPUT_CHARS, ProgramSpec, StartProgram
from seatrial.protocol.events import ErrorEvent, Event, ExitEvent
from seatrial.protocol.job_digest import Start

_OURS = (
    "SEATRIAL_CONTROL",
    "SEATRIAL_KEEP",
    job_digest.VARIABLE,
    "SEATRIAL_NODE_RANK",
    "SEATRIAL_NODES_HERE",
    "SEATRIAL_PEER",
    "SEATRIAL_ADDRESS",
    "SEATRIAL_NIC",
    "SEATRIAL_LOCAL_RANK",
    "SEATRIAL_LOCAL_WORLD_SIZE",
    "SEATRIAL_GROUP_RANK",
    "SEATRIAL_GROUP_WORLD_SIZE",
)
"""They identify the agent; in a program's environment they would identify the program."""
_OF_PODS = ("SEATRIAL_LIVE", CONDUCT, CARRIED, "SEATRIAL_JOIN_TIMEOUT_S", "SEATRIAL_NODE_NAME", "SEATRIAL_NNODES")
"""They come from the manifest of a pod, and are for the seatrial that it starts."""
_BYTES_PER_S = 16 << 10
_MAX_LINE_BYTES = 2_000
_BAR_S = 1.0
"""Interval in which the state of a progress bar is shown."""


def environ_of(
    environ: Mapping[str, str], start: StartProgram, *, rank: int, local_rank: int, local_world_size: int
) -> dict[str, str]:
    """Return the environment of one rank: of a user's script as torchrun would have set it.

    ``environ``: that of the agent, with the variables of ``start``, which have priority over torchrun's.
    """
    program = start["program"]
    place = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(program["world_size"]),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        # Where each rank has a separate agent, the conductor does not know which of them share a machine.
        "GROUP_RANK": environ.get("SEATRIAL_GROUP_RANK", str(program["group_rank"])),
        "GROUP_WORLD_SIZE": environ.get("SEATRIAL_GROUP_WORLD_SIZE", str(program["nnodes"])),
        "MASTER_ADDR": program["master_addr"],
        "MASTER_PORT": str(program["master_port"]),
    }
    if program["watched"]:
        environ = {**environ, "SEATRIAL_RUN": start["run"], "SEATRIAL_GENERATION": str(start["gen"])}
        return {name: value for name, value in environ.items() if name not in _OURS} | place
    ours = {*_OURS, *_OF_PODS}
    environ = {name: value for name, value in without_import_variables(environ).items() if name not in ours} | place
    environ = in_agreement(environ, is_only_rank=len(start["places"]) == 1)
    # A program that starts the processes of its node itself is no rank of torchrun's, and may be torchrun.
    if not program["spawns"]:
        restarts, max_restarts = start["gen"], program["max_restarts"]
        environ |= torchrun_variables(environ, run=start["run"], restarts=restarts, max_restarts=max_restarts)
    return environ | {name: value for name, value in start["env"].items() if name not in place}


def prepare(start: Start) -> tuple[str, str, str]:
    """Return what ``start_folder`` does, once the disk has answered from which the processes are started.

    With a recorder, ``start`` names a place for its files among the variables of the ranks, unless it has one.
    """
    with contextlib.suppress(OSError), open(sys.executable, "rb", buffering=0) as file:
        file.read(1)
    environ = {**os.environ, **start["env"]}
    if BUFFER in environ:
        start["env"] = {**recorder_settings(environ), **start["env"]}
    return start_folder(start["program"]) if start["kind"] == "start_program" else ("", "", "")


def start_folder(program: ProgramSpec) -> tuple[str, str, str]:
    """Return the folder in which the ranks start, why they must not start the script, and a note; both may be empty.

    Of the user's folder, the agent's and the home folder it is the first that is here and that no other user could have
    filled: srun starts an agent in /tmp where the user's folder is not on its host.
    """
    trust = FolderTrust.of_message(program["cwd_trust"])
    script, script_trust = program["script"], FolderTrust.of_message(program["script_trust"])
    note = ""
    for start in _folders(program["cwd"], trust):
        refused = refusal(start, "", trust)
        if not refused and os.access(start, os.X_OK):
            break
        note = note or refused
    if note:
        share = "start from a folder that all hosts share, or name scripts by absolute paths"
        note = f"{note} on this host, so the ranks start in {start}; {share}"
    if script and (found := refusal(start, script, script_trust)):
        needed = "each host needs the script at this path, in a folder of yours"
        return start, f"{script} on this host: {found}; {needed}", note
    return start, "", note


def _folders(typed: str, trust: FolderTrust) -> Iterator[str]:
    """Yield the folders in which the ranks may start, of those that are here; at last the root, which is root's."""
    here = os.readlink("/proc/self/cwd")
    for folder in (typed, here, os.path.expanduser("~")):
        if os.path.isabs(folder) and is_here(folder, trust):
            yield folder
    yield "/"


def refusal_events(start: StartProgram, text: str) -> Iterator[Event]:
    """Yield the events that report, in place of each rank, that the request is wrong on this node."""
    for rank, _ in start["places"]:
        place = {"gen": start["gen"], "rank": rank, "phase": ""}
        error = {"kind": "error", "step": -1, "cause": "request", "type": "", "message": text, "stack": ""}
        yield cast("ErrorEvent", error | place)
        ended = {"kind": "exit", "code": 2, "ours": False, "last_lines": [text]}
        yield cast("ExitEvent", ended | place)


def typed_threads(env: Mapping[str, str]) -> int:
    """Return the OMP_NUM_THREADS that the user gave the ranks; 0 without a whole number."""
    text = env.get("OMP_NUM_THREADS", "")
    return int(text) if re.fullmatch("[1-9][0-9]{0,3}", text) else 0


class Relay:
    """Forwards the output of one rank line by line, at a bounded rate, and counts the lines that it drops."""

    def __init__(self, send: Callable[[list[str], int], None], clock: Callable[[], float] = time.monotonic) -> None:
        """``send``: called with lines and with the number of lines dropped since its last call."""
        self._send = send
        self._clock = clock
        self._credit_bytes = float(MOST_OUTPUT_CHARS)
        self._credited_at = clock()
        self._left_out = 0
        self._bar_at = 0.0
        self._bar = b""

    def take(self, lines: list[bytes], rest: bytes) -> None:
        """Forward whole lines. ``rest``: the line that has no end yet."""
        now = self._clock()
        earned_bytes = (now - self._credited_at) * _BYTES_PER_S
        self._credit_bytes = min(float(MOST_OUTPUT_CHARS), self._credit_bytes + earned_bytes)
        self._credited_at = now
        if lines:
            self._bar = b""
        # A progress bar overwrites its line for hours: its last state is forwarded once a second.
        bar = rest.rpartition(b"\r")[0].rpartition(b"\r")[2]
        if bar.strip() and bar != self._bar and now - self._bar_at >= _BAR_S:
            self._bar, self._bar_at = bar, now
            lines = [*lines, bar]
        forwarded = []
        for number, line in enumerate(lines):
            if self._credit_bytes < 1:  # not even a blank line: there may be a hundred thousand more
                self._left_out += len(lines) - number
                break
            shown = line.rstrip(b"\r").rpartition(b"\r")[2][:_MAX_LINE_BYTES]
            if len(shown) + 1 > self._credit_bytes:
                self._left_out += 1
                continue
            self._credit_bytes -= len(shown) + 1
            forwarded.append(shown.decode(errors="replace"))
        if forwarded:
            self._flush(forwarded)

    def leave_out(self, lines: list[bytes]) -> None:
        """Drop whole lines: the connection takes nothing more."""
        self._left_out += len(lines)

    def close(self) -> None:
        """Report the lines that were dropped last."""
        if self._left_out:
            self._flush([])

    def _flush(self, lines: list[str]) -> None:
        self._send(lines, self._left_out)
        self._left_out = 0
