"""Holding a trial: conducted, recorded, shown while it runs, and told at its end."""

from __future__ import annotations

import contextlib
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial.conductor.conclude import conclude
from seatrial.errors import RequestError, SeatrialError
from seatrial.launch.conduct import caught_signals, conduct
from seatrial.launch.job import Job
from seatrial.launch.joined import UNPROTECTED, Meeting
from seatrial.launch.program import processes
from seatrial.launch.record import Recorder, new_folder
from seatrial.report.interim import Interim
from seatrial.report.progress import Progress
from seatrial.report.show import show, wrong_request
from seatrial.report.streams import tell
from seatrial.report.write import write_reports, write_somewhere

__all__ = ["hold"]


def hold(job: Job, out: Path, meeting: Meeting | None, *, where: str, as_json: bool, debug: bool) -> int:
    """Conduct the trial, write and print its report; returns the exit code of the verdict.

    Whatever goes wrong with ourselves is told in the report, too. Raises RequestError when the reports cannot be
    written to ``out``, and for what ranks or launchers found wrong with the request, after the report was written.
    """
    run_id, folder = new_folder(out)
    job = replace(job, run=run_id)
    tell(_summary(job, where))
    if meeting is not None and not meeting.protected:
        tell(UNPROTECTED)
    recorder = Recorder(run_id, folder)
    refused: str | None = None
    progress = Progress(sys.stderr)
    interim = Interim(out)

    def keep(event: dict[str, Any]) -> None:
        recorder(event)
        progress(event)
        interim(event, recorder.events)

    with caught_signals() as caught:
        try:
            damaged = conduct(job, folder, keep, caught, meeting, recorder.tell)
            if damaged:
                recorder.note(f"lines cut or changed on their way to the conductor: {damaged}")
        except Exception as error:
            recorder.note(_own(error))
            refused = str(error) if isinstance(error, RequestError) else None
            if debug:
                tell(traceback.format_exc())
        finally:
            recorder.close()
            progress.close()
        conclusion = conclude(recorder.events)
        refused = wrong_request(conclusion, refused)
        written, problem = write_somewhere(conclusion, out)
        if problem:
            recorder.note(problem)
            conclusion = conclude(recorder.events)
            if written is not None:
                # What stands there says nothing of this yet.
                with contextlib.suppress(RequestError):
                    write_reports(conclusion, written.folder.parent)
        if refused:
            raise RequestError(refused)
        return show(conclusion, written, as_json=as_json)


def _own(error: Exception) -> str:
    if isinstance(error, SeatrialError):
        return str(error)
    return (
        f"a mistake inside seatrial ended the trial ({type(error).__name__}: {error});"
        " run it again with --debug to see where, and report that"
    )


def _summary(job: Job, where: str) -> str:
    backend = job.backend if job.backend != "auto" else "gloo" if job.device == "cpu" else "nccl"
    return (
        f"seatrial {job.plan.name}: {processes(job.world_size)} {where} ({job.device}, {backend}),"
        f" {', '.join(job.plan.checks)}; at most {job.plan.deadline_s.value:.0f} s"
    )
