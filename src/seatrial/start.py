"""The start script: it makes a private copy of the bundle on a node, and starts Python with that copy.

    python3 start.py SHA256 FOLDER PART... [-- ARGUMENT...]

The parts, joined in this order, must have this SHA-256. FOLDER holds the copy; the script makes it if it does not
exist, and refuses one that other users can read or write. Without ``--`` the script makes the copy and starts nothing.

``-`` means a copy in memory. It has no name: however long it runs, nobody can put another one in its place, as in that
of a folder among temporary files that a host has cleaned up, and nothing is left of it when its processes have ended.
Python starts from ``/proc/self/fd/N``, and each process that loads the bundle later inherits this descriptor
(``environment/self_location.py``).

This file is sent as text and imports nothing of seatrial. A Python that is too old can still parse it. When the script
cannot start anything, it prints one sentence and ends with exit code 3.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
import sys
from collections.abc import Collection, Iterator, Mapping

_NAME = "seatrial.pyz"
_OLDEST_PYTHON = (3, 10)
_MOST_BYTES = 64 << 20  # a hundred times the size of the bundle
_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 1, 2
"""The Pythons of conda and uv are built where os gets none of these, and run where the C library has memfd_create."""
_DESCRIPTOR = 1000
"""The least number of the copy's descriptor, where the limit of open files allows it. A Python without the copy finds
the number in its PYTHONPATH, too, and must not have another file there."""
_MAX_LINKS = 40  # the kernel's own limit (MAXSYMLINKS in include/linux/namei.h)
_MOST_NAMES = 500
"""Names on a way, those that its links lead through included. No path of a person has a hundred; the kernel would
follow 40 links of 2,000 names each, and to look at each of those takes minutes."""
NOBODY = 65534
"""The user as which the kernel shows the users that a user namespace does not have (user_namespaces(7))."""
_UNASKED = os.O_PATH | os.O_CLOEXEC
_UNASKED_FOLDER = _UNASKED | os.O_DIRECTORY
"""For a folder alone automount mounts what belongs there, such as a disk of data, or the home folder of a user."""
_SEARCHED = {
    **dict.fromkeys(("COMPILER_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH"), ":"),
    "PATH": ":",
    "PYTHONHOME": ":",
    "PYTHONPATH": ":",
    "PYTHONPYCACHEPREFIX": "\0",
    "PYTHONUSERBASE": "\0",
    "LD_AUDIT": ":",
    "LD_LIBRARY_PATH": "[:;]",
    "LD_PRELOAD": "[: ]",
}
"""Variable that says where programs, libraries or modules are -> what separates its entries, as a pattern."""
_BY_DESCRIPTOR = re.compile(r"/proc/self/fd/\d+(?=/|\Z)")
_ORIGIN = re.compile(r"\$(?:ORIGIN|\{ORIGIN\})(?:/|\Z)")


class ForeignError(PermissionError):
    """Another user has mounted the file system that holds a file, and could let each question about it wait."""

    def __init__(self, name: str, user: int) -> None:
        """``name``: of the file. ``user``: who has mounted it."""
        super().__init__(errno.EPERM, f"{name} is on a file system of user {user}, who decides what it shows")


def main(words: "list[str]") -> int:
    """Run the command line. Return 0 without ``--``; else this process becomes Python with the copy."""
    sha256, folder = words[:2]
    end = words.index("--") if "--" in words else len(words)
    parts = words[2:end]
    source = parts[0] if len(parts) == 1 else f"{parts[0]} to {parts[-1]}"
    content = b"".join(map(_read, parts))
    if folder == "-":
        path = f"/proc/self/fd/{copy_in_memory(content, sha256, source)}"
    else:
        path = _write_copy(content, sha256, source, folder)
    if end < len(words):
        environ = {**os.environ, **absolute_entries(os.environ)}
        os.execve(sys.executable, [sys.executable, path, *words[end + 1 :]], environ)
    return 0


def absolute_entries(environ: "Mapping[str, str]", folder: str = "") -> "dict[str, str]":
    """Return the variables of ``environ`` that search the working folder, without the entries that make them do so.

    An empty or relative entry means the working folder. On another host it may be a neighbor's: srun goes to /tmp where
    a host lacks the folder of the user.

    ``folder``: where the relative entries begin, which are then kept, but for those of PATH: a tool is not looked for
    in the working folder, where anybody may have put one. Empty: they are left out.
    """
    changed = {}
    for name, separator in _SEARCHED.items():
        entries = re.split(separator, environ.get(name, ""))
        # A folder whose name has a separator would be several entries.
        begin = "" if name == "PATH" or re.search(f"{separator}|:", folder) else folder
        found = [entry if _is_found_by_loader(name, entry) else _in_folder(begin, entry) for entry in entries]
        kept = [entry for entry in found if entry]
        if name == "PYTHONHOME" and len(kept) != len(entries):
            # It is PREFIX:EXEC_PREFIX, and one of them alone would mean both.
            kept = []
        # Without a value PATH means the working folder, too.
        value = ":".join(kept) or (os.defpath if name == "PATH" else "")
        if kept != entries and value != environ.get(name, value):
            changed[name] = value
    return changed


def _in_folder(folder: str, entry: str) -> str:
    """Return an absolute entry; empty: it has none."""
    return os.path.join(folder, entry) if os.path.isabs(entry) or (folder and entry) else ""


def _is_found_by_loader(name: str, entry: str) -> bool:
    """Return whether the loader looks for an entry that is no absolute path elsewhere than in the working folder."""
    if name.startswith("LD_") and _ORIGIN.match(entry):
        # The folder of the program; the loader of musl takes the word for the name of a folder.
        return "CS_GNU_LIBC_VERSION" in os.confstr_names
    # A bare name is looked for where libraries are.
    return name in ("LD_AUDIT", "LD_PRELOAD") and entry != "" and "/" not in entry


def copy_in_memory(content: bytes, sha256: str, source: str) -> int:
    """Return the descriptor of a copy in memory, which processes that are started inherit. Raises SystemExit.

    ``source``: the origin of the content, for messages.
    """
    _require(content, sha256, source)
    try:
        fd = memory_file(content)
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD, min(_DESCRIPTOR, os.sysconf("SC_OPEN_MAX") - 1))
        finally:
            os.close(fd)
    except OSError as error:
        raise _refusal(
            f"cannot be kept in memory ({error.strerror}); look at the limits of this host (ulimit -a)"
        ) from None


def _write_copy(content: bytes, sha256: str, source: str, folder: str) -> str:
    """Write the content to a file that no other user can change, and return its path. Raises SystemExit."""
    _require(content, sha256, source)
    path = os.path.join(_private_folder(folder), _NAME)
    try:
        if os.path.lexists(path):
            os.unlink(path)
        with open(path, "xb", opener=_open_private) as file:
            file.write(content)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise _refusal(f"cannot be written to {folder} ({error.strerror}); free space there") from None
    return path


def _require(content: bytes, sha256: str, source: str) -> None:
    """Raise SystemExit for another content, and where this Python or this user cannot run it."""
    reason = refusal_of_number()
    if reason:
        raise _refusal(reason)
    if sys.version_info[:2] < _OLDEST_PYTHON:
        version = ".".join(map(str, sys.version_info[:2]))
        raise _refusal(f"needs Python 3.10 or newer, and {sys.executable} is {version}; name a newer one with --python")
    actual = hashlib.sha256(content).hexdigest()
    if actual != sha256:
        raise _refusal(
            f"{source} has the SHA-256 {actual}, and {sha256} was expected; it was changed or truncated on the"
            " way; start the run again"
        )


def memory_file(content: bytes = b"") -> int:
    """Return the descriptor of a new file in memory with this content, which no process inherits yet. Each opening of
    /proc/self/fd/N begins at its first byte. Raises OSError.
    """
    import ctypes  # A Python that is too old may lack it, and is to say so.

    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "memfd_create"):  # glibc before 2.27
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fd: int = library.memfd_create(b"seatrial", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        os.close(fd)
        raise
    return fd


def _read(part: str) -> bytes:
    try:
        # The folder of a run may belong to others, such as the controller's user where that is another one: the SHA-256
        # decides. They may have mounted it on this node alone: the user has chosen the one above. A FIFO would be
        # waited for, and a device never ends.
        folder, name = os.path.split(part)
        above, folder = os.path.split(folder)
        opened = open_named_folder(above or ".")
        try:
            with reached(os.path.join(folder, name), f"/proc/self/fd/{opened}") as fd:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise _refusal(f"{part} is no regular file; others have changed that folder, so name another one")
                with open(open_again(fd, os.O_RDONLY), "rb") as file:
                    return file.read(_MOST_BYTES)
        finally:
            os.close(opened)
    except OSError as error:
        reason = error.strerror
        raise _refusal(f"{part} cannot be read here ({reason}); all nodes must see it at the same path") from None


def _open_private(path: str, flags: int) -> int:
    """Open a new file (``x``) that only this user can read and write, without following a link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def trusted_users(is_below_open: bool = False, owners: "Collection[int]" = ()) -> "set[int]":
    """Return the users who may own a file: this one, root, and ``owners``.

    A container of a user shows root as the one as which it shows all others whom it does not have. Below a folder in
    which a group or all users can make others (``way_to``), that one is not trusted, and nowhere for being one of
    ``owners``, who come from another machine: there the number may be a user's own.
    """
    if not _has_own_numbers():
        return {0, os.geteuid(), *owners}
    as_root = set() if is_below_open else {NOBODY}
    return {0, os.geteuid()} | {*owners} - {NOBODY} | as_root


