"""``run``: from a request to its verdict, for the command line and for the file that travels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seatrial.launch import joined
from seatrial.launch.command import pasted
from seatrial.launch.job import Job
from seatrial.launch.joined import Meeting
from seatrial.launch.request import job_of, request_of
from seatrial.launch.targets import would_start
from seatrial.probe.identity import Identity, identify
from seatrial.report.streams import tell

__all__ = ["run"]


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Hold the trial that the options ask for, as controller or as one of many; returns the exit code."""
    request = request_of(options)
    identity = identify(os.environ)
    if identity.note:
        tell(f"seatrial: {identity.note}")
    meeting = joined.meet(identity, os.environ) if joined.is_one_of_many(identity) else None
    # All processes of a job read the same request, so a wrong one ends them all alike.
    job, where = job_of(request, identity, meeting)
    if request.where.dry_run:
        print("\n".join(_dry_run(job, request.out, identity, meeting)), flush=True)
        return 0
    if meeting is not None:
        os.environ.update(joined.agent_environ(identity))
        if meeting.number > 0:
            joined.become_agent(job, meeting)
    # Here: --dry-run does without, and is to be quick.
    from seatrial.launch.hold import hold

    return hold(job, request.out, meeting, where=where, as_json=request.as_json, debug=debug)


def _dry_run(job: Job, out: Path, identity: Identity, meeting: Meeting | None) -> list[str]:
    if meeting is None:
        return would_start(job, out)
    keep = str(out / "RUN-ID") if meeting.number == 0 else ""
    command = joined.agent_command(job, meeting.number, control=meeting.control, token="TOKEN", keep=keep)
    return [pasted({**joined.agent_environ(identity), **command.env}, command.argv)]
