"""``seatrial report``: judge a trial again from what was kept of it."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import click

from seatrial import __version__
from seatrial.errors import RequestError
from seatrial.verdict.events import SCHEMA

__all__ = ["report"]

_LARGEST_BYTES = 1 << 30
_ENDINGS = (".events", ".jsonl")


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print the report alone, as JSON.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the reports there, in a folder named for the run.")
def report(paths: tuple[Path, ...], as_json: bool, out: Path | None) -> int:
    """Rebuild the report of a trial from PATHs, and answer with its verdict.

    A PATH is a file of events, the folder of a run, or a raw log that has our lines in it (kubectl logs, the output of
    a job). What all of them tell is put together; copies and order do not matter. Exit code: as of seatrial run.
    """
    from seatrial.conductor.conclude import conclude
    from seatrial.report.show import show
    from seatrial.report.write import write_reports

    messages, damaged = _read(paths)
    conclusion = conclude(messages, damaged=damaged)
    return show(conclusion, write_reports(conclusion, out) if out else None, as_json=as_json)


def _read(paths: tuple[Path, ...]) -> tuple[list[dict[str, Any]], int]:
    """All messages, and how many lines were damaged. One decoder for all: a log may be cut between two parts."""
    from seatrial.verdict.wire import Decoder

    decoder = Decoder()
    messages: list[dict[str, Any]] = []
    room = _LARGEST_BYTES
    for path in paths:
        for file in _files(path):
            try:
                room -= file.stat().st_size
                if room < 0:
                    raise RequestError(
                        f"{file}: more than {_LARGEST_BYTES >> 30} GiB in all; give the files of events."
                    )
                with file.open("rb") as text:
                    messages += [message for line in text if (message := decoder.line(line)) is not None]
            except OSError as error:
                raise RequestError(f"{file}: it cannot be read ({error.strerror or error}).") from error
    names = ", ".join(map(str, paths))
    if not messages:
        raise RequestError(f"{names}: there are no events of seatrial in it; give *.events files or logs of the trial.")
    begun = [message for message in messages if message.get("kind") == "run"]
    _refuse_other_runs(names, begun)
    runs = sorted({str(message.get("run")) for message in begun})
    if len(runs) > 1:
        raise RequestError(
            f"{names}: events of {len(runs)} runs ({', '.join(map(repr, runs[:4]))}); give those of one."
        )
    return messages, decoder.damaged


def _refuse_other_runs(names: str, begun: list[dict[str, Any]]) -> None:
    """Raises RequestError for events that would be judged as a trial of which everything was lost."""
    jobs = [each.get("job") for each in begun]
    if jobs and all(isinstance(job, dict) and "argv" in job for job in jobs):
        raise RequestError(
            f"{names}: these are the events of seatrial train or launch, and only a trial (seatrial run) is judged;"
            " what the ranks said is in the files rank*.log beside them."
        )
    if begun and all(type(each.get("schema")) is int and each["schema"] != SCHEMA for each in begun):
        raise RequestError(
            f"{names}: seatrial {begun[0].get('version')} wrote these events, in schema {begun[0]['schema']}, and this"
            f" one, {__version__}, reads schema {SCHEMA}; make the report with that version."
        )


def _files(path: Path) -> list[Path]:
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return [path]
        if not stat.S_ISDIR(mode):
            raise RequestError(f"{path}: it is neither a file nor a folder.")
        found = _events_in(path)
        runs = () if found else sorted(entry for entry in path.iterdir() if entry.is_dir() and _events_in(entry))
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: it cannot be read ({getattr(error, 'strerror', None) or error}).") from error
    if not found:
        hint = f"; name one run of those in it, such as {runs[-1]}" if runs else ""
        raise RequestError(f"{path}: there is no file of events in that folder ({', '.join(_ENDINGS)}){hint}.")
    return found


def _events_in(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.suffix in _ENDINGS and entry.is_file())