def owns(folder: int) -> bool:
    """Return whether this user owns an open folder. NFS and FUSE may map all users to one."""
    owner = os.fstat(folder).st_uid
    try:
        return owner == os.geteuid() or owner == owner_of_new_files(folder)
    except OSError:
        return False


def owner_of_new_files(folder: int) -> int:
    """Return the owner of the files that this process creates in a folder."""
    name = f".owner.{os.urandom(8).hex()}"
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        # Some file servers know no file without a name, and some remove none that is open.
        return os.fstat(fd).st_uid
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        os.close(fd)


def refusal_of_number() -> str:
    """Return why this process cannot tell its own files from those of other users; empty: it can."""
    if os.geteuid() != NOBODY or not _has_own_numbers():
        return ""
    return (
        f"cannot tell its files from those of others: this process is user {NOBODY} in a container with own numbers of"
        " users (/proc/self/uid_map), where the kernel shows each user whom the container does not have as that one;"
        " start it as another user of the container"
    )


def way_to(path: str, start: str = "/") -> "Iterator[tuple[str, int, int, bool, bool]]":
    """Yield what the kernel visits on the way from ``start`` to a path, each link among it: the name, a descriptor
    (O_PATH) that is open until the next one, what ``mounted_by`` returns for it, whether it is the last, and, for
    ``trusted_users``, whether others may be able to make files in a folder above. That is asked by descriptors: at a
    name another user may have mounted something since then. Outside of a container of a user, where nobody needs it,
    the folders above ``start`` are left out.

    Nothing has asked the server of that file system yet. The next step does: for a name, or where a link leads.
    ``start`` is a folder, and opened as it is. Raises OSError with the name that cannot be reached.
    """
    names = _names_of(path)
    folder = os.open(start, _UNASKED_FOLDER)
    links = num_visited = 0
    try:
        # By the path of that folder: those above it count, and ".." leads there.
        place = start if start == "/" else os.readlink(f"/proc/self/fd/{folder}")
        mount, user = mount_of(folder), mounted_by(folder)
        is_below_open = start != "/" and _is_below_open(folder)
        yield place, folder, user, not names, is_below_open
        while names:
            num_visited += 1
            if num_visited + len(names) > _MOST_NAMES:
                words = f"there are more than {_MOST_NAMES} names on the way, those of links included"
                raise OSError(errno.ENAMETOOLONG, words, path)
            name = names.pop()
            entry = os.path.dirname(place) if name == ".." else os.path.join(place, name)
            fd = _open_name(name, folder, entry)
            try:
                # To read all mounts takes its time. While the folder is open no other mount gets the number of its one.
                its_mount = mount_of(fd)
                its_user = user if its_mount and its_mount == mount else mounted_by(fd)
                is_open = os.fstat(folder).st_mode & 0o022 != 0
                its_below = _is_below_open(fd) if name == ".." else is_below_open or is_open
                yield entry, fd, its_user, not names, its_below
                if not stat.S_ISLNK(os.fstat(fd).st_mode):
                    place, mount, user, is_below_open = entry, its_mount, its_user, its_below
                    os.dup2(fd, folder, inheritable=False)
                    continue
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = _target_of(fd, entry)
                # One as /proc/PID/root leads past names. Its text is a path of that process: here it leads elsewhere.
                is_past_names = os.path.isabs(target) and os.fstat(fd).st_dev == os.stat("/proc").st_dev
                names += [] if is_past_names else _names_of(target)
            finally:
                os.close(fd)
            if os.path.isabs(target):
                place = target if is_past_names else "/"
                begun = os.open(name, _UNASKED, dir_fd=folder) if is_past_names else os.open(place, _UNASKED_FOLDER)
                os.dup2(begun, folder, inheritable=False)
                os.close(begun)
                mount, user = mount_of(folder), mounted_by(folder)
                is_below_open = is_past_names and _is_below_open(folder)
            if os.path.isabs(target) or not names:
                # The link leads to "/" or ".", or on from there: to what was visited before.
                yield place, folder, user, not names, is_below_open
    finally:
        os.close(folder)


