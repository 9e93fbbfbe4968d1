"""Folders in which a program starts, and its script: could another user have put files there?

The folder has the same path on each host, but not each host shares it: below /tmp or /scratch a neighbor may have made
it. An owner that the user trusts on the controller's machine, such as a colleague, is trusted on the other hosts, too;
and so are all users in each folder to which they can write there.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from shlex import quote
from typing import Any

from seatrial.errors import RequestError
from seatrial.files import file_system_of
from seatrial.start import (
    NOBODY,
    ForeignError,
    absolute_entries,
    mount_of,
    owner_of_new_files,
    reached,
    refusal_of_number,
    trusted_users,
    way_to,
)

_NO_SHARE = (-1, -1)
_ACL = "system.posix_acl_access"
_ACL_HEAD_BYTES = 4
_ACL_OWNER = 0x01
"""Tag of the entry of the owner (include/uapi/linux/posix_acl.h)."""
_WITH_OWNERS = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs", "zfs"}
"""File systems of this machine, which keep the owner of each file as it is."""
_TYPED = "SEATRIAL_TYPED_FOLDER"
"""The variable by which a process of ours, and those that it starts, know the working folder that it has left."""
_DATA = "SEATRIAL_DATA"
"""The user's variable with the folder of the data sets (``training.data.dataset_files``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderTrust:
    """The users whom this one trusts with a folder, or a script, on the controller's machine, besides root."""

    owners: tuple[int, ...] = ()
    """Other users who own it, or a folder above."""
    mounters: tuple[int, ...] = ()
    """Users who have mounted it or a folder above (``start.mounted_by``)."""
    open_places: tuple[str, ...] = ()
    """Paths of all on the way to it in which all users can put files. At another path nobody has chosen to trust them:
    a user who types in /tmp trusts no script below /scratch for that."""

    @staticmethod
    def of_message(said: Mapping[str, Any]) -> FolderTrust:
        """Return what ``dataclasses.asdict`` has made, and JSON has passed on."""
        return FolderTrust(
            owners=tuple(said["owners"]), mounters=tuple(said["mounters"]), open_places=tuple(said["open_places"])
        )


class UnchosenError(Exception):
    """Another user could have chosen which file a path leads to. Its text is a clause."""

    def __init__(self, clause: str, rights: str = "") -> None:
        super().__init__(clause)
        self.rights = rights
        """Arguments of ``chmod`` that help; empty: none do."""


def require_own_number() -> None:
    """Raise RequestError where files of any other user could count as ours."""
    if reason := refusal_of_number():
        raise RequestError(f"seatrial {reason}.")


def script_of(argv: Sequence[str]) -> str:
    """Return the path of the script in the command of a rank; empty where a module, or a program in PATH, is named."""
    script = argv[-1]
    return script if "-m" not in argv[:-1] and (len(argv) > 1 or "/" in script) else ""


def trust_here(folder: str, script: str) -> FolderTrust:
    """Return whom the user trusts with a script here; with the folder, where ``script`` is an empty text.

    Nothing that is missing here is trusted.
    """
    # In a container of a user they include the one as which it shows all others: on another host that is anybody.
    trusted = trusted_users()
    owners, mounters = set[int](), set[int]()
    open_places = set[str]()
    with suppress(OSError):
        for step in _steps_of(folder, script, None):
            owners.add(step.status.st_uid)
            mounters.add(step.mounter)
            if _is_open(step) and not step.missing:
                open_places.add(step.name)
    # The number of a user may be that of somebody else on another host.
    others, mounters = owners - trusted, mounters - {0}
    places = tuple(sorted(open_places))
    return FolderTrust(owners=tuple(sorted(others)), mounters=tuple(sorted(mounters)), open_places=places)


def is_here(folder: str, trust: FolderTrust) -> bool:
    """Return whether a folder of this path is here, or could be: ``refusal`` says more.

    Args:
        folder: an absolute path.
        trust: on the controller's machine.
    """
    try:
        for step in _steps(folder, trust.mounters):
            trusted = trusted_users(step.is_below_open, trust.owners)
            if stat.S_ISLNK(step.status.st_mode) and step.status.st_uid not in trusted:
                return True  # It may lead anywhere.
    except ForeignError:
        return True
    except OSError:
        return False
    return not step.missing and stat.S_ISDIR(step.status.st_mode)


