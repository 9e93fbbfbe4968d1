"""Download of published data sets: each file once per folder, however many processes ask, complete and verified.

A file grows as ``NAME.part`` in the same folder and gets its name when its SHA-256 is right. Since the digest decides,
any mirror may continue a part; a part that turns out wrong is downloaded again once. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from seatrial.errors import RequestError, SeatrialError
from seatrial.files import (
    has_entry,
    open_lock,
    open_to_append,
    open_to_read,
    other_holders,
    remove,
    rename_durably,
    write_holder,
)
from seatrial.folders import leading_link, led_by, make_folder, make_folders
from seatrial.start import open_named_folder, reached
from seatrial.training.data.datasets import DataSet, Download
from seatrial.training.data.transfer import BrokenTransferError, RefusedTransferError, size_of, transfer

_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time limits of a fetch."""

    idle_s: float = 30.0
    """Seconds to wait for an answer, and for each next byte."""
    total_s: float = 3600.0
    """Seconds for one file."""
    lock_s: float = 3660.0
    """Seconds to wait for another process that fetches the same file."""
    rounds: int = 3
    """Rounds through all mirrors without a new byte before it gives up."""
    pause_s: float = 1.0
    """Seconds to wait after such a round; twice as long after the next."""


def fetch(
    dataset: DataSet,
    folder: Path,
    *,
    print_status: Callable[[str], None],
    on_bytes: Callable[[Download, int], None],
    patience: Patience | None = None,
) -> list[Path]:
    """Fetch all files of a data set into ``folder``/NAME and return their paths. Correct files stay; others are
    replaced.

    Raises SeatrialError when a file cannot be fetched; its part stays for the next try.

    Args:
        dataset: The data set.
        folder: Parent of the data set's folder.
        print_status: Called with lines for a person.
        on_bytes: Called with the number of bytes of a file that have arrived.
        patience: Time limits; None: the defaults.
    """
    place = folder / dataset.name
    for download in dataset.downloads:
        try:
            with _opened(dataset.name, folder) as (opened, link):
                job = _Job(
                    download=download,
                    folder=opened,
                    place=place,
                    link=link,
                    mirrors=dataset.mirrors,
                    print_status=print_status,
                    on_bytes=on_bytes,
                    patience=patience or Patience(),
                )
                with _locked(job):
                    _ensure_target(job)
        except OSError as error:
            raise SeatrialError(
                f"cannot write {download.name} to {place} ({error.strerror or error}); "
                "fix that, or name another directory with --data."
            ) from error
    return [place / download.name for download in dataset.downloads]


