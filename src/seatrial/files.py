"""The files that seatrial creates, appends to, locks, replaces, removes or trusts. No other module opens a file to
write to it, or removes it.

Other users may write to the folder of such a file, and may put a symbolic link, a FIFO, a device or another name (a
hard link) of a file of ours where the file is expected. Hence:

- the folder is opened once, and the file by that descriptor, so that nobody exchanges the folder in between;
- a link is never followed, and whatever exists must be a regular file of ours with one name;
- what is only read may be behind links, and is looked at before it is opened: a terminal of a neighbor's would become
  that of a rank, and its owner could end the rank;
- a file is created with the mode that the umask leaves, so no mode is set by name; where its folder has a default
  access control list, which replaces the umask (acl(5)), that mode limits what the list gives to others;
- the folder of a run is ours: its owner could have others read and exchange what it holds;
- nothing here waits for what another user has put there, also not for a file system that this user has mounted at the
  name of a file (FUSE): the mount is judged before anything asks it. A folder that lies on such a file system, and a
  file that a person names to be read, can keep us waiting.

The folder may be a link: users link folders of data. Raised errors are OSErrors; ``strerror`` is a phrase for a person.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import select
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from seatrial.start import (
    ForeignError,
    mount_of,
    mounted_by,
    open_again,
    open_named_folder,
    owner_of_new_files,
    owns,
    reached,
)
from seatrial.ways import require_openly_led

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DESCRIPTOR = re.compile(r"/(dev/fd|proc/self/fd)/\d+|/dev/stdin|/dev/null")
"""Names of what this process was started with, whoever owns it, and of what never waits."""
_KERNEL_FILE_SYSTEMS = {"proc", "sysfs", "debugfs", "tracefs", "securityfs", "configfs", "cgroup", "cgroup2", "pstore"}
_MOST_NAME_BYTES = 100
"""What a temporary name keeps of the name of its file. Encrypted home folders (eCryptfs) take 143 bytes at most."""
_WRITER_S = 60
"""Time for another program of the user to write to a FIFO. Nobody types the name of one that nothing will write to."""
_TRIES = 100
"""Attempts to open a file that others create and remove meanwhile."""
_KINDS = (
    (stat.S_ISREG, "a regular file"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def create(path: str | os.PathLike[str], *, mode: int = 0o666, run_folder: bool = False) -> io.FileIO:
    """Create a file, and open it unbuffered for writing and reading. Raises FileExistsError for any existing name.

    Args:
        path: the file.
        mode: its mode, from which the umask is taken away.
        run_folder: the folder is one that seatrial made, so that it must be ours, and neither a link, nor the mount of
            another user in the folder above.
    """
    with _folder(path, run_folder) as (folder, name):
        return _unbuffered(_open_new(name, os.O_RDWR, mode, folder))


def open_to_append(path: str | os.PathLike[str], *, run_folder: bool = False) -> io.FileIO:
    """Open a file of ours, or a new one, unbuffered for reading and for writing at its end.

    Args:
        path: the file.
        run_folder: as in ``create``.
    """
    return _unbuffered(_open_ours(path, os.O_RDWR | os.O_APPEND, run_folder=run_folder))


def open_to_overwrite(path: str | os.PathLike[str], *, run_folder: bool = False) -> io.FileIO:
    """Open a file of ours without its content, or a new one, unbuffered for writing and reading.

    Args:
        path: the file.
        run_folder: as in ``create``.
    """
    fd = _open_ours(path, os.O_RDWR, run_folder=run_folder)
    os.ftruncate(fd, 0)
    return _unbuffered(fd)


def open_lock(path: str | os.PathLike[str]) -> int:
    """Open a file to lock it with flock, and return its descriptor. A new one is empty.

    The lock of another user can be waited for, too: users of a group share folders of data. ``write_holder`` does not
    write to it. A user who can read a file can lock it, so only users who can write to a new one can read it.
    """
    return _open_ours(path, os.O_RDWR, foreign=True, mode=_without_readers(0o666 & ~umask_of_process()))


def write_holder(lock: int, text: str) -> None:
    """Replace the content of a lock, and keep out who can only read it, unless its file belongs to another user or has
    several names."""
    status = os.fstat(lock)
    if status.st_uid == os.geteuid() and status.st_nlink == 1:
        mode = stat.S_IMODE(status.st_mode)
        if mode != _without_readers(mode):  # An older version made it.
            with contextlib.suppress(OSError):
                os.fchmod(lock, _without_readers(mode))
        os.ftruncate(lock, 0)
        os.pwrite(lock, text.encode(), 0)


def other_holders(lock: int, named: Path) -> str:
    """Return the end of a sentence about users who may hold a lock and cannot write to it; empty: nobody can.

    ``named``: the path of the lock for a person.
    """
    mode = stat.S_IMODE(os.fstat(lock).st_mode)
    if mode == _without_readers(mode):
        return ""
    return f"; if that one has ended, a user who can read {named} holds this lock: remove the file"


def _without_readers(mode: int) -> int:
    """Return a mode without the right of other users to read where they have none to write."""
    return mode & ~(~mode << 1 & 0o044)


def open_to_read(
    path: str | os.PathLike[str],
    *,
    follows_links: bool = True,
    run_folder: bool = False,
    named_folder: str | os.PathLike[str] | None = None,
) -> BinaryIO:
    """Open a regular file to read it. Never opens anything else, and never waits.

    Args:
        path: the file.
        follows_links: it may be a link.
        run_folder: as in ``create``; the file must be ours, with one name, and no link. A report repeats its text and
            others may read the report, so the link of another user would show them a secret of ours.
        named_folder: the folder above the file that a person has named, whoever mounted it; others may have made what
            lies below. Default: the one that holds the file.
    """
    if run_folder:
        with _folder(path, run_folder) as (folder, name):
            return os.fdopen(_open_existing(folder, name, os.O_RDONLY, foreign=False), "rb")
    with _behind_links(path, named_folder) if follows_links else _entry(path, named_folder) as looked_at:
        status = _readable_status(looked_at, os.path.basename(path))
        if not stat.S_ISREG(status.st_mode):
            raise _refusal(os.path.basename(path), f"{kind_of(status)} and no regular file")
        return os.fdopen(_open_blocking(looked_at, os.O_RDONLY), "rb")


def status_behind_links(
    path: str | os.PathLike[str], named_folder: str | os.PathLike[str] | None = None
) -> os.stat_result:
    """Return the status of what ``open_to_read`` would open with the same arguments. Raises OSError as it does."""
    with _behind_links(path, named_folder) as looked_at:
        return os.fstat(looked_at)


def status_of_entry(path: str | os.PathLike[str], named_folder: str | os.PathLike[str] | None = None) -> os.stat_result:
    """Return the status of an entry of a folder, a link, too. Raises ForeignError where another user has mounted it.

    ``named_folder``: as in ``open_to_read``.
    """
    with _entry(path, named_folder) as looked_at:
        return os.fstat(looked_at)


def has_entry(path: str | os.PathLike[str], named_folder: str | os.PathLike[str] | None = None) -> bool:
    """Return whether there is an entry, which may be a link, or anything that another user has mounted.

    ``named_folder``: as in ``open_to_read``.
    """
    try:
        status_of_entry(path, named_folder)
    except OSError as error:
        return isinstance(error, ForeignError)
    return True


def exists(path: str | os.PathLike[str]) -> bool:
    """Return whether a path leads to something, behind links, too: also to what this user may not look at, and what
    another user has mounted."""
    try:
        status_behind_links(path)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def names_in(folder: str | os.PathLike[str], named_folder: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the names in a folder. Raises OSError as ``open_to_read`` does, NotADirectoryError for a file.

    ``named_folder``: as in ``open_to_read``. Default: this folder.
    """
    with _behind_links(folder, folder if named_folder is None else named_folder) as looked_at:
        fd = open_again(looked_at, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)


