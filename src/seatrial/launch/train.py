"""``train``: from the options to trained ranks, for the command line and for the file that travels."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial.errors import RequestError, SeatrialError
from seatrial.launch.conduct import caught_signals, conduct_program
from seatrial.launch.job import ProgramJob
from seatrial.launch.record import Recorder, new_folder
from seatrial.launch.train_request import resolve
from seatrial.probe.identity import identify
from seatrial.report.program import ProgramDisplay
from seatrial.report.streams import tell
from seatrial.report.text import printable

__all__ = ["run"]

_INTERRUPTED = 130


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Train as the options ask for; returns the exit code, unless this process becomes a rank."""
    identity = identify(os.environ)
    if identity.note:
        tell(f"seatrial: {identity.note}")
    request = resolve(options, identity, os.environ, debug=debug)
    if options["dry_run"]:
        print("\n".join(request.dry_run()), flush=True)
        return 0
    if request.speaks:
        tell(request.summary)
    if request.job is None:
        request.execute()
    assert request.job is not None
    return _hold(request.job, options["out"], debug=debug)


def _hold(job: ProgramJob, out: Path, *, debug: bool) -> int:
    run_id, folder = new_folder(out)
    job = replace(job, run=run_id)
    recorder = Recorder(run_id, folder)
    # Standard output is for the result alone.
    display = ProgramDisplay(sys.stderr, sys.stderr, prefix=job.output == "all")
    problem: Exception | None = None

    def keep(event: dict[str, Any]) -> None:
        recorder(event)
        display.keep(event)

    with caught_signals() as caught:
        try:
            conduct_program(job, folder, keep, display.hear, caught)
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
                f"a mistake inside seatrial ended the training ({type(problem).__name__}: {problem});"
                " run it again with --debug to see where, and report that."
            )
        )
    return _end(recorder.events, folder)


def _end(events: list[dict[str, Any]], folder: Path) -> int:
    """Tell how it ended; returns the exit code. Raises RequestError for what the ranks found wrong with the request."""
    outcome = next((event for event in reversed(events) if event.get("kind") == "outcome"), None)
    if outcome is None:
        raise SeatrialError(f"the training ended without an outcome; its events are in {folder}.")
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
            tell(f"seatrial: {outcome['text']} before the ranks had a result; all output is in {folder}.")
        return _INTERRUPTED
    code = int(outcome["code"])
    return code if code in (0, 2, _INTERRUPTED) else 1
