"""``seatrial report``: judge a trial again, from its recorded events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.cli.command import Command
from seatrial.targets.option import Option


def options() -> Mapping[str, tuple[Option, ...]]:
    """Return the options by the heading under which help shows them."""
    from pathlib import Path

    from seatrial.request.trial_options import REPORT

    return {
        "Options": (
            Option(
                flags=(),
                name="paths",
                help="Event files, the folder of a run, or raw logs that contain its events.",
                type=Path,
                metavar="PATH...",
                multiple=True,
                required=True,
            ),
            *REPORT,
            Option(
                flags=("--out",),
                name="out",
                help="Folder for the reports; they go into a subfolder named after the run.",
                type=Path,
                metavar="DIR",
            ),
        )
    }


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Judge the events in the paths again; return the exit code of the verdict."""
    from seatrial.judge.conclude import conclude
    from seatrial.report.recorded_events import read_events
    from seatrial.report.show import show
    from seatrial.report.write import find_written, write_reports

    messages, damaged = read_events(options["paths"])
    conclusion = conclude(messages, damaged=damaged)
    written = write_reports(conclusion, options["out"]) if options["out"] else find_written(options["paths"])
    return show(conclusion, written, as_json=options["as_json"], verbose=options["verbose"], quiet=options["quiet"])


COMMAND = Command(
    name="report",
    order=3,
    summary="rebuild a report from events or raw logs",
    text="""Rebuild the report of a trial from PATHs and answer with its verdict.

A PATH is an event file, the folder of a run, or a raw log that contains its events (kubectl logs, the output of a job).
seatrial merges what all of them contain; copies and order do not matter. Exit code: the same as for seatrial run.
""",
    options=options,
    run=run,
)