def statuses_in(
    folder: str | os.PathLike[str], names: Iterable[str], named_folder: str | os.PathLike[str] | None = None
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield names of a folder with the status of the entry, a link, too. Leaves out what is gone, or mounted there: to
    read all mounts for each of the thousands that others can put there takes minutes.

    ``named_folder``: as in ``names_in``.
    """
    with _behind_links(folder, folder if named_folder is None else named_folder) as looked_at:
        mount = mount_of(looked_at)
        for name in names:
            with contextlib.suppress(OSError), _looked_at(name, looked_at) as entry:
                if mount_of(entry) == mount:
                    yield name, os.fstat(entry)


def owner_in(folder: str | os.PathLike[str]) -> int:
    """Return the user as whose the folder of a run shows what is ours: a share may show all users as another one."""
    fd = open_run_folder(os.fspath(folder))
    try:
        return os.fstat(fd).st_uid
    finally:
        os.close(fd)


def read_input(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Return the content of a file that a person named, at most one byte more than ``most_bytes``; links are followed.

    It may be a pipe of the same user, as ``<(...)`` of a shell makes it, which may take its time. For a FIFO of another
    user, who could keep us waiting, nobody waits. Parts of the content go elsewhere, to hosts and name servers: raises
    PermissionError where another user may have led the path to a file that is none of that one's.
    """
    with _behind_links(path, None) as looked_at:
        status = _readable_status(looked_at, os.path.basename(path))
        is_given = _DESCRIPTOR.fullmatch(os.fspath(path)) is not None
        is_pipe = stat.S_ISFIFO(status.st_mode) and status.st_uid == os.geteuid()
        if not (stat.S_ISREG(status.st_mode) or is_given or is_pipe):
            raise _refusal(os.path.basename(path), f"{kind_of(status)} of user {status.st_uid}")
        if not is_given:
            require_openly_led(os.fspath(path), looked_at)
        with os.fdopen(_open_blocking(looked_at, os.O_RDONLY), "rb") as file:
            if is_pipe and not is_given:
                _await_writer(file.fileno(), os.path.basename(path))
            return file.read(most_bytes + 1)


def _await_writer(fifo: int, name: str) -> None:
    """Wait for the first bytes of a FIFO, or the end of its writer; until one has opened it, it would seem empty."""
    waiting = select.poll()
    waiting.register(fifo, select.POLLIN)
    if not waiting.poll(_WRITER_S * 1000):
        raise OSError(errno.ETIMEDOUT, f"{ascii(name)[1:-1]} is a FIFO, and nobody wrote to it for {_WRITER_S} seconds")


def read_trusted(path: str | os.PathLike[str], most_bytes: int, *, private: bool = False) -> bytes:
    """Return the content of a file by which another user could decide what we do: options, or a secret.

    It must be a regular file of ours or of root, which nobody else can change; a link is not followed. The folders
    above it are not looked at.

    Args:
        path: the file.
        most_bytes: its greatest size.
        private: only we may own it, and nobody else may read it.
    """
    name = os.path.basename(os.fspath(path))
    with _looked_at(path) as fd:
        _require_trusted(fd, name, private)
        with os.fdopen(open_again(fd, os.O_RDONLY), "rb") as file:
            content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"{ascii(name)[1:-1]} has more than {most_bytes:,} bytes")
    return content


