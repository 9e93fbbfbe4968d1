"""A program held on a target: what ``train`` and ``launch`` have in common, from the job to the exit code."""

from __future__ import annotations

import contextlib
import shlex
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial.errors import RequestError, SeatrialError
from seatrial.launch.command import pasted
from seatrial.launch.conduct import caught_signals, conduct_program
from seatrial.launch.job import ProgramJob
from seatrial.launch.joined import UNPROTECTED, Meeting
from seatrial.launch.option import Option, is_given
from seatrial.launch.record import Recorder, new_folder
from seatrial.launch.targets import TARGETS, would_start
from seatrial.report.program import ProgramDisplay
from seatrial.report.streams import tell
from seatrial.report.text import printable

__all__ = ["INTERRUPTED", "dry_run", "flag", "hold", "processes", "refuse_decided", "refuse_numbers"]

INTERRUPTED = 130


def refuse_numbers(values: Mapping[str, Any], least: Mapping[str, int]) -> None:
    """Raises RequestError for an option below its least value, and for a ``--grace`` that is no time."""
    for name, low in {"nproc_per_node": 1, "max_restarts": 0, **least}.items():
        if values[name] is not None and values[name] < low:
            raise RequestError(f"{flag(name)} {values[name]}: it must be {low} or more.")
    if not 0 <= values["grace"] < 1e7:
        raise RequestError(f"--grace {values['grace']:g}: a number of seconds from 0 is expected.")


def flag(name: str) -> str:
    """An option as it is typed."""
    named = {"total_epochs": "TOTAL_EPOCHS", "save_after": "SAVE_EVERY"}
    return named.get(name) or f"--{name.replace('_', '-')}"


def refuse_decided(
    values: Mapping[str, Any], options: Sequence[Option], names: Iterable[str], who: str, why: Mapping[str, str]
) -> None:
    """Raises RequestError for the first of the options that is given although it is not ours to decide.

    ``who``: in which case, such as "under torchrun"; ``why``: by the option's name, or by nothing.
    """
    known = {option.name: option for option in options}
    for name in names:
        if is_given(known[name], values[name]):
            given = flag(name) if values[name] is True else f"{flag(name)} {values[name]}"
            raise RequestError(f"{given} {who}: {why.get(name) or why['']}.")


def processes(number: int) -> str:
    """So many processes, in words."""
    return "1 process" if number == 1 else f"{number} processes"


def dry_run(job: ProgramJob, out: Path) -> list[str]:
    """What would be executed, a line each."""
    commands = would_start(job, out)
    if TARGETS[job.target].calls_again:
        return commands
    started = f"the one process of each of {job.nodes} nodes" if job.per_node else f"each of the {job.world_size} ranks"
    return [
        *commands,
        f"# {started}, started by its agent, in {shlex.quote(job.cwd)} where there is one, with RANK and so on set:",
        pasted(job.env, (*job.argv, *job.args)),
    ]


def hold(job: ProgramJob, out: Path, *, debug: bool, meeting: Meeting | None = None) -> int:
    """Conduct the program; returns the exit code. Raises RequestError for what ranks found wrong with the request."""
    if meeting is not None and not meeting.protected:
        tell(UNPROTECTED)
    run_id, folder = new_folder(out)
    job = replace(job, run=run_id)
    recorder = Recorder(run_id, folder)
    # Standard output is for the result of a training, and for what a script says.
    display = ProgramDisplay(sys.stderr if job.watched else sys.stdout, sys.stderr, prefix=job.output == "all")
    problem: Exception | None = None

    def keep(event: dict[str, Any]) -> None:
        recorder(event)
        display.keep(event)

    def hear(message: dict[str, Any]) -> None:
        recorder.tell(message)
        is_output = message.get("kind") == "output"
        if not is_output or job.output == "all" or (job.output == "rank0" and message["rank"] == 0):
            display.hear(message)

    with caught_signals() as caught:
        try:
            conduct_program(job, folder, keep, hear, caught, meeting)
        except Exception as error:
            problem = error
            if debug:
                tell(traceback.format_exc())
        finally:
            recorder.close()
            display.close()
    if problem is not None:
        raise (
            problem
            if isinstance(problem, SeatrialError)
            else SeatrialError(
                f"a mistake inside seatrial ended the job ({type(problem).__name__}: {problem});"
                " run it again with --debug to see where, and report that."
            )
        )
    return _end(recorder.events, folder)


def _end(events: list[dict[str, Any]], folder: Path) -> int:
    """Tell how it ended; returns the exit code."""
    outcome = next((event for event in reversed(events) if event.get("kind") == "outcome"), None)
    if outcome is None:
        raise SeatrialError(f"the job ended without an outcome; its events are in {folder}.")
    generation = outcome["gen"]
    results = [event for event in events if event.get("kind") == "result" and event.get("gen") == generation]
    lines: list[str] = next((event["lines"] for event in results if event.get("rank") == 0), [])
    if lines and outcome["how"] in ("ended", "interrupted"):
        restarts = outcome["restarts"]
        if restarts:
            lines = [*lines, f"restarts: {restarts}"]
        # Whether somebody reads it or not, the exit code stays that of the training.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print("\n".join(printable(str(line)) for line in lines), flush=True)
    if outcome["how"] == "refused":
        raise RequestError(printable(outcome["text"]))
    if outcome["how"] == "absent":
        raise SeatrialError(f"{printable(outcome['text'])}; its output is in {folder}.")
    if outcome["how"] == "failed":
        for line in outcome["last_lines"]:
            tell(f"  {printable(line)}")
        tell(f"Error: {printable(outcome['text'])}; all output is in {folder}.")
        return 1
    if outcome["how"] == "interrupted":
        if not lines:
            tell(f"seatrial: {outcome['text']} before the ranks had ended; all output is in {folder}.")
        return INTERRUPTED
    code = int(outcome["code"])
    return code if code in (0, 2, INTERRUPTED) else 1
