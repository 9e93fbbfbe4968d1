"""Folders in which a program starts, and its script: could another user have put files there?

The folder has the same path on each host, but not each host shares it: below /tmp or /scratch a neighbor may have made
it. An owner that the user trusts on the controller's machine, such as a colleague, is trusted on the other hosts, too;
and so are all users, where they can write there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from seatrial.files import owner_of_new_files
from seatrial.start import trusted_users


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderTrust:
    """The users whom this one trusts with the folder and the script on the controller's machine, besides root."""

    owners: tuple[int, ...] = ()
    """Other users who own one of them, or a folder above."""
    is_open: bool = False
    """All users can put files there."""


def script_of(argv: Sequence[str]) -> str:
    """Return the path of the script in the command of a rank; empty where a module, or a program in PATH, is named."""
    script = argv[-1]
    return script if "-m" not in argv[:-1] and (len(argv) > 1 or "/" in script) else ""


def trust_here(folder: str, script: str) -> FolderTrust:
    """Return whom the user trusts with what exists of them here. ``script``: its path, or an empty text."""
    trusted = trusted_users()
    owners: set[int] = set()
    is_open = False
    for place in (folder, *_places_of(folder, script)):
        for name, is_last in _way(place):
            with suppress(OSError):
                status = os.lstat(name)
                owners |= {status.st_uid} - trusted
                is_open |= _is_open(status, is_last)
    # The number of a user may be that of somebody else on another host.
    return FolderTrust(owners=tuple(sorted(owners)), is_open=is_open)


def refusal(folder: str, script: str, trust: FolderTrust) -> str:
    """Return why another user could have put files into the folder or the script, or exchanged them; empty: none could.

    Each name on the way is looked at from the root down, so that nobody can exchange one that has passed.

    Args:
        folder: an absolute path.
        script: a path that starts there; empty: only the folder counts.
        trust: on the controller's machine.
    """
    trusted = trusted_users() | {*trust.owners}
    for place in _places_of(folder, script) if script else (folder,):
        for name, is_last in _way(place):
            status = os.lstat(name)
            if status.st_uid not in trusted and not _owns_all(status, folder):
                return f"{name} belongs to user {status.st_uid}"
            if _is_open(status, is_last) and not trust.is_open:
                return f"all users can write to {name}"
    return ""


def _places_of(folder: str, script: str) -> tuple[str, ...]:
    """Return the script, and the folder from which Python imports in its favor."""
    path = os.path.join(folder, script)
    return (os.path.dirname(os.path.realpath(path)), path) if script else ()


def _way(path: str) -> Iterator[tuple[str, bool]]:
    """Yield the path with all folders above it, from the root down, and the same for what it leads to by links.

    The second value says whether it is the last one.
    """
    for way in dict.fromkeys((path, os.path.realpath(path))):
        names = way.strip("/").split("/")
        for count in range(len(names) + 1):
            yield "/" + "/".join(names[:count]), count == len(names)


def _is_open(status: os.stat_result, is_last: bool) -> bool:
    """Return whether all users can put files there, or exchange those of others where there are such."""
    has_guard = status.st_mode & stat.S_ISVTX and not is_last
    return bool(status.st_mode & stat.S_IWOTH) and not stat.S_ISLNK(status.st_mode) and not has_guard


def _owns_all(status: os.stat_result, folder: str) -> bool:
    """Return whether this is the owner of all files of a share, also of ours: NFS and FUSE may map all users to one."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return os.fstat(fd).st_dev == status.st_dev and owner_of_new_files(fd) == status.st_uid
        finally:
            os.close(fd)
    return False
