"""Writing the reports of a run: each file atomically, and never over those of another run."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from seatrial.errors import RequestError
from seatrial.files import (
    has_entry,
    kind_of,
    open_to_read,
    remove,
    replacement,
    status_behind_links,
    status_of_entry,
    statuses_in,
    write_atomically,
)
from seatrial.folders import NotPrivateError, make_folder, make_folders, new_temporary_folder, open_with_links
from seatrial.judge.conclude import Conclusion
from seatrial.report import formats
from seatrial.report.recorded_events import RECORD, event_files
from seatrial.start import ForeignError
from seatrial.util.text import format_time

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NO_RUN = "unknown-run"
_DOCUMENT, _PAGE = "json", "html"
"""The format that identifies the trial of a folder, and the one for people."""
_BEGINNING_BYTES = 4 << 10
"""Bytes of a report that have its first lines, with the time of its trial. All of somebody else's file, decoded, may
take thirty times its size in memory."""
_TIME = re.compile(rb'\{\n(?: "\w+": .*\n){1,8} "test_timestamp": "([0-9: -]+)",\n')
_LATEST = "cluster_test_report.json"
# Loaded at import: at the end of a trial it would be too late to fail.
_FORMATS = formats.load()


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The paths of the written reports."""

    folder: Path
    files: Mapping[str, Path]
    """The file of each format, by the name of the format."""
    latest: Path
    """A copy of the newest JSON report, at a path that never changes."""
    not_copied: str = ""
    """Why there is no such copy of this report, as a sentence."""

    @property
    def document(self) -> Path:
        """The JSON report, for programs."""
        return self.files[_DOCUMENT]

    @property
    def best(self) -> Path:
        """The report for people: the page, or the JSON report where the page was left out."""
        return self.files.get(_PAGE, self.document)


def write_reports(conclusion: Conclusion, out: Path, sources: Sequence[Path] | None = None) -> Written:
    """Write all formats into ``out/<run-id>``. Raises RequestError if that fails or is the folder of another trial.

    ``sources``: the files and folders from which the events were read; None: this process has recorded them.
    """
    run = conclusion.trial.run or _NO_RUN
    if not _RUN.fullmatch(run) or run == _LATEST:
        raise RequestError(f"the run id in the events is {run[:60]!r}, which cannot be the name of a folder.")
    folder = out / run
    written = Written(
        folder=folder,
        files={name: folder / report_format.file for name, report_format in _FORMATS.items()},
        latest=out / _LATEST,
    )
    texts = {name: report_format.text(conclusion) for name, report_format in _FORMATS.items()}
    with ExitStack() as held:
        try:
            make_folders(out)
            opened, link = open_with_links(out)
            held.callback(os.close, opened)
            # All of it into one folder, whoever exchanges it meanwhile.
            way = Path(f"/proc/self/fd/{opened}")
            _refuse_another(written, way, format_time(conclusion.trial.created), sources)
            # With ``exist_ok`` it would ask what another user has mounted there.
            with suppress(FileExistsError):
                make_folder(way / run)
            _replace(way / run, {_FORMATS[name].file: _encoded(text) for name, text in texts.items()})
        except OSError as error:
            raise RequestError(
                f"--out {out}: the report cannot be written there ({error.strerror or error}); name another folder."
            ) from error
        if sources is None and has_entry(way / _LATEST) and not has_entry(way / run / RECORD, way):
            # A neighbor may have put another folder of this user in its place, with the newest report of other hosts.
            return replace(
                written,
                not_copied=f"{written.latest} is no copy of this report: {out} is another folder than when this run "
                "began, so that file stays as it is.",
            )
        if link and has_entry(way / _LATEST):
            return replace(
                written,
                not_copied=f"{written.latest} is no copy of this report: {link}, which may lead to the newest report of"
                " other hosts, so that file stays as it is; name that folder by its own path with --out.",
            )
        try:
            write_atomically(way / _LATEST, _encoded(texts[_DOCUMENT]))
        except OSError as error:
            return replace(written, not_copied=_not_copied(written.latest, way, error))
    return written


