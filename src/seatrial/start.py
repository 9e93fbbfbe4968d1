"""The start script: it makes a private copy of the bundle on a node, and starts Python with that copy.

    python3 start.py SHA256 FOLDER PART... [-- ARGUMENT...]

The parts, joined in this order, must have this SHA-256. FOLDER holds the copy; the script makes it if it does not
exist, and refuses one that other users can read or write. ``-`` means a new folder in TMPDIR, /tmp or /var/tmp. The
bundle removes that folder when it ends (SEATRIAL_COPY, ``environment/self_location.py``); a process that is killed
leaves it behind. Without ``--`` the script makes the copy and starts nothing.

This file is sent as text and imports nothing of seatrial. A Python that is too old can still parse it. When the script
cannot start anything, it prints one sentence and ends with exit code 3.
"""

import contextlib
import errno
import hashlib
import os
import re
import stat
import sys
from collections.abc import Collection, Mapping

_NAME = "seatrial.pyz"
_OLDEST_PYTHON = (3, 10)
_TEMPORARY = ("/tmp", "/var/tmp")
_MOST_BYTES = 64 << 20
"""A hundred times the size of the bundle."""
_NOBODY = 65534
"""The user as which the kernel shows the users that a user namespace does not have (user_namespaces(7))."""
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
_ORIGIN = re.compile(r"\$(?:ORIGIN|\{ORIGIN\})(?:/|\Z)")


def main(words: "list[str]") -> int:
    """Run the command line. Return 0 without ``--``; else this process becomes Python with the copy."""
    sha256, folder = words[:2]
    end = words.index("--") if "--" in words else len(words)
    parts = words[2:end]
    source = parts[0] if len(parts) == 1 else f"{parts[0]} to {parts[-1]}"
    path = write_copy(b"".join(map(_read, parts)), sha256, source, folder)
    if end < len(words):
        private = {"SEATRIAL_COPY": os.path.dirname(path)} if folder == "-" else {}
        environ = {**os.environ, **absolute_entries(os.environ), **private}
        os.execve(sys.executable, [sys.executable, path, *words[end + 1 :]], environ)
    return 0


def absolute_entries(environ: "Mapping[str, str]") -> "dict[str, str]":
    """Return the variables of ``environ`` that search the working folder, without the entries that make them do so.

    An empty or relative entry means the working folder. On another host it may be a neighbor's: srun goes to /tmp where
    a host lacks the folder of the user.
    """
    changed = {}
    for name, separator in _SEARCHED.items():
        entries = re.split(separator, environ.get(name, ""))
        kept = [entry for entry in entries if os.path.isabs(entry) or _is_found_by_loader(name, entry)]
        if name == "PYTHONHOME" and kept != entries:
            # It is PREFIX:EXEC_PREFIX, and one of them alone would mean both.
            kept = []
        # Without a value PATH means the working folder, too.
        value = ":".join(kept) or (os.defpath if name == "PATH" else "")
        if kept != entries and value != environ.get(name, value):
            changed[name] = value
    return changed


def _is_found_by_loader(name: str, entry: str) -> bool:
    """Return whether the loader looks for an entry that is no absolute path elsewhere than in the working folder."""
    if name.startswith("LD_") and _ORIGIN.match(entry):
        # The folder of the program; the loader of musl takes the word for the name of a folder.
        return "CS_GNU_LIBC_VERSION" in os.confstr_names
    # A bare name is looked for where libraries are.
    return name in ("LD_AUDIT", "LD_PRELOAD") and entry != "" and "/" not in entry


def write_copy(content: bytes, sha256: str, source: str, folder: str) -> str:
    """Write the content to a file that no other user can change, and return its path. Raises SystemExit.

    ``source``: the origin of the content, for messages. ``folder``: as on the command line.
    """
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
    private = _new_folder() if folder == "-" else _private_folder(folder)
    path = os.path.join(private, _NAME)
    try:
        if os.path.lexists(path):
            os.unlink(path)
        with open(path, "xb", opener=_open_private) as file:
            file.write(content)
    except OSError as error:
        remove_copy(path)
        parent = os.path.dirname(private) if folder == "-" else private
        raise _refusal(f"cannot be written to {parent} ({error.strerror}); free space there, or set TMPDIR") from None
    except BaseException:
        remove_copy(path)
        raise
    return path


def remove_copy(path: str) -> None:
    """Remove a copy and its folder. It is no error if they do not exist."""
    with contextlib.suppress(OSError):
        os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))