@contextlib.contextmanager
def reached(name: str, start: str) -> "Iterator[int]":
    """Open (O_PATH) what a relative name leads to from a folder that the user has chosen, links followed.

    Other users may have put links there. None of them leads to a device that is opened, or to a file system that may
    answer nothing: raises ForeignError for one of another user, but for that of the folder.
    """
    fd = chosen = -1
    try:
        if not _names_of(name):
            # Of many files in one folder not each is worth reading all mounts.
            fd = os.open(start, _UNASKED_FOLDER)
        for place, found, user, is_last, _ in way_to(name, start) if fd < 0 else ():
            chosen = user if chosen < 0 else chosen
            if user not in (0, chosen):
                raise ForeignError(ascii(place)[1:-1], user)
            if is_last:
                before, fd = fd, os.dup(found)
                if before >= 0:
                    os.close(before)
        yield fd
    finally:
        if fd >= 0:
            os.close(fd)


def open_named_folder(path: "str | os.PathLike[str]") -> int:
    """Open (O_PATH) a folder that a person or a default has named, links followed.

    A file system of another user is asked where the names and links that lead to it are those of root and this user, in
    folders in which no other can make names, and where the working folder, or that of a descriptor
    (``/proc/self/fd/N``), lies on it. Raises ForeignError for any other, and one that was mounted after this process
    had begun, before anything could wait, and PermissionError for a link of another user in a
    folder in which all users can make some, as most kernels do (fs.protected_symlinks).
    """
    path = os.fspath(path)
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    begun = _BY_DESCRIPTOR.match(path)
    start = begun.group() if begun else "/" if os.path.isabs(path) else os.curdir
    names = path[begun.end() :] if begun else path
    if not _names_of(names):
        return os.open(start, _UNASKED_FOLDER)
    opened = -1
    try:
        for fd, is_last in _own_way(names, start):
            if is_last:
                before, opened = opened, os.dup(fd)
                if before >= 0:
                    os.close(before)
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    except BaseException:
        if opened >= 0:
            os.close(opened)
        raise
    return opened


