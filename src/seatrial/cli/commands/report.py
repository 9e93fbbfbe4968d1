"""``seatrial report``: judge a trial again, from its recorded events."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from seatrial.cli.command import Command
from seatrial.targets.option import Option

if TYPE_CHECKING:
    from pathlib import Path

    from seatrial.devices.handed import HandedFile
    from seatrial.report.recorded_events import ProgramEventsError


def options() -> Mapping[str, tuple[Option, ...]]:
    """Return the options by the heading under which help shows them."""
    from pathlib import Path

    from seatrial.request.trial_options import EVIDENCE, REPORT

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
            EVIDENCE,
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
    from seatrial.cli.command import commands, options_of
    from seatrial.judge.conclude import conclude
    from seatrial.report.recorded_events import ProgramEventsError, read_events
    from seatrial.report.show import show
    from seatrial.report.write import find_written, write_reports
    from seatrial.run.handed_files import read_evidence

    try:
        messages, damaged = read_events(options["paths"])
    except ProgramEventsError as error:
        return _show_ending(error, options["paths"][0], is_quiet=options["quiet"])
    if handed := read_evidence(options["evidence"]):
        messages += _events_of_handed(handed, messages)
    conclusion = conclude(messages, damaged=damaged)
    paths, out = options["paths"], options["out"]
    written = write_reports(conclusion, out, paths) if out else find_written(conclusion, paths)
    return show(
        conclusion,
        written,
        as_json=options["as_json"],
        verbose=options["verbose"],
        quiet=options["quiet"],
        foreign=[flag for option in options_of(commands()["run"]) if not option.flag for flag in option.flags],
    )


def _show_ending(error: ProgramEventsError, path: Path, *, is_quiet: bool) -> int:
    """Print how a program ended, as its command did, and return the exit code. Raises the error where it is unknown."""
    from seatrial.report.program_ending import ending, lines, print_ending
    from seatrial.util.streams import print_status

    folder = path if path.is_dir() else path.parent
    has_output = next(folder.glob("rank*.log"), None) is not None
    end = ending(error.events, str(folder) if has_output else "")
    if end is None:
        raise error
    if not is_quiet:
        print_status(f"seatrial: {error}")
    print_ending([*lines(end)][-1 if is_quiet else 0 :])
    return error.exit_code


def _events_of_handed(handed: Collection[HandedFile], messages: Collection[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the events of files that were handed over now; those that the run has kept are known."""
    from seatrial.checks.diagnostics.history import NAME
    from seatrial.errors import RequestError
    from seatrial.run.handed_files import events_of

    run = next((message for message in messages if message.get("kind") == "run"), {})
    plan = run.get("plan")
    checks = plan.get("checks") if isinstance(plan, dict) else None
    if not isinstance(checks, list) or NAME not in checks:
        raise RequestError(f"--evidence: the check {NAME} judges such files, and this trial did without it.")
    known = {src for message in messages if isinstance(src := message.get("src"), str)}
    return [event for event in events_of(str(run.get("run")), handed) if event["src"] not in known]


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