def refusal(folder: str, script: str, trust: FolderTrust, *, strict: bool = False) -> str:
    """Return why another user could have put files into the folder or the script, or exchanged them; empty: none could.

    Each name on the way, also of links, is looked at from the root down, so that nobody can exchange one that has
    passed, and so that nothing waits for the file system of another user. Where a name is missing below a folder that
    is open to all, another user could put one there before a rank starts, since the processes of the other hosts show
    its path: no trust excuses that, as nothing could run there anyway.

    Args:
        folder: an absolute path.
        script: a path that starts there; empty: only the folder counts.
        trust: of ``trust_here`` for the same two, on the controller's machine.
        strict: whether a folder counts as well to which a group can write, or which lies on a share whose server knows
            one user only. A user who starts a script there trusts that group, or all users of the share.
    """
    writers = stat.S_IWOTH | stat.S_IWGRP if strict else stat.S_IWOTH
    try:
        for step, words in _with_owners(_steps_of(folder, script, trust.mounters), folder, trust, strict=strict):
            if words:
                return words
            if _is_open(step, writers) and step.missing:
                return f"{step.missing} is missing, and all users can write to {step.name}"
            if _is_open(step, writers) and step.name not in trust.open_places:
                return f"all users can write to {step.name}"
    except ForeignError as error:
        return str(error.strerror)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


def chosen_file(folder: str, path: str) -> os.stat_result:
    """Return the status of the file at a path if no other user has chosen it, so that its content may go elsewhere.

    A user who owns a folder or link on a relative path, or can write to a folder there by a group, is trusted with what
    goes along, as with the script itself. An absolute path may be meant for another machine: with that one the user
    trusts nobody but those who are trusted with the working folder. Nobody has chosen to trust all users: where they
    could have changed where the path leads, they must be able to reach the file and to read it. The caller compares the
    file that it reads afterwards with this status. Raises UnchosenError where another user has put it there, or may
    have, and OSError for a file that cannot be reached.

    Args:
        folder: the working folder, an absolute path.
        path: a path that starts there.
    """
    trust = trust_here(folder, "" if os.path.isabs(path) else path)
    try:
        steps = [*_with_owners(_steps(os.path.join(folder, path), trust.mounters), folder, trust)]
    except ForeignError as error:
        raise UnchosenError(str(error.strerror)) from error
    file = steps[-1][0]
    if file.missing:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    words, rights = next((words for _, words in steps if words), ""), ""
    if not words:
        words, rights = _led_to_private([step for step, _ in steps])
    if words:
        # A user who copies it is to know that it is a key.
        raise UnchosenError(f"{words}; the path leads to {quote(file.name)} of user {file.owner}", rights)
    return file.status


def _led_to_private(steps: Sequence[_Step]) -> tuple[str, str]:
    """Return how any user may have led the way to a file that not all can read, and the arguments of ``chmod`` that
    help; the first is empty: in no way.

    A user who can change what is at a place on the way may have put there a link, or any file or folder that lies in
    another one where that user can write: ``rename`` needs no right to read, and keeps the owner. Modes say who reaches
    a file within one mount: that user may have come from another machine or container, without this user's mounts.
    """
    file, me = steps[-1], os.geteuid()
    closed = [step for step in steps if _is_closed(step)]
    for number, (step, following) in enumerate(pairwise(steps), 1):
        # Nobody but its owner comes to what lies in these, however open that is, unless it is mounted elsewhere, too.
        around = {it.name for it in closed if it.mount == step.mount and _is_at_or_below(step.name, it.name)}
        changed_by = _changed_by(step, following, is_closed=bool(around))
        for later in steps[number:] if changed_by else ():
            # A user who can change the place has passed the folders above it.
            if _is_at_or_below(step.name, later.name) and later.name not in around:
                continue
            if later.mount != step.mount:
                return f"{changed_by}, and {later.name} is on another file system, of which others may be kept out", ""
            verb, right, bit = ("read", "r", os.R_OK) if later is file else ("enter", "x", os.X_OK)
            if not (stat.S_ISLNK(later.status.st_mode) or _rights(later) & bit):
                # Where another user may have led the way, that one may want the file opened.
                is_ours = later.acl_rights is None and later.owner == me
                is_ours = is_ours and {each.owner for each in steps[number - 1 :]} <= {0, me}
                rights = f"go+{right} {quote(later.name)}" if is_ours else ""
                return f"{changed_by}, and not all users can {verb} {later.name}", rights
    return "", ""