def _own_way(names: str, start: str) -> "Iterator[tuple[int, bool]]":
    """Yield the descriptors of ``way_to``, and whether each is the last. Raises as ``open_named_folder`` does."""
    entered: set[int] = set()
    is_theirs, mode, owner = False, 0, 0
    for place, fd, user, is_last, is_below_open in way_to(names, start):
        # A user who can write to a folder can mount something over it, wherever it lies.
        is_new = user != 0 and _identity(_line_of(mount_of(fd))) not in _FIRST_MOUNTS
        if entered and user not in entered and (is_theirs or mode & 0o022 or is_new):
            raise ForeignError(ascii(place)[1:-1], user)
        entered |= {0, user}
        status = os.fstat(fd)
        is_foreign = user != 0 or status.st_uid not in trusted_users(is_below_open)
        if not stat.S_ISLNK(status.st_mode):
            mode, owner = status.st_mode, status.st_uid
            is_foreign = is_foreign or (mode & 0o022 != 0 and not mode & stat.S_ISVTX)
        elif is_foreign and mode & stat.S_ISVTX and mode & stat.S_IWOTH and owner != status.st_uid:
            words = f"is a link of user {status.st_uid}, in a folder where all users can make links"
            raise PermissionError(errno.EACCES, f"{ascii(place)[1:-1]} {words}", place)
        is_theirs = is_theirs or is_foreign
        yield fd, is_last


