"""Token files, by which ranks find out whether they see the same folder.

The names of tokens must be visible to other ranks. They are empty files, and removed as soon as all ranks have
searched for them; a later trial removes those that a killed trial left behind. Other users may write to the folder,
too: only who has the key knows the name of a token before it is there, and a token counts if its owner is that of this
rank's token.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import os
import re
import stat
import weakref
from collections.abc import Collection, Mapping
from typing import TypeGuard

from seatrial import files
from seatrial.environment.working_folder import typed_folder
from seatrial.folders import temporary_place
from seatrial.rank.meeting import MeetingError
from seatrial.start import ForeignError, open_named_folder

KEY = "storage/key"
"""The name of the shared key."""
_NAME = "seatrial-storage-{code}-{rank}.{kind}"
_KEY = re.compile(r"[0-9a-f]{16}", re.ASCII)
_OUR_FILES = re.compile(r"seatrial-storage-[0-9a-f]{16}-\d+\.(token|data)")
_OLD_S = 24 * 3600.0
_MOST_NAMES = 100_000
"""Names of a folder that are read. Others can put any number there, and each takes its time."""
_MOST_LOOKED_AT = 10_000
"""Files of trials that are looked at, to remove those that killed ones left."""


def is_of_key(values: Mapping[str, object]) -> bool:
    """Return whether these are the values that the first rank shares: a key, whoever says so."""
    return values.keys() == {KEY} and is_key(values[KEY])


def is_key(key: object) -> TypeGuard[str]:
    """Return whether this is a key: as a part of a path anything else would lead to files of others."""
    return isinstance(key, str) and _KEY.fullmatch(key) is not None


def checked_key(key: object, first_rank: int) -> str:
    """Return the key of a trial, which comes from the first rank. Raises MeetingError for anything else, without its
    words."""
    if is_key(key):
        return key
    raise MeetingError(f"rank {first_rank} shared no key of 16 hexadecimal digits for the names of files")


def file_path(folder: str, key: str, rank: int, kind: str) -> str:
    """Return the path of a rank's file, whose name does not show the key. ``key``: 16 hexadecimal digits; ``kind``:
    ``token`` or ``data``."""
    code = hmac.new(key.encode(), f"{rank}.{kind}".encode(), "sha256").hexdigest()[:16]
    return os.path.join(folder, _NAME.format(code=code, rank=rank, kind=kind))


def candidate_folders(folder: str | None) -> tuple[str, ...]:
    """Return the folders to try: the named one, or the one in which the user typed and then the temporary folder."""
    if folder is not None:
        return (folder,)
    folders = []
    with contextlib.suppress(OSError):  # the working folder may have been removed
        folders.append(typed_folder())
    return (*folders, temporary_place())


class Token:
    """The token of a rank, an empty file, and its folder, which stays open: whoever exchanges that, or closes its way,
    changes nothing of what is done by the descriptor."""

    def __init__(self, folder: str, key: str, rank: int) -> None:
        """Open the folder, and leave no token yet. Raises OSError."""
        self.folder = folder
        self.descriptor = open_named_folder(folder)
        """The folder."""
        weakref.finalize(self, os.close, self.descriptor)
        self.way = f"/proc/self/fd/{self.descriptor}"
        """The path of the open folder, in this process."""
        self.owner = -1
        """The user as whom a file server shows this one, by the token as it was created."""
        self._key, self._rank = key, rank
        self._left: tuple[int, int] | None = None

    def leave(self) -> None:
        """Create the token. Raises OSError."""
        with files.create(file_path(self.way, self._key, self._rank, "token"), mode=0o600) as file:
            os.fsync(file.fileno())
            created = os.fstat(file.fileno())
        self.owner = created.st_uid
        found = self._found(self.way)
        # Another user may have put a file there already.
        self._left = found if found and found[0] == created.st_ino else None

    def is_in_place(self) -> bool:
        """Return whether the folder's name still leads to the token, and nobody has moved it meanwhile.

        Another user who may rename it, and so hide it for a while, cannot set its ctime back.
        """
        with contextlib.suppress(OSError):
            folder = open_named_folder(self.folder)
            try:
                return self._left is not None and self._found(f"/proc/self/fd/{folder}") == self._left
            finally:
                os.close(folder)
        return False

    def _found(self, folder: str) -> tuple[int, int] | None:
        """Return which file has the name of the token (st_ino), and when that last got another one (st_ctime_ns)."""
        # A network file system asks its server once more when a file is opened; for its status it may not.
        with contextlib.suppress(OSError):
            path = file_path(folder, self._key, self._rank, "token")
            with files.open_to_read(path, follows_links=False) as file:
                status = os.fstat(file.fileno())
            return status.st_ino, status.st_ctime_ns
        return None

    def remove(self) -> None:
        """Remove the token, if it is there."""
        path = file_path(self.way, self._key, self._rank, "token")
        with contextlib.suppress(OSError):
            if stat.S_ISREG(files.status_of_entry(path).st_mode):
                files.remove(path)


def visible_ranks(folder: str, key: str, owner: int, ranks: Collection[int]) -> tuple[list[int], list[int]]:
    """Return the ranks whose tokens are visible in the folder, and those for which only a file of another user is, both
    ascending. Raises OSError.

    ``owner``: the user to whom tokens belong there.
    """
    # One listing has a network file system bring what would else be a question for each name. It may be an old one, so
    # each name is looked up all the same.
    _names(folder)
    visible, foreign = list[int](), list[int]()
    for each in sorted(ranks):
        with contextlib.suppress(FileNotFoundError):
            (visible if _is_of(owner, file_path(folder, key, each, "token")) else foreign).append(each)
    return visible, foreign


def _is_of(uid: int, path: str) -> bool:
    """Return whether a file belongs to this user, and nobody has mounted one there. Raises OSError."""
    try:
        return files.status_of_entry(path).st_uid == uid
    except ForeignError:
        return False


def remove_leftovers(folder: str, now_s: float) -> list[str]:
    """Remove the files that killed trials of this user left there, if older than a day. Returns their names."""
    removed = []
    with contextlib.suppress(OSError):
        ours = itertools.islice(filter(_OUR_FILES.fullmatch, _names(folder)), _MOST_LOOKED_AT)
        for name, status in files.statuses_in(folder, ours):
            is_old = now_s - status.st_mtime > _OLD_S
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and is_old:
                with contextlib.suppress(OSError):
                    files.remove(os.path.join(folder, name))
                    removed.append(name)
    return removed


def _names(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in itertools.islice(entries, _MOST_NAMES)]
