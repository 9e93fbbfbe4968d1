"""The ways that lead to a file: another user may have chosen which one."""

from __future__ import annotations

import errno
import os
import stat

from seatrial.start import NOBODY, mounted_by, trusted_users, way_to


def require_openly_led(path: str, opened: int) -> None:
    """Raise PermissionError where another user may have led a path to a file that is none of that one's.

    That user may be unable to read it, and want it read here, since parts of it go elsewhere. Nothing is asked
    of a file system that another user has mounted. ``opened``: what the path has led to, open.
    """
    owner, last = mounted_by(opened) or os.fstat(opened).st_uid, None
    for name, fd, user, _, is_below_open in way_to(path, "/" if os.path.isabs(path) else os.curdir):
        words = ""
        if user:
            if user == owner:
                return
            words = f"{name} is on a file system that user {user} has mounted"
        else:
            last = os.fstat(fd)
            # A container of a user shows links of all others as those of root, which alone can make them in "/".
            trusted = trusted_users(is_below_open) - (set() if os.path.dirname(name) == "/" else {NOBODY})
            if stat.S_ISLNK(last.st_mode) and last.st_uid not in (owner, *trusted):
                words = f"{name} is a link of user {last.st_uid}"
        if words:
            advice = "so that one may want another file read; name the file by its own path"
            raise PermissionError(errno.EPERM, f"{words}, {advice}", path)
    if last is None or not os.path.samestat(last, os.fstat(opened)):
        raise OSError(errno.ESTALE, "it was exchanged while it was opened", path)
