"""Writing the reports of a run: each file whole or not at all, and never over another run's."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from seatrial.conductor.conclude import Conclusion
from seatrial.errors import RequestError
from seatrial.report.document import document, to_text
from seatrial.report.files import replace
from seatrial.report.parts import optional

__all__ = ["Written", "write_reports", "write_somewhere"]

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NO_RUN = "unknown-run"


def _formats() -> dict[str, Callable[[Conclusion], str]]:
    names = {"report.html": "html", "junit.xml": "junit"}
    modules = {file: (name, optional(name)) for file, name in names.items()}
    return {file: getattr(module, name) for file, (name, module) in modules.items() if module is not None}


# Loaded now: at the end of a trial it would be too late to find that one cannot be.
_FORMATS = _formats()
"""File in the folder of the run -> what makes its text, beside the JSON: those that we have here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Where the reports are."""

    folder: Path
    json: Path
    html: Path | None
    """None where what makes it was left out."""
    junit: Path | None
    latest: Path
    """Copy of the JSON report that was written last, at a path that never changes."""

    @property
    def best(self) -> Path:
        """What a person opens."""
        return self.html or self.json


def write_reports(conclusion: Conclusion, out: Path) -> Written:
    """Write all formats into ``out/<run-id>``. Raises RequestError when that cannot be, or is another run's folder."""
    run = conclusion.trial.run or _NO_RUN
    if not _RUN.fullmatch(run):
        raise RequestError(f"the events are of a run named {run[:60]!r}, which cannot be the name of a folder.")
    found = document(conclusion)
    text = to_text(found)
    folder = out / run
    made = {file: folder / file for file in _FORMATS}
    paths = Written(
        folder=folder,
        json=folder / "report.json",
        html=made.get("report.html"),
        junit=made.get("junit.xml"),
        latest=out / "cluster_test_report.json",
    )
    _refuse_another(paths.json, found["test_timestamp"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, render in _FORMATS.items():
            _write(made[file], render(conclusion))
        _write(paths.json, text)
        _write(paths.latest, text)
    except OSError as error:
        raise RequestError(
            f"--out {out}: the report cannot be written there ({error.strerror or error}); name another folder."
        ) from error
    return paths


def write_somewhere(conclusion: Conclusion, out: Path) -> tuple[Written | None, str]:
    """Write all formats into ``out``, else into a new temporary folder; and what went wrong, if anything did.

    At the end of a trial nothing that was measured may be lost for want of space in one folder.
    """
    try:
        return write_reports(conclusion, out), ""
    except RequestError as error:
        problem = str(error)
    try:
        elsewhere = Path(tempfile.mkdtemp(prefix="seatrial-"))
        return write_reports(conclusion, elsewhere), f"{problem} The report is in {elsewhere} instead."
    except (OSError, RequestError):
        return None, problem


def _refuse_another(path: Path, timestamp: str) -> None:
    """The same run may be told again, better (more events, other limits); another run may not take its place."""
    try:
        before = json.loads(path.read_text("utf-8"))
        same = before["test_timestamp"] == timestamp
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        same = False
    if not same:
        raise RequestError(f"{path} holds the report of another trial; name another folder with --out.")


def _write(path: Path, text: str) -> None:
    replace(path, text.encode("utf-8", "backslashreplace"))
