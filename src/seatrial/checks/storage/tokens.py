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
import tempfile
from collections.abc import Collection, Iterable

from seatrial import files
from seatrial.environment.working_folder import typed_folder
from seatrial.start import ForeignError

_NAME = "seatrial-storage-{code}-{rank}.{kind}"
_KEY = re.compile(r"[0-9a-f]{16}", re.ASCII)
_OUR_FILES = re.compile(r"seatrial-storage-[0-9a-f]{16}-\d+\.(token|data)")
_OLD_S = 24 * 3600.0
_MOST_NAMES = 100_000
"""Names of a folder that are read. Others can put any number there, and each takes its time."""
_MOST_LOOKED_AT = 10_000
"""Files of trials that are looked at, to remove those that killed ones left."""


def checked_key(key: object) -> str:
    """Return the key of a trial, which comes from another rank. Raises ValueError for one that is no key: as a part of
    a path it would lead to files of others."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ValueError(
            f"the first rank shares {str(key)[:40]!a} as the key of the files, and not 16 hexadecimal digits"
        )
    return key


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
    return (*folders, tempfile.gettempdir())


def create_token(folder: str, key: str, rank: int) -> None:
    """Create this rank's token, an empty file. Raises OSError."""
    with files.create(file_path(folder, key, rank, "token"), mode=0o600) as file:
        os.fsync(file.fileno())


def token_identity(folder: str, key: str, rank: int) -> tuple[int, int] | None:
    """Return which file this rank's token is, and when it last got another name (st_ino, st_ctime_ns); None without it.

    Another user who may rename it, and so hide it for a while, cannot set the second one back.
    """
    # A network file system asks its server once more when a file is opened; for its status it may not.
    with contextlib.suppress(OSError):
        with files.open_to_read(file_path(folder, key, rank, "token"), follows_links=False) as file:
            status = os.fstat(file.fileno())
        return status.st_ino, status.st_ctime_ns
    return None


def find_token(folders: Iterable[str], key: str, rank: int, *, remove: bool = False) -> str | None:
    """Return the folder with this rank's token, and remove the token if ``remove``; None if no folder has it."""
    for folder in folders:
        path = file_path(folder, key, rank, "token")
        with contextlib.suppress(OSError):
            status = files.status_of_entry(path)
            if remove and stat.S_ISREG(status.st_mode):
                files.remove(path)
            return folder
    return None


def visible_ranks(folder: str, key: str, rank: int, ranks: Collection[int]) -> tuple[list[int], list[int]]:
    """Return the ranks whose tokens are visible in the folder, and those for which only a file of another user is, both
    ascending. Raises OSError.

    ``rank``: this rank, which has left its own token; a file server decides which number its user has there.
    """
    # One listing has a network file system bring what would else be a question for each name. It may be an old one, so
    # each name is looked up all the same.
    _names(folder)
    own_uid = os.geteuid()  # in a folder without the sticky bit others may remove the token
    with contextlib.suppress(OSError):
        own_uid = files.status_of_entry(file_path(folder, key, rank, "token")).st_uid
    visible, foreign = list[int](), list[int]()
    for each in sorted(ranks):
        with contextlib.suppress(OSError):
            (visible if _is_of(own_uid, file_path(folder, key, each, "token")) else foreign).append(each)
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
