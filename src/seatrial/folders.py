"""The folders that seatrial makes, and those that it trusts to be of this user alone.

A folder is made with the mode that the umask leaves; a default access control list that it inherits, which replaces the
umask for whatever is made there (acl(5)), gives no more than that either.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import shutil
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from seatrial.files import has_entry, open_run_folder, umask_of_process
from seatrial.start import (
    ForeignError,
    mounted_by,
    open_named_folder,
    status_of,
    trusted_users,
    user_outside,
    way_to,
    without_links,
)

TEMPORARY = ("/tmp", "/var/tmp")
"""Where a host keeps temporary files, besides TMPDIR."""

_TRIES = 3
_LOCK_S = 10.0
"""Seconds for a lock that a cleaner of temporary files has meanwhile. Without one the times of the folder keep it."""
_RENEWED_S = 3600.0
"""Interval in which the times of a folder that is kept are set."""
_DEFAULT_ACL = "system.posix_acl_default"
_ACL_HEAD_BYTES = 4
_ACL_USER, _ACL_GROUP, _ACL_MASK, _ACL_OTHER = 0x01, 0x04, 0x10, 0x20
"""Entries of an access control list that a mode has, too (include/uapi/linux/posix_acl.h)."""


class NotPrivateError(PermissionError):
    """A folder that should be for this user alone is one of others, or open to them."""


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder, as that of a run. Raises FileExistsError for any existing name.

    A default access control list that it inherits gives no more than the umask leaves: a shell or a launcher that makes
    files there does not know of it.
    """
    umask = umask_of_process()
    above, name = os.path.split(os.fspath(folder))
    place = open_named_folder(above or os.curdir)
    try:
        os.mkdir(name, 0o777 & ~umask, dir_fd=place)
        fd = open_run_folder(f"/proc/self/fd/{place}/{name}")
    finally:
        os.close(place)
    try:
        try:
            acl = os.getxattr(fd, _DEFAULT_ACL)
        except OSError:  # It has none, as most folders and file systems.
            return
        entries = [struct.unpack_from("<HHI", acl, at) for at in range(_ACL_HEAD_BYTES, len(acl), 8)]
        shifts = {_ACL_USER: 6, _ACL_MASK if any(tag == _ACL_MASK for tag, _, _ in entries) else _ACL_GROUP: 3}
        shifts[_ACL_OTHER] = 0
        limited = [
            (tag, rights & ~(umask >> shifts[tag]) if tag in shifts else rights, user) for tag, rights, user in entries
        ]
        os.setxattr(
            fd, _DEFAULT_ACL, acl[:_ACL_HEAD_BYTES] + b"".join(struct.pack("<HHI", *entry) for entry in limited)
        )
    finally:
        os.close(fd)


def make_folders(folder: str | os.PathLike[str]) -> None:
    """Make a folder and those above it, as ``make_folder`` does, unless they exist; a link to a folder will do."""
    path = Path(folder)
    with contextlib.suppress(FileNotFoundError):
        os.close(open_named_folder(path))
        return
    if path != path.parent:
        make_folders(path.parent)
    # Another rank may have made it meanwhile.
    with contextlib.suppress(FileExistsError):
        make_folder(path)


def make_private(folder: str | os.PathLike[str]) -> None:
    """Make a folder that only this user can use, unless it exists. Raises NotPrivateError for one of another kind, and
    where another user could put one in its place."""
    _require_own_place(folder)
    os.close(open_private(folder))


def require_private(folder: str | os.PathLike[str]) -> None:
    """Raise NotPrivateError for a folder that another user could use, or put another one in the place of."""
    # The place first: where nobody can exchange it, what is private stays so until somebody opens it by its name.
    _require_own_place(folder)
    os.close(_open_private(folder))