def require_ours(path: str | os.PathLike[str]) -> None:
    """Raise OSError where the path exists and is no regular file of ours with one name: for a file that a library opens
    by its path, which may be exchanged before it does."""
    with contextlib.suppress(FileNotFoundError), _folder(path, False) as (folder, name):
        _require_ours(name, folder)


def write_atomically(
    path: str | os.PathLike[str],
    content: bytes,
    *,
    mode: int = 0o666,
    run_folder: bool = False,
    only_ours: bool = False,
) -> None:
    """Replace a file, or a link of its name, with the content, or leave it as it was; no reader sees half of it.

    Args:
        path: the file.
        content: all of its content.
        mode: as in ``create``.
        run_folder: as in ``create``.
        only_ours: refuse to replace anything but a regular file of ours with one name.
    """
    with _folder(path, run_folder) as (folder, name):
        if only_ours:
            with contextlib.suppress(FileNotFoundError):
                _require_ours(name, folder)
        with _temporary(folder, name, content, mode) as (temporary, _):
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextlib.contextmanager
def replacement(path: str | os.PathLike[str], content: bytes) -> Iterator[Callable[[], None]]:
    """Write content beside a file of a run; yield what replaces the file with it, as ``write_atomically`` does."""
    with _folder(path, True) as (folder, name), _temporary(folder, name, content, 0o666) as (temporary, _):
        yield lambda: os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def require_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise OSError where ``write_atomically`` could not replace a file, or should not: a folder or a file that this
    user may not write to, also behind a link, or what another user has mounted."""
    with _folder(path, False) as (folder, name):
        with contextlib.suppress(FileNotFoundError), reached(name, f"/proc/self/fd/{folder}") as fd:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not os.access(f"/proc/self/fd/{fd}", os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with _temporary(folder, name, b"", 0o666):
            pass


def create_whole(path: str | os.PathLike[str], content: bytes, *, mode: int = 0o666) -> None:
    """Create a file with all of its content; no reader sees half of it. Raises FileExistsError for any existing name.

    Of several processes that do this at once the first one wins. Where others can rename, raises PermissionError if one
    of them has put something else at the name.

    Args:
        path: the file.
        content: all of its content.
        mode: as in ``create``.
    """
    with _folder(path, False) as (folder, name), _temporary(folder, name, content, mode) as (temporary, written):
        # By default the file that a link leads to would get the name.
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        with _looked_at(name, folder) as fd:
            _require_mount(fd, name, folder)
            if not os.path.samestat(os.fstat(fd), os.fstat(written)):
                words = "is another file than the one that was written, since others can rename in its folder"
                raise PermissionError(errno.EPERM, f"{ascii(name)[1:-1]} {words}; name another place")


def remove(path: str | os.PathLike[str], *, run_folder: bool = False, only_ours: bool = False) -> None:
    """Remove a file, or a link of this name.

    Args:
        path: the file.
        run_folder: as in ``create``.
        only_ours: refuse to remove anything but a regular file of ours with one name.
    """
    with _folder(path, run_folder) as (folder, name):
        if only_ours:
            _require_ours(name, folder)
        os.unlink(name, dir_fd=folder)


def rename_durably(source: Path, target: Path) -> None:
    """Rename a file to another name in the same folder, and write the folder to the disk."""
    with _folder(target, False) as (folder, name):
        os.replace(source.name, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)


@contextlib.contextmanager
def _temporary(folder: int, name: str, content: bytes, mode: int) -> Iterator[tuple[str, int]]:
    """Yield the name and the descriptor of a file with this content beside the one that it will become. It is removed
    afterwards."""
    beginning = os.fsencode(name)[:_MOST_NAME_BYTES].decode(errors="ignore")
    temporary = f".{beginning}.{os.urandom(8).hex()}"
    with os.fdopen(_open_new(temporary, os.O_WRONLY, mode, folder), "wb") as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            yield temporary, file.fileno()
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)


@contextlib.contextmanager
def _folder(path: str | os.PathLike[str], run_folder: bool) -> Iterator[tuple[int, str]]:
    """Open the folder of a file. Yields its descriptor, and the name of the file in it."""
    parent, name = os.path.split(os.fspath(path))
    parent = parent or os.curdir
    try:
        fd = open_run_folder(parent) if run_folder else os.open(parent, _FOLDER)
    except NotADirectoryError:
        # Linux reports a link in this way, too.
        raise _refusal(os.path.basename(parent), f"{kind_of(status_of_entry(parent))} and no folder") from None
    try:
        yield fd, name
    finally:
        os.close(fd)


def open_run_folder(path: str) -> int:
    above, name = os.path.split(path)
    folder = open_named_folder(above or os.curdir)
    try:
        looked_at = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            _require_mount(looked_at, name, folder)
            # Its owner could have others read what it will hold, by an access control list, and exchange each file.
            if not owns(looked_at):
                raise _refusal(name, f"a folder of user {os.fstat(looked_at).st_uid}")
            return os.open(os.curdir, _FOLDER, dir_fd=looked_at)
        finally:
            os.close(looked_at)
    finally:
        os.close(folder)


def _open_ours(
    path: str | os.PathLike[str], access: int, *, run_folder: bool = False, foreign: bool = False, mode: int = 0o666
) -> int:
    """Create a file, or open an existing one if it is ours. ``foreign``: any regular file will do."""
    with _folder(path, run_folder) as (folder, name):
        for _ in range(_TRIES):
            with contextlib.suppress(FileExistsError):
                return _open_new(name, access, mode, folder)
            with contextlib.suppress(FileNotFoundError):
                return _open_existing(folder, name, access, foreign=foreign)
    raise OSError(errno.EBUSY, f"{name} was created and removed {_TRIES} times meanwhile")


def _open_new(name: str, access: int, mode: int, folder: int) -> int:
    return os.open(name, access | _NEW, mode & ~umask_of_process(), dir_fd=folder)


def umask_of_process() -> int:
    """Return the umask of this process; 0 where the kernel does not say it (before Linux 4.7), and applies it alone."""
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as lines:
        found = re.search(rb"^Umask:\s*([0-7]+)$", lines.read(), re.MULTILINE)
        return int(found[1], 8) if found else 0
    return 0


def _open_existing(folder: int, name: str, access: int, *, foreign: bool) -> int:
    """Open a file in a folder if it is ours. ``foreign``: any regular file will do."""
    with _looked_at(name, folder) as looked_at:
        _require_mount(looked_at, name, folder)
        _require_kind_and_owner(looked_at, name, folder, foreign)
        return _open_blocking(looked_at, access)


@contextlib.contextmanager
def _looked_at(path: str | os.PathLike[str], folder: int | None = None) -> Iterator[int]:
    """Open what is at a path, a link, too, without asking its file system, which another user may have mounted."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def file_system_of(status: os.stat_result) -> str:
    """Return the kind of the file system of a file; empty: not known."""
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as mounts:
        for line in mounts:
            # In a name of a folder the kernel escapes blanks of ASCII alone.
            words = line.split(b" ")
            major, minor = words[2].split(b":")
            if os.makedev(int(major), int(minor)) == status.st_dev:
                return words[words.index(b"-") + 1].decode(errors="replace")
    return ""


