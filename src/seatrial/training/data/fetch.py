"""Downloads published data sets: each file once per folder, however many processes ask, and only whole and checked.

A file grows as ``NAME.part`` beside its place and gets its name when its SHA-256 is right. As that decides, a part may
be continued from any mirror; one that turns out wrong is begun again once. Nothing here imports torch.
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
from seatrial.training.data.manifest import DataSet, Download
from seatrial.training.data.transfer import BrokenTransferError, RefusedTransferError, transfer

__all__ = ["Patience", "fetch", "mirror_url"]

_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a fetch waits for what, in seconds."""

    idle_s: float = 30.0
    """For an answer, and for each next byte."""
    total_s: float = 3600.0
    """For one file."""
    lock_s: float = 3660.0
    """For another process that fetches the same file."""
    rounds: int = 3
    """Through all mirrors without one new byte, before it gives up."""
    pause_s: float = 1.0
    """After such a round; twice as long after the next."""


def fetch(
    dataset: DataSet,
    folder: Path,
    *,
    tell: Callable[[str], None],
    on_bytes: Callable[[Download, int], None],
    patience: Patience | None = None,
) -> list[Path]:
    """Have all files of a data set in ``folder``/NAME, and where they are.

    Files that are there and right stay; others are replaced. ``tell`` gets lines for a person, ``on_bytes`` how many
    bytes of a file are there. Raises SeatrialError when a file cannot be had; its part stays for the next try.
    """
    place = folder / dataset.name
    found = []
    for download in dataset.downloads:
        job = _Job(
            download=download,
            target=place / download.name,
            part=place / f"{download.name}.part",
            mirrors=dataset.mirrors,
            tell=tell,
            on_bytes=on_bytes,
            patience=patience or Patience(),
        )
        try:
            place.mkdir(parents=True, exist_ok=True)
            with _alone(place / f".{download.name}.lock", job):
                _have(job)
        except OSError as error:
            raise SeatrialError(
                f"{download.name} cannot be kept in {place} ({error.strerror or error}); "
                "see to that, or name another directory with --data."
            ) from error
        found.append(job.target)
    return found


def mirror_url(text: str) -> str:
    """A mirror as a person gave it, with ``/`` at its end. Raises RequestError for what is no plain HTTP(S) URL."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
        secret = parts.username is not None or parts.password is not None
    except ValueError:
        usable, secret = False, "@" in text
    if secret:
        raise RequestError("--mirror: a URL with a user or password is not taken; use a mirror that asks for neither.")
    if not usable or not text.isprintable() or " " in text:
        raise RequestError(
            f"--mirror {text!r}: expected http://HOST/PATH or https://HOST/PATH, under which the files have their "
            "published names."
        )
    return text if text.endswith("/") else f"{text}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One file to be fetched."""

    download: Download
    target: Path
    part: Path
    mirrors: tuple[str, ...]
    tell: Callable[[str], None]
    on_bytes: Callable[[Download, int], None]
    patience: Patience

    def part_bytes(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0


@contextlib.contextmanager
def _alone(path: Path, job: _Job) -> Iterator[None]:
    """Hold a file's lock. It ends with the process, so a fetch that was killed blocks nobody."""
    # The file stays: who removed it could not know whether somebody else just opened it.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    lock_s = job.patience.lock_s
    try:
        ends_at = time.monotonic() + lock_s
        told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
            if time.monotonic() > ends_at:
                raise SeatrialError(
                    f"{holder} has held the lock {path} for {lock_s:.0f} s; see whether that still fetches, end it, "
                    "and try again."
                )
            if not told:
                job.tell(f"{job.download.name}: {holder} is fetching it; waiting for that, at most {lock_s:.0f} s")
                told = True
            time.sleep(_POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _have(job: _Job) -> None:
    """The target, right, whether it was there or not. To be called under the lock."""
    if job.target.is_file():
        fault = _fault(job.target, job.download)
        if fault is None:
            job.tell(f"{job.target}: there, and right")
            return
        job.tell(f"{job.target}: {fault}; it is fetched again")
    free, missing = shutil.disk_usage(job.part.parent).free, job.download.size_bytes - job.part_bytes()
    if free < missing:
        raise SeatrialError(
            f"{job.download.name} needs {missing} bytes more and {job.part.parent} has {free} left; "
            "make room, or name another directory with --data."
        )
    _download(job)
    _commit(job)


def _download(job: _Job) -> None:
    """Make the part the whole file: all mirrors in turn, again and again while that brings something."""
    job = replace(job, tell=_once(job.tell))
    ends_at = time.monotonic() + job.patience.total_s
    found: dict[str, str] = {}
    left = list(job.mirrors)
    furthest, fruitless = 0, 0
    while left and fruitless < job.patience.rounds and time.monotonic() < ends_at:
        if fruitless:
            time.sleep(job.patience.pause_s * 2 ** (fruitless - 1))
        before = furthest
        for mirror in list(left):
            try:
                _try_mirror(job, mirror, ends_at)
                return
            except (BrokenTransferError, RefusedTransferError) as error:
                if isinstance(error, RefusedTransferError):
                    left.remove(mirror)
                found[mirror] = str(error)
                job.tell(f"{mirror}{job.download.name} {error}")
            furthest = max(furthest, job.part_bytes())
        fruitless = 0 if furthest > before else fruitless + 1
    told = "; ".join(f"{mirror} {why}" for mirror, why in found.items()) or "there is no mirror"
    raise SeatrialError(
        f"{job.download.name} could not be fetched: {told}; try again to go on where it stopped, name a mirror that "
        f"this machine can reach with --mirror URL, or copy the file into {job.part.parent}."
    )


def _once(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Tells no line a second time."""
    told: set[str] = set()

    def once(line: str) -> None:
        if line not in told:
            told.add(line)
            tell(line)

    return once


def _try_mirror(job: _Job, mirror: str, ends_at: float) -> None:
    there = job.part_bytes()
    if there < job.download.size_bytes:
        going_on = f", going on at byte {there}" if there else ""
        job.tell(f"{mirror}{job.download.name}: {job.download.size_bytes} bytes{going_on}")
        _transfer(job, mirror, ends_at)
    fault = _fault(job.part, job.download)
    if fault and there:
        job.tell(f"{job.part}: {fault}; it is begun again")
        job.part.unlink()
        _transfer(job, mirror, ends_at)
        fault = _fault(job.part, job.download)
    if fault:
        job.part.unlink()
        raise RefusedTransferError(f"has another file: {fault}")


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
    """What is wrong with a file that should be the published one; None: nothing."""
    size_bytes = path.stat().st_size
    if size_bytes != download.size_bytes:
        return f"it has {size_bytes} bytes, expected {download.size_bytes}"
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            total.update(chunk)
    found = total.hexdigest()
    return None if found == download.sha256 else f"its SHA-256 is {found}, expected {download.sha256}"


def _commit(job: _Job) -> None:
    """Give a checked file its name, so that it is there for good or not at all."""
    with job.part.open("rb") as file:
        os.fsync(file.fileno())
    job.part.replace(job.target)
    folder = os.open(job.target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