def open_private(folder: str | os.PathLike[str]) -> int:
    """Open a folder (O_PATH) that only this user can use, and make it unless it exists. Raises NotPrivateError for one
    of another kind.

    All that goes by the descriptor stays in that folder, also where others can rename, as in a TMPDIR that is open to
    them or the one of a pod.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    return _open_private(folder)


def _open_private(folder: str | os.PathLike[str]) -> int:
    fd = os.open(folder, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if user := mounted_by(fd):
            raise NotPrivateError(errno.EPERM, f"{ForeignError(os.fspath(folder), user).strerror}; set TMPDIR")
        status = os.fstat(fd)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise NotPrivateError(
                errno.EPERM,
                f"{os.fspath(folder)} must be a folder that only user {os.geteuid()} can use, and it is"
                f" {stat.filemode(status.st_mode)} of user {status.st_uid}; remove it, or set TMPDIR",
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


def _require_own_place(folder: str | os.PathLike[str]) -> None:
    try:
        _, exchanged_by, _ = exchanges(os.path.dirname(folder))
    except ForeignError as error:
        raise NotPrivateError(errno.EPERM, f"{error.strerror}; set TMPDIR") from None
    if exchanged_by:
        raise NotPrivateError(errno.EPERM, f"{exchanged_by}, so {os.fspath(folder)} may be exchanged; set TMPDIR")


def is_of_another_user(path: str) -> bool:
    """Return whether another user owns what is at a path, or a folder or a link on its way; root and this user are
    none. Of a path that is not there yet its way counts as far as it goes."""
    with contextlib.suppress(OSError):
        for _, fd, user, _, is_below_open in way_to(path):
            # The file system of a user may answer nothing.
            if user or os.fstat(fd).st_uid not in trusted_users(is_below_open):
                return True
    return False


def cache_folder(environ: Mapping[str, str]) -> str:
    """Return the folder for what this user can make anew: ``$XDG_CACHE_HOME``, else ``~/.cache``; it may not be there
    yet. Empty: this user has no home, as in containers. The root is the home of nobody (``environment/home.py``).

    Root with the variables of a user, as after ``sudo -E``, has root's own: the user could change what root reads
    there, put links where root writes, and not remove what root has made. Root would make one that is not there yet.
    """
    # The XDG Base Directory Specification says to ignore a relative path.
    for name, below in (("XDG_CACHE_HOME", ""), ("HOME", ".cache")):
        folder = environ.get(name, "")
        is_named = os.path.isabs(folder) and folder != "/"
        if is_named and not (os.geteuid() == 0 and is_of_another_user(folder)):
            return os.path.join(folder, below) if below else folder
    with contextlib.suppress(KeyError):  # a user that nobody knows
        home = pwd.getpwuid(os.geteuid()).pw_dir
        if os.path.isabs(home) and home != "/":
            return os.path.join(home, ".cache")
    return ""


def own_folder_name() -> str:
    """Return the name of this user's folder among those of others: in several containers each user may be root."""
    numbers = dict.fromkeys((os.geteuid(), user_outside()))
    return "-".join(["seatrial", *map(str, numbers)])


@contextlib.contextmanager
def passing_file(suffix: str) -> Iterator[str]:
    """Yield the path of a file that a library may make by its name, in a new temporary folder for this user alone; both
    are removed afterwards.

    The path leads through a descriptor. So nobody can put another folder in its way, also where all can rename, as in
    a TMPDIR that is open to others or the one of a pod.
    """
    place, name = tempfile.mkdtemp(prefix="seatrial-"), os.urandom(8).hex()
    folder = open_run_folder(place)
    try:
        # By now it may be another one of ours, in which others can write.
        if (mode := os.fstat(folder).st_mode) & 0o077:
            raise NotPrivateError(errno.EPERM, f"{place} was exchanged for a folder with {stat.filemode(mode)}")
        try:
            yield f"/proc/self/fd/{folder}/{name}{suffix}"
        finally:
            for made in os.listdir(folder):
                if made.startswith(name):
                    os.unlink(made, dir_fd=folder)
            # By its name there could be another one of ours by now, behind a folder that others can exchange.
            with contextlib.suppress(OSError):
                above = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
                try:
                    os.rmdir(os.path.basename(place), dir_fd=above)
                finally:
                    os.close(above)
    finally:
        os.close(folder)