def _read(part: str) -> bytes:
    try:
        # The folder of a run may belong to others: a FIFO would be waited for, and a device never ends.
        with open(os.open(part, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _refusal(f"{part} is no regular file; others have changed that folder, so name another one")
            return file.read(_MOST_BYTES)
    except OSError as error:
        reason = error.strerror
        raise _refusal(f"{part} cannot be read here ({reason}); all nodes must see it at the same path") from None


def _open_private(path: str, flags: int) -> int:
    """Open a new file (``x``) that only this user can read and write, without following a link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _new_folder() -> str:
    refused = []
    for parent in filter(None, (os.environ.get("TMPDIR"), *_TEMPORARY)):
        # Once: who can exchange a link on the way must not have one folder checked, and another one used.
        folder = os.path.realpath(parent)
        name = os.path.join(folder, "seatrial-" + os.urandom(8).hex())
        try:
            if os.pathsep in name:
                # The bundle puts its path into PYTHONPATH, where this character separates paths.
                refused.append(f"{parent} contains {os.pathsep!r}")
                continue
            exchanged_by = _possible_exchange(folder)
            if exchanged_by:
                refused.append(exchanged_by)
                continue
            os.mkdir(name, 0o700)
            return name
        except OSError as error:
            refused.append(f"{parent}: {error.strerror}")
    raise _refusal(f"finds no temporary folder ({'; '.join(refused)}); set TMPDIR to one that only you can write to")


def trusted_users(path: str = "/", owners: "Collection[int]" = ()) -> "set[int]":
    """Return the users who may own what is at ``path``: this one, root, and ``owners``.

    A container of a user shows root as the one as which it shows all others whom it does not have. Below a folder in
    which a group or all users can make others, that one is not trusted, and nowhere for being one of ``owners``, who
    come from another machine: there the number may be a user's own. ``path``: with no link in it but the last name.
    """
    if not _has_own_numbers():
        return {0, os.geteuid(), *owners}
    as_root = set() if _is_below_open(path) else {_NOBODY}
    return {0, os.geteuid()} | {*owners} - {_NOBODY} | as_root


def refusal_of_number() -> str:
    """Return why this process cannot tell its own files from those of other users; empty: it can."""
    if os.geteuid() != _NOBODY or not _has_own_numbers():
        return ""
    return (
        f"cannot tell its files from those of others: this process is user {_NOBODY} in a container with own numbers of"
        " users (/proc/self/uid_map), where the kernel shows each user whom the container does not have as that one;"
        " start it as another user of the container"
    )


def status_and_mounter(path: "str | os.PathLike[str]") -> "tuple[os.stat_result, int]":
    """Return the status of what is at a path, a link, too, and the user that ``mounted_by`` returns for it."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.fstat(fd), mounted_by(fd)
    finally:
        os.close(fd)


def mounted_by(fd: int) -> int:
    """Return the other user who mounted the file system of an open file by FUSE, and so decides which owners, modes and
    contents it shows to others; 0 for one of root or of this user, and for all other file systems, which root mounts.

    The kernel shows the number that the user has where it was mounted, in a container, too. There it may be the one
    that this user has inside. Raises OSError where that user has unmounted it since.
    """
    device = os.fstat(fd).st_dev
    shown = f"{os.major(device)}:{os.minor(device)}"
    lines = []
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as mounts:
        lines = [line.decode(errors="replace").split() for line in mounts]
    for words in lines:
        # The last word is the kernel's; the source before it may be any words of that user.
        user = re.search(r"(?:^|,)user_id=(\d+)", words[-1])
        if words[2] == shown and user:
            ours = user_outside()
            # Without this option only who has mounted it can have got the status. (Root of the machine may, too.)
            is_ours = ours != os.geteuid() and "allow_other" not in words[-1].split(",")
            return 0 if is_ours or int(user.group(1)) == ours else int(user.group(1))
    # An unmounted file system stays usable where it is open, without a line. After chroot that of "/" has none, either.
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    known = {"", _mount_of(root), *(words[0] for words in lines)}
    os.close(root)
    if _mount_of(fd) not in known:
        path = os.readlink(f"/proc/self/fd/{fd}")
        raise OSError(errno.ESTALE, "its file system was unmounted meanwhile", path)
    return 0


def _mount_of(fd: int) -> str:
    """Return the number of the mount of an open file; an empty text where the kernel does not say it."""
    with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
        found = re.search(r"^mnt_id:\s*(\d+)", lines.read(), re.MULTILINE)
        return found.group(1) if found else ""
    return ""


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
    try:
        with open("/proc/self/uid_map", encoding="ascii") as lines:
            return lines.read().split() != ["0", "0", str(2**32 - 1)]
    except OSError:
        return False


def _is_below_open(path: str) -> bool:
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        with contextlib.suppress(FileNotFoundError):
            # Where an access control list names users, the bits of the group are what it allows at most.
            if os.stat(path).st_mode & 0o022:
                return True
    return False


def _possible_exchange(folder: str) -> str:
    """Return how another user could put a folder in place of one in ``folder``; empty: nobody but root can."""
    while True:
        status, mounter = status_and_mounter(folder)
        if mounter:
            return f"{folder} is on a file system of user {mounter}"
        if status.st_uid not in trusted_users(folder):
            return f"{folder} belongs to user {status.st_uid}"
        if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
            return f"other users can write to {folder}"
        if folder == os.path.dirname(folder):
            return ""
        folder = os.path.dirname(folder)


def _private_folder(folder: str) -> str:
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status, mounter = status_and_mounter(folder)
    except OSError as error:
        raise _refusal(f"cannot be kept in {folder} ({error.strerror})") from None
    if mounter:
        raise _refusal(f"cannot be kept in {folder}: it is on a file system of user {mounter}; name another one")
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