def _identity(line: bytes) -> bytes:
    """Return number, parent, device, root and place of a mount. A number alone may be that of an ended one."""
    return b" ".join(line.split()[:5])


def _mounts() -> "frozenset[bytes]":
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as mounts:
        return frozenset(map(_identity, mounts))
    return frozenset()


_FIRST_MOUNTS = _mounts()
"""The mounts that there were when this process began."""


def open_again(looked_at: int, access: int) -> int:
    """Open a file that was opened with O_PATH, once it is known to be none that waits: another one may have its name.

    A terminal would become that of this process, if it leads a session without one (open(2), O_NOCTTY), and its owner
    could then end it.
    """
    return os.open(f"/proc/self/fd/{looked_at}", access | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def _names_of(path: str) -> "list[str]":
    """Return the names in a path, the first one last."""
    return [name for name in path.split("/")[::-1] if name not in ("", ".")]


def _open_name(name: str, folder: int, entry: str) -> int:
    try:
        try:
            return os.open(name, _UNASKED_FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        except NotADirectoryError:
            return os.open(name, _UNASKED | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, entry) from None


def _target_of(link: int, entry: str) -> str:
    try:
        return os.readlink("", dir_fd=link)
    except OSError as error:
        # A link of procfs may lead nowhere, which the kernel says without a name.
        raise OSError(error.errno, error.strerror, entry) from None


def status_of(path: "str | os.PathLike[str]") -> os.stat_result:
    """Return the status of what is at a path, a link, too. Raises ForeignError before anything could wait for it; what
    holds it counts as ours."""
    fd = os.open(path, _UNASKED | os.O_NOFOLLOW)
    try:
        user = mounted_by(fd)
        if user:
            raise ForeignError(os.fspath(path), user)
        return os.fstat(fd)
    finally:
        os.close(fd)


def mounted_by(fd: int) -> int:
    """Return the other user who mounted the file system of an open file by FUSE, and so decides which owners, modes and
    contents it shows to others, and when; 0 for one of root or of this user, and for all others, which root mounts.

    It asks the kernel alone: that user's server may answer nothing, and nobody can end a process that waits for it.
    Raises OSError where the file system was unmounted meanwhile.
    """
    mount = mount_of(fd)
    line = _line_of(mount)
    # The last word is the kernel's; the source before it may be any words of that user.
    options = line.decode(errors="replace").split()[-1].split(",") if line else []
    user = next((int(option[8:]) for option in options if re.fullmatch(r"user_id=\d+", option)), -1)
    if user >= 0:
        # In a container it is the number in the namespace in which it was mounted (fuse_show_options), which may be
        # this one or any above: only root is the same in all of them, as far as we trust it. Where others are not
        # allowed, the kernel itself refuses all but that user, and asks no server (fuse_allow_current_process).
        is_ours = user == 0 or "allow_other" not in options if _has_own_numbers() else user == os.geteuid()
        return 0 if is_ours else user
    # An unmounted file system stays usable where it is open, without a line. After chroot that of "/" has none, either.
    root = os.open("/", _UNASKED)
    known = {"", mount_of(root)}
    os.close(root)
    if not line and mount not in known:
        path = os.readlink(f"/proc/self/fd/{fd}")
        raise OSError(errno.ESTALE, "its file system was unmounted meanwhile, or is mounted for others only", path)
    return 0


def mount_of(fd: int) -> str:
    """Return the number of the mount of an open file; an empty text where the kernel does not say it."""
    with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
        found = re.search(r"^mnt_id:\s*(\d+)", lines.read(), re.MULTILINE)
        return found.group(1) if found else ""
    return ""


def _line_of(mount: str) -> bytes:
    """Return the line of mountinfo of a mount; empty: it has none."""
    found = None
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as mounts:
        found = re.search(rb"^%b .*" % mount.encode(), mounts.read(), re.MULTILINE)
    return found.group() if found else b""


def user_outside() -> int:
    """Return the number that this user has outside of its container, if the container has a separate set of users."""
    user = os.geteuid()
    with contextlib.suppress(OSError), open("/proc/self/uid_map", encoding="ascii") as lines:
        for line in lines:
            first, outside, count = map(int, line.split())
            if first <= user < first + count:
                return outside + user - first
    return user


def _has_own_numbers() -> bool:
    """Return whether this is a user namespace whose numbers of users are not those of the machine."""
    with contextlib.suppress(OSError), open("/proc/self/uid_map", encoding="ascii") as lines:
        return lines.read().split() != ["0", "0", str(2**32 - 1)]
    return False


def _is_below_open(fd: int) -> bool:
    """Return whether others can, or may be able to, make files in a folder above an open one.

    One that is closed to us counts, and one on the file system of another user, who may answer nothing.
    """
    if not _has_own_numbers():
        return False
    folder, mount, below = os.dup(fd), "", None
    try:
        for _ in range(_MOST_NAMES):
            its_mount = mount_of(folder)
            if its_mount != mount and mounted_by(folder):
                return True
            status = os.fstat(folder)
            if below and its_mount == mount and os.path.samestat(status, below):
                return False  # "/" is above itself.
            # Where an access control list names users, the bits of the group are what it allows at most.
            if below and status.st_mode & 0o022:
                return True
            mount, below = its_mount, status
            above = os.open("..", _UNASKED_FOLDER, dir_fd=folder)
            os.dup2(above, folder, inheritable=False)
            os.close(above)
    except OSError:
        return True
    finally:
        os.close(folder)
    return True


def without_links(path: str) -> str:
    """Return the path without links in it. Raises ForeignError before anything could wait for another user."""
    name = "/"
    for name, _, user, _, _ in way_to(os.path.join(os.getcwd(), path)):
        if user:
            raise ForeignError(name, user)
    return name


def _private_folder(folder: str) -> str:
    try:
        without_links(os.path.dirname(folder))
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status = status_of(folder)
    except OSError as error:
        raise _refusal(f"cannot be kept in {folder} ({error.strerror}); name another one") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        mode = stat.filemode(status.st_mode)
        raise _refusal(
            f"cannot be kept in {folder}: only user {os.geteuid()} may have access to that folder, and it is {mode} of"
            f" user {status.st_uid}; remove it"
        )
    return folder


def _refusal(reason: str) -> SystemExit:
    """Print why the bundle cannot start, and return the exception that ends the script."""
    sys.stderr.write(f"Error: the bundle {reason}.\n")
    return SystemExit(3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