def open_judged(folder: str | os.PathLike[str]) -> tuple[int, str]:
    """Open a folder (O_PATH), and return its descriptor, and how another user could have put that folder at this name,
    or could put another one there; empty: nobody but root can. Raises OSError where it cannot be opened.

    It is opened first. So who exchanges it while its way is judged is found out, and the caller has no second look.
    """
    fd = open_named_folder(folder)
    try:
        exchanged_by, _, last = exchanges(folder)
        if not exchanged_by and not os.path.samestat(last, os.fstat(fd)):
            exchanged_by = f"{os.fspath(folder)} was exchanged meanwhile"
    except OSError as error:
        exchanged_by = f"the way to it cannot be judged ({error.strerror or error})"
    return fd, exchanged_by


def open_with_links(folder: str | os.PathLike[str]) -> tuple[int, str]:
    """Open a folder (O_PATH), and return its descriptor, and what ``leading_link`` returns for it.

    Raises OSError where it cannot be opened.
    """
    fd = open_named_folder(folder)
    return fd, leading_link(folder, fd)


def leading_link(path: str | os.PathLike[str], opened: int) -> str:
    """Return which link of another user may have led to what is open; empty: none did.

    Such a link may lead to a folder of ours that its owner cannot write to, and on a file system of another user, which
    is not asked here, a link has what owner that one likes.
    """
    last = None
    try:
        # The user has chosen the working folder, and may be unable to enter those above it.
        start = "/" if os.path.isabs(path) else os.curdir
        for name, visited, user, _, is_below_open in way_to(os.fspath(path), start):
            if user:
                return f"{name} is on a file system that user {user} has mounted"
            last = os.fstat(visited)
            if stat.S_ISLNK(last.st_mode) and last.st_uid not in trusted_users(is_below_open):
                return f"{name} is a link of user {last.st_uid}"
        is_same = last is not None and os.path.samestat(last, os.fstat(opened))
    except OSError as error:
        return f"the way to it cannot be judged ({error.strerror or error})"
    return "" if is_same else f"{os.fspath(path)} was exchanged meanwhile"


def open_above(file: str | os.PathLike[str]) -> int:
    """Open (O_PATH) the folder of a file that will be written or replaced there. Raises OSError, also where a link of
    another user leads to a file of that name."""
    folder, name = os.path.split(os.fspath(file))
    fd, link = open_with_links(folder or os.curdir)
    if link and has_entry(f"/proc/self/fd/{fd}/{name}"):
        os.close(fd)
        raise led_by(link, file)
    return fd


def led_by(link: str, file: str | os.PathLike[str]) -> OSError:
    """Return the error of a link (``leading_link``) that has led to a file that would be changed."""
    return OSError(errno.EPERM, f"{link}, and has led to a file of this name, which stays as it is", os.fspath(file))


def exchanges(path: str | os.PathLike[str]) -> tuple[str, str, os.stat_result]:
    """Return how another user could exchange what a path leads to, and how what lies in it (each empty: nobody but root
    can); and the status of what was judged last. Raises OSError, and ForeignError where another user has mounted a part
    of the way.

    The way is the kernel's: ``..`` after a link is the folder above the one that the link leads to.
    """
    open_to = ""
    # A working folder that was removed matters to relative paths only.
    for name, fd, user, _, is_below_open in way_to(os.path.join("" if os.path.isabs(path) else os.getcwd(), path)):
        if user:
            raise ForeignError(name, user)
        status = os.fstat(fd)
        if not open_to and status.st_uid not in trusted_users(is_below_open):
            open_to = f"{name} belongs to user {status.st_uid}"
        if open_to:
            return open_to, open_to, status
        # The mode of a link says nothing: who can exchange it could write to the folder that it is in.
        if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX and not stat.S_ISLNK(status.st_mode):
            open_to = f"other users can write to {name}"
    return "", open_to, status


def may_be_exchanged(path: str | os.PathLike[str]) -> bool:
    """Return whether another user could have exchanged what a path led to, or mounted something over it, for a while.

    Of a way that ends early what was met until then counts: in a folder in which all users can make names, the next one
    may have been there, and renamed by the one who made it.
    """
    mode = 0
    try:
        for _, fd, user, _, is_below_open in way_to(os.path.join("" if os.path.isabs(path) else os.getcwd(), path)):
            status = None if user else os.fstat(fd)
            if status is None or status.st_uid not in trusted_users(is_below_open):
                return True
            mode = mode if stat.S_ISLNK(status.st_mode) else status.st_mode
            if mode & 0o022 and not mode & stat.S_ISVTX:
                return True
    except OSError as error:
        # So ends a file system of a user, too; a file server that is gone is none of one machine.
        return error.errno in (errno.ESTALE, errno.ENOTCONN) or (error.errno == errno.ENOENT and mode & 0o022 != 0)
    return False