def _replace(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Replace all of these files of a run, or raise OSError: a part of a report could say something else than the whole
    one, which is then elsewhere. All are on the disk, and have a place, before the first is replaced, so that a full
    disk, or a folder of such a name, keeps the old report.
    """
    with ExitStack() as held:
        replacements = {
            name: held.enter_context(replacement(folder / name, content)) for name, content in contents.items()
        }
        _require_places(folder, contents)
        replaced: list[Path] = []
        try:
            # The document first: without one, the other files are not ours.
            for name in sorted(contents, key=lambda name: name != _FORMATS[_DOCUMENT].file):
                replacements[name]()
                replaced.append(folder / name)
        except OSError:
            _remove(reversed(replaced))
            raise


def _require_places(folder: Path, names: Collection[str]) -> None:
    """Raise OSError where no file can replace what has one of these names."""
    found = dict(statuses_in(folder, names, folder.parent))  # without what is mounted there
    for name in names:
        if stat.S_ISDIR(found[name].st_mode) if name in found else has_entry(folder / name, folder.parent):
            raise OSError(errno.EBUSY, f"{name} is a folder or a mount, which no file can replace")


def _remove(paths: Iterable[Path]) -> None:
    """Remove files that were written just now, but nothing that others have put in their places."""
    for path in paths:
        with suppress(OSError):
            remove(path, run_folder=True, only_ours=True)


def _not_copied(path: Path, way: Path, error: OSError) -> str:
    try:
        status = status_of_entry(way / path.name)
        there = f", and what lies there is {kind_of(status)} of user {status.st_uid}"
    except ForeignError as foreign:
        there = f": {foreign.strerror}"
    except OSError:
        there = ""
    return f"{path} is no copy of this report ({error.strerror or error}){there}."


def write_somewhere(conclusion: Conclusion, out: Path, problem: str) -> tuple[Written | None, str]:
    """Write all formats into ``out``, or into a new temporary folder if that fails.

    Returns the paths, None if both failed, and the problem in words, empty if there was none. The measurements of a
    whole trial must not be lost because one folder is full.

    ``problem``: why nothing can be written into ``out``; empty: nothing is known against it.
    """
    try:
        if not problem:
            return write_reports(conclusion, out), ""
    except RequestError as error:
        problem = str(error)
    try:
        try:
            fallback = Path(new_temporary_folder())
        except NotPrivateError:  # As in a pod. One that somebody could exchange is better than none.
            fallback = Path(tempfile.mkdtemp(prefix="seatrial-"))
        return write_reports(conclusion, fallback), f"{problem} The report is in {fallback} instead."
    except (OSError, RequestError):
        return None, problem


def write_again(conclusion: Conclusion, written: Written) -> Written | None:
    """Write all formats anew into a temporary folder of ``write_somewhere``; return None if that fails.

    The old ones go first: they are not true any more, and a full disk may have room for one report only.
    """
    _remove((*written.files.values(), written.latest))
    try:
        return write_reports(conclusion, written.folder.parent, [written.folder])
    except RequestError:
        return None


def find_written(conclusion: Conclusion, paths: Sequence[Path]) -> Written | None:
    """Return the reports of this conclusion that lie in the only folder of the paths; None where there are none.

    Other files of these names may have another verdict, and in the folder of a stranger scripts that a browser runs.
    """
    folder = paths[0]
    files = {name: folder / _FORMATS[name].file for name in (_DOCUMENT, _PAGE)}
    if len(paths) > 1 or not _holds(files[_DOCUMENT], _FORMATS[_DOCUMENT].text(conclusion)):
        return None
    if not _holds(files[_PAGE], _FORMATS[_PAGE].text(conclusion)):
        del files[_PAGE]
    return Written(folder=folder, files=files, latest=folder.parent / _LATEST)


def _holds(path: Path, text: str) -> bool:
    content = _encoded(text)
    try:
        with open_to_read(path, follows_links=False) as file:
            return file.read(len(content) + 1) == content
    except OSError:
        return False


def _refuse_another(written: Written, way: Path, timestamp: str, sources: Sequence[Path] | None) -> None:
    """Raise RequestError if the folder has the report of another trial, or files of these names that are no reports.

    The same trial may be reported again. Its events name the folder, and the events may be those of somebody else, who
    has copied the name and the time of a run: beside its own events a report is replaced only if they were read, too.

    ``way``: to the folder above by its descriptor, through which the reports are written, too.
    """
    path, folder = written.document, way / written.folder.name
    try:
        with open_to_read(folder / path.name, follows_links=False, named_folder=way) as file:
            found = _TIME.match(file.read(_BEGINNING_BYTES))
        same = found is not None and found[1] == timestamp.encode()
    except (FileNotFoundError, NotADirectoryError):
        if other := next((file for file in written.files.values() if has_entry(folder / file.name, way)), None):
            raise RequestError(
                f"{other} lies there without a {path.name} of this trial; name another folder with --out."
            ) from None
        return
    except OSError:
        same = False
    if not same:
        raise RequestError(f"{path} holds the report of another trial; name another folder with --out.")
    if sources is not None and not _are_read(folder, sources):
        raise RequestError(
            f"{path} is the report of the events beside it, which were not given; give {written.folder}, too, or name"
            " another folder with --out."
        )


def _are_read(folder: Path, sources: Sequence[Path]) -> bool:
    """Return whether a folder has no events, or some of the sources are its."""
    try:
        status = status_behind_links(folder, folder.parent)
        return not event_files(folder, folder.parent) or any(
            os.path.samestat(_status_of_folder(source), status) for source in sources
        )
    except OSError:
        return False


def _status_of_folder(source: Path) -> os.stat_result:
    """Return the status of a folder that a person named, or of that of a file."""
    try:
        return status_behind_links(source, source)
    except NotADirectoryError:
        return status_behind_links(source.parent, source.parent)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