def _changed_by(step: _Step, following: _Step, *, is_closed: bool) -> str:
    """Return how any user could have changed what a step leads to; empty: in no way.

    Args:
        step: on the way to a file.
        following: the next one.
        is_closed: whether only the owner of a folder above can come to it.
    """
    mode = step.status.st_mode
    # A folder moves to another one only with the right to write to itself; a file and a link need none.
    holds_folder = stat.S_ISDIR(mode) and stat.S_ISDIR(following.status.st_mode)
    # In a container of a user any other one may be shown as root is.
    if step.owner == NOBODY and not holds_folder:
        return f"{step.name} {'is a link of' if stat.S_ISLNK(mode) else 'belongs to'} user {step.owner}"
    # Past the sticky bit it has come by a user who could write to it where it was before.
    place = following if mode & stat.S_ISVTX and holds_folder else step
    # In the mode of a folder with an access control list, the bits of the group limit all whom that names.
    writers = stat.S_IWOTH if place.acl_rights is None else stat.S_IWOTH | stat.S_IWGRP
    is_open = stat.S_ISDIR(place.status.st_mode) and place.status.st_mode & writers and not is_closed
    return f"other users can write to {place.name}" if is_open else ""


def _is_closed(step: _Step) -> bool:
    """Return whether only the owner can enter a folder; one that an access control list names has a bit here, too."""
    return stat.S_ISDIR(step.status.st_mode) and not step.status.st_mode & (stat.S_IXGRP | stat.S_IXOTH)


def _rights(step: _Step) -> int:
    """Return the rights (``os.R_OK`` and so on) that each user but the owner has at least."""
    # A mode may refuse to the group what all others can do.
    return step.status.st_mode >> 3 & step.status.st_mode if step.acl_rights is None else step.acl_rights


def _acl_rights(fd: int) -> int | None:
    """Return the rights that the access control list of an open file gives to each user but the owner at least; None:
    it has no list."""
    try:
        acl = os.getxattr(f"/proc/self/fd/{fd}", _ACL)
    except OSError:
        return None
    rights = os.R_OK | os.W_OK | os.X_OK
    for tag, given, _ in struct.iter_unpack("<HHI", acl[_ACL_HEAD_BYTES:]):
        rights &= rights if tag == _ACL_OWNER else given
    return rights


def _is_at_or_below(name: str, folder: str) -> bool:
    return f"{name}/".startswith(f"{folder.rstrip('/')}/")


def leave_open_folder() -> str:
    """Leave the working folder for the root where others could put files here, and return its path; empty: it stays.

    Libraries read files of the working folder. UCX, which some builds of torch and most MPIs load, executes what its
    ``ucx.conf`` names. So each process of ours that loads such libraries calls this first. Relative paths in the
    environment begin in the folder that was left all the same.
    """
    if not (typed := open_folder()):
        return ""
    os.environ.update(absolute_entries(os.environ, typed))
    if data := os.environ.get(_DATA):
        os.environ[_DATA] = os.path.join(typed, os.path.expanduser(data))
    os.environ[_TYPED] = typed
    os.chdir("/")
    return typed


def open_folder() -> str:
    """Return the path of the working folder where others could put files here, also by a group; empty: none could."""
    here = os.readlink("/proc/self/cwd")
    if refusal(here, "", FolderTrust(), strict=True):
        return here
    with suppress(OSError), reached(here, "/") as fd:
        if os.path.samestat(os.fstat(fd), os.stat("/proc/self/cwd")):
            return ""
    return here  # It was removed, or renamed.