def _readable_status(looked_at: int, name: str) -> os.stat_result:
    status = os.fstat(looked_at)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    # Their files are regular by their mode, and the kernel makes them when they are read: that may wait for ever
    # (/proc/kmsg, trace_pipe), or take what others should read.
    if (file_system := file_system_of(status)) in _KERNEL_FILE_SYSTEMS:
        raise _refusal(name, f"a file of the kernel ({file_system})")
    return status


@contextlib.contextmanager
def _behind_links(path: str | os.PathLike[str], named_folder: str | os.PathLike[str] | None) -> Iterator[int]:
    """Open what is at a path as ``start.reached`` does."""
    if _DESCRIPTOR.fullmatch(os.fspath(path)):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
    else:
        with reached(*_in_named_folder(path, named_folder)) as fd:
            yield fd


@contextlib.contextmanager
def _entry(path: str | os.PathLike[str], named_folder: str | os.PathLike[str] | None = None) -> Iterator[int]:
    """Open an entry of a folder, a link, too; only the way to the folder follows links."""
    name, start = _in_named_folder(path, named_folder)
    folder_name, name = os.path.split(name)
    with reached(folder_name, start) as folder, _looked_at(name, folder) as looked_at:
        _require_mount(looked_at, name, folder)
        yield looked_at


