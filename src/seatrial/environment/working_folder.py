"""Folders in which a program starts, and its script: could another user have put files there?

The folder has the same path on each host, but not each host shares it: below /tmp or /scratch a neighbor may have made
it. An owner that the user trusts on the controller's machine, such as a colleague, is trusted on the other hosts, too;
and so are all users, where they can write there.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from seatrial.errors import RequestError
from seatrial.files import owner_of_new_files
from seatrial.start import refusal_of_number, status_and_mounter, trusted_users

_MAX_LINKS = 40
"""The kernel's own limit (MAXSYMLINKS in include/linux/namei.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderTrust:
    """The users whom this one trusts with the folder and the script on the controller's machine, besides root."""

    owners: tuple[int, ...] = ()
    """Other users who own one of them, or a folder above."""
    is_open: bool = False
    """All users can put files there."""


def require_own_number() -> None:
    """Raise RequestError where files of any other user could count as ours."""
    if reason := refusal_of_number():
        raise RequestError(f"seatrial {reason}.")


def script_of(argv: Sequence[str]) -> str:
    """Return the path of the script in the command of a rank; empty where a module, or a program in PATH, is named."""
    script = argv[-1]
    return script if "-m" not in argv[:-1] and (len(argv) > 1 or "/" in script) else ""


def trust_here(folder: str, script: str) -> FolderTrust:
    """Return whom the user trusts with what exists of them here. ``script``: its path, or an empty text."""
    # In a container of a user they include the one as which it shows all others: on another host that is anybody.
    trusted = trusted_users()
    owners: set[int] = set()
    is_open = False
    for place in (folder, *_places_of(folder, script)):
        with suppress(OSError):
            for step in _steps(place):
                owners |= {step.status.st_uid, step.mounter} - trusted
                is_open |= _is_open(step) and not step.missing
    # The number of a user may be that of somebody else on another host.
    return FolderTrust(owners=tuple(sorted(owners)), is_open=is_open)


def refusal(folder: str, script: str, trust: FolderTrust) -> str:
    """Return why another user could have put files into the folder or the script, or exchanged them; empty: none could.

    Each name on the way, also of links, is looked at from the root down, so that nobody can exchange one that has
    passed. Where a name is missing, another user could put one there before a rank starts: the processes of the other
    hosts show its path.

    Args:
        folder: an absolute path.
        script: a path that starts there; empty: only the folder counts.
        trust: on the controller's machine.
    """
    try:
        for place in _places_of(folder, script) if script else (folder,):
            for step in _steps(place):
                if step.mounter and step.mounter not in trust.owners:
                    return f"{step.name} is on a file system of user {step.mounter}"
                trusted = trusted_users(step.name, trust.owners)
                if step.status.st_uid not in trusted and not _owns_all(step.status, folder):
                    return f"{step.name} belongs to user {step.status.st_uid}"
                if _is_open(step) and not trust.is_open:
                    cause = f"{step.missing} is missing, and " if step.missing else ""
                    return f"{cause}all users can write to {step.name}"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One name on the way to a file."""

    name: str
    status: os.stat_result
    mounter: int
    """The other user who decides what this file system shows, or 0 (``start.mounted_by``)."""
    is_last: bool
    """Nothing that exists in this folder comes next, so that its sticky bit guards nothing."""
    missing: str = ""
    """The next name, where there is none."""


def _places_of(folder: str, script: str) -> tuple[str, ...]:
    """Return the script, and the folder from which Python imports in its favor."""
    path = os.path.join(folder, script)
    return (os.path.dirname(os.path.realpath(path)), path) if script else ()


def _steps(path: str) -> Iterator[_Step]:
    """Yield what the kernel visits on the way to an absolute path, from the root down, each link among it."""
    names = _names_of(path)
    place = "/"
    yield _step(place, is_last=not names)
    links = 0
    while names:
        name = names.pop()
        entry = os.path.dirname(place) if name == ".." else os.path.join(place, name)
        try:
            step = _step(entry, is_last=not names)
        except FileNotFoundError:
            yield _step(place, is_last=True, missing=entry)
            return
        yield step
        if not stat.S_ISLNK(step.status.st_mode):
            place = entry
        else:
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(entry)
            place = "/" if os.path.isabs(target) else place
            names += _names_of(target)


def _step(name: str, *, is_last: bool, missing: str = "") -> _Step:
    status, mounter = status_and_mounter(name)
    return _Step(name=name, status=status, mounter=mounter, is_last=is_last, missing=missing)


def _names_of(path: str) -> list[str]:
    """Return the names in a path, the first one last."""
    return [name for name in path.split("/")[::-1] if name not in ("", ".")]


def _is_open(step: _Step) -> bool:
    """Return whether all users can put files there, or exchange those of others where there are such."""
    mode = step.status.st_mode
    has_guard = mode & stat.S_ISVTX and not step.is_last
    return bool(mode & stat.S_IWOTH) and not stat.S_ISLNK(mode) and not has_guard


def _owns_all(status: os.stat_result, folder: str) -> bool:
    """Return whether this is the owner of all files of a share, also of ours: NFS and FUSE may map all users to one."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return os.fstat(fd).st_dev == status.st_dev and owner_of_new_files(fd) == status.st_uid
        finally:
            os.close(fd)
    return False