def typed_folder() -> str:
    """Return the folder in which the user typed: the one that this process has left, or else its working folder."""
    return os.environ.get(_TYPED) or os.getcwd()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One name on the way to a file."""

    name: str
    status: os.stat_result
    mounter: int
    """The other user who decides what this file system shows, or 0 (``start.mounted_by``)."""
    mount: str
    """The number of its mount, or of its device where the kernel does not say that."""
    acl_rights: int | None
    """What ``_acl_rights`` returns for it."""
    is_last: bool
    """Nothing that exists in this folder comes next, so that its sticky bit guards nothing."""
    is_below_open: bool
    """Others may be able to make files in a folder above (``start.way_to``)."""
    missing: str = ""
    """The next name, where there is none."""

    @property
    def owner(self) -> int:
        """The user who decides what it is."""
        return self.mounter or self.status.st_uid


def _steps_of(folder: str, script: str, mounters: Collection[int] | None) -> Iterator[_Step]:
    """Yield the steps to the folder; to a script, and then to the folder from which Python imports in its favor."""
    step = None
    for step in _steps(os.path.join(folder, script), mounters):
        yield step
    if script and step is not None and not step.missing:
        yield from _steps(os.path.dirname(step.name), mounters)


def _steps(path: str, mounters: Collection[int] | None) -> Iterator[_Step]:
    """Yield what the kernel visits on the way to an absolute path, from the root down, each link among it.

    ``mounters``: the users whose file systems may be asked; None: those of all. Raises ForeignError for others.
    """
    above = None
    try:
        for name, fd, mounter, is_last, is_below_open in way_to(path):
            if mounters is not None and mounter not in (0, *mounters):
                raise ForeignError(name, mounter)
            status = os.fstat(fd)
            mount = mount_of(fd) or f"device {status.st_dev}"
            rights = _acl_rights(fd)
            step = _Step(
                name=name,
                status=status,
                mounter=mounter,
                mount=mount,
                acl_rights=rights,
                is_last=is_last,
                is_below_open=is_below_open,
            )
            above = above if stat.S_ISLNK(step.status.st_mode) else step
            yield step
    except FileNotFoundError as error:
        if above is not None:
            yield replace(above, is_last=True, missing=error.filename)


def _with_owners(
    steps: Iterator[_Step], folder: str, trust: FolderTrust, *, strict: bool = False
) -> Iterator[tuple[_Step, str]]:
    """Yield each step, and why its owner is not trusted; empty: that one is. The arguments are those of ``refusal``."""
    share: tuple[int, int] | None = None
    for step in steps:
        words = ""
        if step.status.st_uid not in trusted_users(step.is_below_open, trust.owners):
            share = share or (_share_of(folder, trust.mounters) if may_map_owners(step.status) else _NO_SHARE)
            if strict or share != (step.status.st_dev, step.status.st_uid):
                words = f"{step.name} belongs to user {step.status.st_uid}"
        yield step, words


def may_map_owners(status: os.stat_result) -> bool:
    """Return whether a file is on a file system that may show other owners than the users who made its files, as NFS
    and FUSE do."""
    return file_system_of(status) not in _WITH_OWNERS


def _is_open(step: _Step, writers: int = stat.S_IWOTH) -> bool:
    """Return whether all users can put files there, or exchange those of others where there are such.

    ``writers``: the bits of the mode that say so.
    """
    mode = step.status.st_mode
    has_guard = mode & stat.S_ISVTX and not step.is_last
    return bool(mode & writers) and not stat.S_ISLNK(mode) and not has_guard


def _share_of(folder: str, mounters: Collection[int]) -> tuple[int, int]:
    """Return the device of a folder, and the owner of all files there, also of ours: NFS and FUSE may map all users to
    one."""
    with suppress(OSError):
        for _, fd, mounter, is_last, _ in way_to(folder):
            if mounter not in (0, *mounters):
                break
            if is_last and stat.S_ISDIR(os.fstat(fd).st_mode):
                return os.fstat(fd).st_dev, owner_of_new_files(fd)
    return _NO_SHARE
