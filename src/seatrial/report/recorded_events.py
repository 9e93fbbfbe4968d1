"""Reading the events of a recorded trial: event files, the folder of a run, or raw logs that contain its events.

The file of an agent, ``nodeN.events``, comes from its node: it counts for that node and its ranks only, as the agent's
connection does during the trial, and only for what the controller has no other event of. Beside ``controller.events``
no other file of a folder counts, whatever its name. Files that a person names, and those of a folder without that one,
count as the controller's record.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial import __version__
from seatrial.errors import RequestError
from seatrial.files import names_in, open_to_read, status_behind_links, statuses_in
from seatrial.judge.event_reader import Generations, may_have_rank
from seatrial.judge.fold import identity, is_same
from seatrial.protocol.events import SCHEMA
from seatrial.protocol.fields import DamageError
from seatrial.protocol.wire import Decoder

_MAX_BYTES = 1 << 30
_MOST_FOLDERS = 200
"""Folders in which a run is looked for that a message can name as an example."""
_SUFFIXES = (".events", ".jsonl")
RECORD = "controller.events"
"""The file of the controller, in the folder of a run."""
_FILE_OF_NODE = re.compile(r"node(0|[1-9][0-9]{0,8})\.(?:events|jsonl)")
_RANK = re.compile(r"rank(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")


class ProgramEventsError(RequestError):
    """The events are those of a program, which is not judged."""

    def __init__(self, message: str, events: list[dict[str, Any]]) -> None:
        super().__init__(message)
        self.events = events


def read_events(paths: Sequence[Path], named_folder: Path | None = None) -> tuple[list[dict[str, Any]], int]:
    """Return all messages and the number of damaged lines; messages that their file may not say are damage.

    One decoder for all files of the controller: a log may be cut between two parts. ``named_folder``: as in
    ``event_files``.
    """
    messages: list[dict[str, Any]] = []
    of_others: list[tuple[int | None, dict[str, Any]]] = []
    damaged = 0
    bytes_left = _MAX_BYTES

    def may_decode(cost_bytes: int) -> bool:
        if cost_bytes > bytes_left:
            raise RequestError(f"{file}: more than {_MAX_BYTES >> 30} GiB in total; give the event files only.")
        return True

    shared = Decoder(may_decode)
    listed = [(file, file is path) for path in paths for file in _files(path, named_folder)]
    has_record = any(file.name == RECORD for file, _ in listed)
    for file, is_named in listed:
        found = _FILE_OF_NODE.fullmatch(file.name)
        is_record = not found and (is_named or not has_record or file.name == RECORD)
        decoder = shared if is_record else Decoder(may_decode, of_agent=True)
        try:
            # The owner of the folder may have put a link there since it was listed.
            with open_to_read(file, follows_links=is_named, named_folder=named_folder) as text:
                # A file may grow meanwhile, and some claim a size that their text does not have.
                while line := text.readline(bytes_left + 1):
                    message = decoder.line(line)
                    cost_bytes = len(line) if message is None else max(len(line), decoder.kept_bytes)
                    may_decode(cost_bytes)
                    bytes_left -= cost_bytes
                    if message is not None and is_record:
                        messages.append(message)
                    elif message is not None:
                        of_others.append((int(found[1]) if found else None, message))
        except OSError as error:
            raise RequestError(f"{file}: cannot be read ({error.strerror or error}).") from error
        damaged += 0 if is_record else decoder.damaged
    run_events = [message for message in messages if message.get("kind") == "run"]
    added, refused = _may_say(of_others, messages)
    messages += added
    names = ", ".join(map(str, paths))
    if not messages:
        raise RequestError(f"{names}: no events of seatrial; give *.events files or logs of the trial.")
    _refuse_other_runs(names, run_events, messages)
    runs = sorted({str(event.get("run")) for event in run_events})
    if len(runs) > 1:
        raise RequestError(
            f"{names}: events of {len(runs)} runs ({', '.join(map(repr, runs[:4]))}); give those of a single run."
        )
    return messages, shared.damaged + damaged + refused


def _may_say(
    of_others: Sequence[tuple[int | None, dict[str, Any]]], record: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    """Return what others add to the controller's record, and how many messages they may not say.

    Of two events with one number the judge keeps neither, so nobody else may give a number again that the controller
    has: it heard that event over the connection of its node. Nor does a node that the run did not have say anything.
    ``of_others``: each with the node of its file.
    """
    known: dict[tuple[str, str, int], dict[str, Any]] = {}
    for message in record:
        with contextlib.suppress(DamageError):
            known.setdefault(identity(message), message)
    runs = {run for run, _, _ in known}
    generations = _generations(record)
    in_run = {node for rows in generations.values() for node, _ in rows.values()}
    added: list[dict[str, Any]] = []
    refused = 0
    for node, message in of_others:
        try:
            key = identity(message)
        except DamageError:
            refused += 1
            continue
        if key in known:
            refused += not is_same(known[key], message)
        elif (
            node is not None
            and (not in_run or node in in_run)
            and (not runs or key[0] in runs)
            and _is_of_node(message, node, generations)
        ):
            added.append(message)
        else:
            refused += 1
    return added, refused


def _generations(messages: Sequence[Mapping[str, Any]]) -> Generations:
    """Return the ranks of each generation, by the conductor."""
    generations: dict[int, dict[int, tuple[int, int]]] = {}
    for message in messages:
        rows, generation = message.get("ranks"), message.get("gen")
        is_generation = (message.get("src"), message.get("kind")) == ("conductor", "generation")
        if is_generation and isinstance(rows, list) and isinstance(generation, int):
            whole = (row for row in rows if isinstance(row, list) and [type(number) for number in row] == [int] * 3)
            generations[generation] = {rank: (node, local_rank) for rank, node, local_rank in whole}
    return generations


def _is_of_node(message: Mapping[str, Any], node: int, generations: Generations) -> bool:
    """Return whether a message is of this node or one of its ranks, and about no rank of another one."""
    src, about, generation = str(message.get("src")), message.get("rank"), message.get("gen")
    ranks = [] if about is None else [about]
    if found := _RANK.fullmatch(src):
        ranks, generation = [*ranks, int(found[1])], int(found[2])
    elif src != f"node{node}":
        return False
    return all(
        type(number) is int and type(generation) is int and may_have_rank(generations, generation, number, node)
        for number in ranks
    )


def _refuse_other_runs(names: str, run_events: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    """Raise RequestError for events that would be judged as a trial whose events were all lost."""

    jobs = [event.get("job") for event in run_events]
    if jobs and all(isinstance(job, dict) and "argv" in job for job in jobs):
        asked = any(message.get("kind") == "stack" for message in messages)
        places = f" Where the ranks were: lines of kind note and stack of {RECORD}." if asked else ""
        raise ProgramEventsError(
            f"{names}: these are the events of seatrial train or launch, and only a trial (seatrial run) is judged;"
            f" the output of the ranks is in the files rank*.log of that folder.{places}",
            messages,
        )
    if run_events and all(type(event.get("schema")) is int and event["schema"] != SCHEMA for event in run_events):
        raise RequestError(
            f"{names}: seatrial {run_events[0].get('version')} wrote these events, in schema"
            f" {run_events[0]['schema']}, and this version, {__version__}, reads schema {SCHEMA}; use that version."
            ""
        )


def _files(path: Path, named_folder: Path | None) -> Collection[Path]:
    try:
        try:
            files = event_files(path, named_folder)
        except NotADirectoryError:
            if not stat.S_ISREG(status_behind_links(path).st_mode):
                raise RequestError(f"{path}: neither a file nor a folder.") from None
            return [path]
        run = None if files else _newest_run_in(path)
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}).") from error
    if not files:
        hint = f"; name the folder of one run, such as {run}" if run else ""
        raise RequestError(f"{path}: no event file in this folder ({', '.join(_SUFFIXES)}){hint}.")
    return files


def _newest_run_in(out: Path) -> Path | None:
    """Return the folder of a run for a person who named the one above, if it is among the last names there."""
    names = sorted(names_in(out), reverse=True)[:_MOST_FOLDERS]
    folders = (out / name for name, status in statuses_in(out, names) if stat.S_ISDIR(status.st_mode))
    return next((folder for folder in folders if event_files(folder, out)), None)


def event_files(folder: Path, named_folder: Path | None = None) -> dict[Path, os.stat_result]:
    """Return the event files of a folder by name, with their status; links are none, in the folder of another they may
    lead anywhere.

    ``named_folder``: the one that a person has named, this one or one above; default: this one.
    """
    # Some files of the kernel are regular, and whoever reads them waits for ever.
    names = sorted(name for name in names_in(folder, named_folder) if Path(name).suffix in _SUFFIXES)
    found = statuses_in(folder, names, named_folder) if names else ()
    return {folder / name: status for name, status in found if stat.S_ISREG(status.st_mode)}