@contextlib.contextmanager
def _opened(name: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the way to a folder, made if need be, through a descriptor, and which link of another user may have led
    there. A file system that a neighbor mounts there later, and that may answer nothing, is not on that way."""
    with contextlib.ExitStack() as stack:
        try:
            above = open_named_folder(folder)
        except FileNotFoundError:
            make_folders(folder)
            above = open_named_folder(folder)
        stack.callback(os.close, above)
        way = f"/proc/self/fd/{above}"
        try:
            fd = stack.enter_context(reached(name, way))
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                make_folder(Path(way, name))
            fd = stack.enter_context(reached(name, way))
        yield Path(f"/proc/self/fd/{fd}"), leading_link(folder / name, fd)


def mirror_url(text: str) -> str:
    """Return a mirror that a person gave, with ``/`` at its end. Raises RequestError for anything but a plain HTTP(S)
    URL."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
        secret = parts.username is not None or parts.password is not None
    except ValueError:
        usable, secret = False, "@" in text
    if secret:
        raise RequestError("--mirror: a URL with a user or password is not accepted; use a mirror that needs neither.")
    if not usable or not text.isprintable() or " " in text:
        raise RequestError(
            f"--mirror {text!r}: expected http://HOST/PATH or https://HOST/PATH, under which the files have their "
            "published names."
        )
    return text if text.endswith("/") else f"{text}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One file to fetch."""

    download: Download
    folder: Path
    """Through a descriptor."""
    place: Path
    """The name of that folder, for a person."""
    link: str
    """Which link of another user may have led there (``folders.leading_link``)."""
    mirrors: tuple[str, ...]
    print_status: Callable[[str], None]
    on_bytes: Callable[[Download, int], None]
    patience: Patience

    @property
    def target(self) -> Path:
        return self.folder / self.download.name

    @property
    def part(self) -> Path:
        return self.folder / f"{self.download.name}.part"

    def part_bytes(self) -> int:
        return size_of(self.part) or 0


@contextlib.contextmanager
def _locked(job: _Job) -> Iterator[None]:
    """Hold the lock of a file. It ends with the process, so a killed fetch blocks no other one."""
    # The lock file stays: another process may have opened it just before it would be removed.
    name = f".{job.download.name}.lock"
    descriptor = open_lock(job.folder / name)
    lock_s = job.patience.lock_s
    try:
        ends_at = time.monotonic() + lock_s
        has_printed = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # Another user may have written it.
                holder = ascii(os.pread(descriptor, 200, 0).decode(errors="replace"))[1:-1] or "another process"
            if time.monotonic() > ends_at:
                raise SeatrialError(
                    f"{holder} has held the lock {job.place / name} for {lock_s:.0f} s; check whether it still "
                    f"downloads, end it, and try again{other_holders(descriptor, job.place / name)}."
                )
            if not has_printed:
                job.print_status(
                    f"{job.download.name}: {holder} is fetching it; waiting at most {lock_s:.0f} s"
                    f"{other_holders(descriptor, job.place / name)}"
                )
                has_printed = True
            time.sleep(_POLL_S)
        write_holder(descriptor, f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        os.close(descriptor)


def _ensure_target(job: _Job) -> None:
    """Make sure that the target exists and is correct. Call it under the lock."""
    if size_of(job.target) is not None:
        fault = _fault(job.target, job.download)
        if fault is None:
            job.print_status(f"{job.place / job.download.name}: exists, and is correct")
            return
        _require_no_link(job, job.target)
        job.print_status(f"{job.place / job.download.name}: {fault}; fetching it again")
    _require_no_link(job, job.part)
    free, missing = shutil.disk_usage(job.folder).free, job.download.size_bytes - job.part_bytes()
    if free < missing:
        raise SeatrialError(
            f"{job.download.name} needs {missing} more bytes and {job.place} has {free} free; "
            "make room, or name another directory with --data."
        )
    _download(job)
    _commit(job)


def _require_no_link(job: _Job, file: Path) -> None:
    """Raise OSError for a file that would be changed, where a link of another user may have led to it."""
    if job.link and has_entry(file):
        raise led_by(job.link, job.place / file.name)


def _download(job: _Job) -> None:
    """Complete the part: try all mirrors in turn, again and again while bytes arrive."""
    job = replace(job, print_status=_without_repeats(job.print_status))
    ends_at = time.monotonic() + job.patience.total_s
    failures: dict[str, str] = {}
    mirrors = list(job.mirrors)
    furthest, fruitless = 0, 0
    while mirrors and fruitless < job.patience.rounds and time.monotonic() < ends_at:
        if fruitless:
            time.sleep(job.patience.pause_s * 2 ** (fruitless - 1))
        before = furthest
        for mirror in list(mirrors):
            try:
                _try_mirror(job, mirror, ends_at)
                return
            except (BrokenTransferError, RefusedTransferError) as error:
                if isinstance(error, RefusedTransferError):
                    mirrors.remove(mirror)
                failures[mirror] = str(error)
                job.print_status(f"{mirror}{job.download.name} {error}")
            furthest = max(furthest, job.part_bytes())
        fruitless = 0 if furthest > before else fruitless + 1
    reasons = "; ".join(f"{mirror} {reason}" for mirror, reason in failures.items()) or "there is no mirror"
    raise SeatrialError(
        f"{job.download.name} could not be fetched: {reasons}; try again to continue where it stopped, name a mirror "
        f"that this machine can reach with --mirror URL, or copy the file into {job.place}."
    )


def _without_repeats(print_status: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that prints each line only once."""
    printed: set[str] = set()

    def print_once(line: str) -> None:
        if line not in printed:
            printed.add(line)
            print_status(line)

    return print_once


def _try_mirror(job: _Job, mirror: str, ends_at: float) -> None:
    part_bytes = job.part_bytes()
    if part_bytes < job.download.size_bytes:
        resumed = f", resuming at byte {part_bytes}" if part_bytes else ""
        job.print_status(f"{mirror}{job.download.name}: {job.download.size_bytes} bytes{resumed}")
        _transfer(job, mirror, ends_at)
    fault = _fault(job.part, job.download)
    if fault and part_bytes:
        job.print_status(f"{job.place / job.part.name}: {fault}; starting it again")
        remove(job.part)
        _transfer(job, mirror, ends_at)
        fault = _fault(job.part, job.download)
    if fault:
        remove(job.part)
        raise RefusedTransferError(f"has a different file: {fault}")


def _transfer(job: _Job, mirror: str, ends_at: float) -> None:
    transfer(
        f"{mirror}{job.download.name}",
        job.part,
        job.download.size_bytes,
        idle_s=job.patience.idle_s,
        ends_at=ends_at,
        on_bytes=lambda size_bytes: job.on_bytes(job.download, size_bytes),
    )


def _fault(path: Path, download: Download) -> str | None:
    """Return how a file differs from the published one; None: it does not."""
    total = hashlib.sha256()
    with open_to_read(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes != download.size_bytes:
            return f"it has {size_bytes} bytes, expected {download.size_bytes}"
        # Its owner may let it grow meanwhile.
        left_bytes = size_bytes + 1
        while chunk := file.read(min(2**20, left_bytes)):
            total.update(chunk)
            left_bytes -= len(chunk)
    sha256 = total.hexdigest()
    return None if sha256 == download.sha256 else f"its SHA-256 is {sha256}, expected {download.sha256}"


def _commit(job: _Job) -> None:
    """Give a verified file its name, so that it exists durably or not at all."""
    with open_to_append(job.part) as file:  # refuses a part that is not ours
        os.fsync(file.fileno())
    rename_durably(job.part, job.target)