def _in_named_folder(path: str | os.PathLike[str], named_folder: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Return the part of a path below the folder that a person named, and that folder."""
    if named_folder is None:
        folder, name = os.path.split(os.fspath(path))
        if not (folder or name):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "")
        return name, folder or os.curdir
    return os.fspath(Path(path).relative_to(named_folder)), os.fspath(named_folder)


def _open_blocking(looked_at: int, access: int) -> int:
    fd = open_again(looked_at, access)
    os.set_blocking(fd, True)
    return fd


def _require_ours(name: str, folder: int) -> None:
    with _looked_at(name, folder) as fd:
        _require_mount(fd, name, folder)
        _require_kind_and_owner(fd, name, folder, False)


def _require_mount(fd: int, name: str, folder: int) -> None:
    # A folder on the file system of another user is the choice of this one. To read all mounts takes its time.
    if mount_of(fd) != mount_of(folder) and (user := mounted_by(fd)) not in (0, mounted_by(folder)):
        raise ForeignError(ascii(name)[1:-1], user)


def _require_kind_and_owner(fd: int, name: str, folder: int, foreign: bool) -> None:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise _refusal(name, f"{kind_of(status)} and no regular file")
    if foreign:
        return
    if status.st_nlink > 1:
        raise _refusal(name, _many_names(status))
    if status.st_uid != os.geteuid() and status.st_uid != owner_of_new_files(folder):
        raise _refusal(name, f"a file of user {status.st_uid}")


def _many_names(status: os.stat_result) -> str:
    return f"a file with {status.st_nlink} names (hard links)"


def _require_trusted(fd: int, name: str, private: bool) -> None:
    if user := mounted_by(fd):
        raise ForeignError(ascii(name)[1:-1], user)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise _refusal(name, f"{kind_of(status)} and no regular file")
    # A secret has two names while it is created (create_whole).
    if status.st_nlink > 1 and not private:
        raise _refusal(name, _many_names(status))
    if status.st_uid != os.geteuid() and (private or status.st_uid != 0):
        raise _refusal(name, f"a file of user {status.st_uid}, not of user {os.geteuid()}")
    if status.st_mode & (0o077 if private else 0o022):
        can, mode = ("read or changed", "go-rwx") if private else ("changed", "go-w")
        words = f"{stat.filemode(status.st_mode)}, so others could have {can} it; chmod {mode} it"
        raise OSError(errno.EPERM, f"{ascii(name)[1:-1]} is {words} once you have looked at it")


def kind_of(status: os.stat_result) -> str:
    """Return what an entry of a folder is: ``a regular file``, ``a FIFO``."""
    return next((words for is_kind, words in _KINDS if is_kind(status.st_mode)), "a special file")


def _refusal(name: str, found: str) -> OSError:
    return OSError(errno.EINVAL, f"{ascii(name)[1:-1]} is {found}; remove it or name another place")


def _unbuffered(fd: int) -> io.FileIO:
    return io.FileIO(fd, "r+b")