def temporary_place() -> str:
    """Return the folder of temporary files, also where none takes a file: neighbors can fill ``/tmp``, and a caller has
    other places, or says why it cannot write to this one."""
    with contextlib.suppress(FileNotFoundError):
        return tempfile.gettempdir()
    return os.environ.get("TMPDIR") or TEMPORARY[0]


def own_temporary_folder() -> str:
    """Return this user's folder among the temporary files, made if need be; no name on its way is a link.

    Raises NotPrivateError, with the reasons, where another user could use each one, or put another one in its place.
    """
    return _temporary_folder(own_folder_name(), _places())


def new_temporary_folder(place: str = "") -> str:
    """Return a new folder beside that one, or in the folder of temporary files that is named. Raises NotPrivateError,
    too."""
    return _temporary_folder(f"seatrial-{os.urandom(8).hex()}", (place,) if place else _places())


@contextlib.contextmanager
def kept_folder(make: Callable[[], str], *, is_removed: bool) -> Iterator[str]:
    """Yield the folder of ``own_temporary_folder`` or ``new_temporary_folder``, and keep it meanwhile: once a cleaner
    of temporary files has removed it, another user could make one of its name. Raises NotPrivateError.

    systemd-tmpfiles leaves a folder that is locked (tmpfiles.d(5)); others leave it while its times are new.

    Args:
        make: Returns the folder.
        is_removed: Remove it afterwards, with all that it holds.
    """
    folder, fd = _keep(make)
    is_over = threading.Event()
    thread = threading.Thread(target=_renew, args=(fd, is_over), name="times of a folder", daemon=True)
    try:
        # This user may have no process left, and the lock stays without it.
        with contextlib.suppress(RuntimeError):
            thread.start()
        yield folder
    finally:
        is_over.set()
        if thread.is_alive():
            thread.join(1.0)
        with contextlib.suppress(OSError):
            if is_removed and _is_kept(folder, fd):
                shutil.rmtree(folder, ignore_errors=True)
        os.close(fd)


def _renew(fd: int, is_over: threading.Event) -> None:
    while not is_over.wait(_RENEWED_S):
        with contextlib.suppress(OSError):
            os.utime(fd)


def _keep(make: Callable[[], str]) -> tuple[str, int]:
    """Return a folder, and its locked descriptor. Raises NotPrivateError."""
    for _ in range(_TRIES):
        folder = make()
        with contextlib.suppress(FileNotFoundError, PermissionError):
            fd = open_run_folder(folder)
            try:
                _lock(fd)
                if _is_kept(folder, fd):
                    os.utime(fd)
                    return folder, fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
    raise NotPrivateError(errno.EBUSY, f"{folder} was removed {_TRIES} times meanwhile")


def _lock(fd: int) -> None:
    """Lock a folder. A cleaner that is at work has locked it; no other user can. Some file servers have no locks."""
    until = time.monotonic() + _LOCK_S
    with contextlib.suppress(OSError):
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            if time.monotonic() > until:
                return
            time.sleep(0.01)


def _is_kept(folder: str, fd: int) -> bool:
    """Return whether this open folder is still the one of this name. Raises FileNotFoundError where there is none."""
    return os.path.samestat(os.fstat(fd), status_of(folder))


def _places() -> tuple[str, ...]:
    return (temporary_place(), *TEMPORARY)


def _temporary_folder(name: str, places: Iterable[str]) -> str:
    refused = []
    for parent in dict.fromkeys(places):
        try:
            # Once: who can exchange a link on the way must not have one folder checked, and another one used.
            above = without_links(parent)
            folder = os.path.join(above, name)
            make_private(folder)
            return folder
        except OSError as error:
            refused.append(str(error.strerror) if isinstance(error, NotPrivateError) else f"{parent}: {error.strerror}")
    raise NotPrivateError(errno.EPERM, "; ".join(refused))
