"""Run a trial: conduct and record it, show its progress, write its report."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial.devices.handed import HandedFile
from seatrial.errors import RequestError, SeatrialError
from seatrial.files import names_in, remove
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.protocol.own_errors import lack_words
from seatrial.report.interim import Interim
from seatrial.report.progress import Progress
from seatrial.report.report_line import print_report_line
from seatrial.report.show import wrong_request
from seatrial.report.write import Written, write_again, write_somewhere
from seatrial.run.conduct import catch_signals, conduct
from seatrial.run.external_launcher import Rendezvous, warn_unprotected
from seatrial.run.handed_files import events_of
from seatrial.run.record import Recorder, new_folder
from seatrial.run.run_program import process_count
from seatrial.start import open_named_folder
from seatrial.targets.job import Job
from seatrial.util.streams import print_status, print_status_lines


def run_trial(
    job: Job,
    out: Path,
    rendezvous: Rendezvous | None,
    handed: Collection[HandedFile],
    *,
    location: str,
    show: Callable[[Conclusion, Written | None], int],
    quiet: bool,
    debug: bool,
) -> int:
    """Conduct the trial, write and print its report, and return the exit code of the verdict.

    Failures of seatrial itself are in the report too. Raises RequestError when the reports cannot be written, for what
    a launcher found wrong with the request before any node joined (without a report), and for what ranks found wrong
    with it, after the report was written.

    Args:
        job: the trial, without the name of its run.
        out: folder for the reports.
        rendezvous: given where a launcher has started the other agents.
        handed: what other tools wrote.
        location: where the trial runs, as a phrase: "on this machine".
        show: prints the report and returns the exit code.
        quiet: print nothing before the report.
        debug: print tracebacks.
    """
    run_id, folder = new_folder(out)
    job = replace(job, run=run_id)
    if not quiet:
        for line in _summary(job, location):
            print_status(line)
    if rendezvous is not None:
        warn_unprotected(rendezvous)
    recorder = Recorder(run_id, folder)
    progress = Progress(None if quiet else sys.stderr)
    interim = Interim(out)

    def on_event(event: dict[str, Any]) -> None:
        recorder(event)
        progress(event)
        interim(event, recorder.events)

    with catch_signals() as signals:
        try:
            for event in events_of(run_id, handed):
                recorder(event)
            damaged = conduct(job, folder, on_event, signals, rendezvous, recorder.send)
            if damaged:
                recorder.note(f"lines cut or changed on their way to the conductor: {damaged}")
        except Exception as error:
            recorder.note(_reason(error), is_request=isinstance(error, RequestError))
            if debug:
                print_status_lines(traceback.format_exc())
        finally:
            recorder.close()
            progress.close()
        conclusion = conclude(recorder.events)
        refused = wrong_request(conclusion)
        if refused and not conclusion.trial.nodes and not conclusion.trial.errors:
            # Nothing of the cluster was seen: no report, which would lie beside those that are handed over.
            _remove(folder, recorder.path)
            raise RequestError(refused)
        written, problem = write_somewhere(conclusion, out, interim.close())
        if problem:
            recorder.note(problem)
            conclusion = conclude(recorder.events)
            if written is not None:
                # The files that were written do not contain this problem yet.
                written = write_again(conclusion, written)
        if refused:
            raise RequestError(refused)
        print_report_line(conclusion, os.environ)
        return show(conclusion, written)


def _remove(folder: Path, events: Path) -> None:
    """Remove the folder of a run that holds nothing but our own events; what a launcher wrote stays."""
    with contextlib.suppress(OSError):
        above = open_named_folder(folder.parent)
        try:
            way = Path(f"/proc/self/fd/{above}", folder.name)
            if names_in(way, way.parent) == [events.name]:
                remove(way / events.name, run_folder=True)
                os.rmdir(folder.name, dir_fd=above)
        finally:
            os.close(above)


def _reason(error: Exception) -> str:
    if isinstance(error, SeatrialError):
        return str(error)
    return lack_words(error) or (
        f"a bug in seatrial ended the trial ({type(error).__name__}: {error});"
        " run it again with --debug for the traceback, and please report it"
    )


def _summary(job: Job, location: str) -> tuple[str, str]:
    """Return what was taken of the request, and the checks."""
    backend = job.backend if job.backend != "auto" else "gloo" if job.device == "cpu" else "nccl"
    return (
        f"seatrial {job.plan.name}: {process_count(job.world_size)} {location} ({job.device}, {backend}),"
        f" at most {job.plan.deadline_s.value:.0f} s"
        + (f"; options: {shlex.join(job.options)}" if job.options else ""),
        f"checks: {', '.join(job.plan.checks)}",
    )
