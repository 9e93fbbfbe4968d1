"""Checkpoints on disk: whatever interrupts a write, the newest complete checkpoint can be loaded.

A checkpoint is one file, ``step-<step>.<SHA-256 of the file>.pt``, written by plain ``torch.save``. It is written under
another name, flushed to the disk, read back, and only then renamed to this name. So:

- a file with such a name was once complete, and the name tells whether it still is;
- such a file is never written to again;
- a file with another name is not a checkpoint.

It holds only tensors and primitives, so loading it runs no code from the file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import os
import re
import stat
import sys
import uuid
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor, nn

from seatrial.errors import RequestError, SeatrialError
from seatrial.files import (
    create,
    has_entry,
    names_in,
    open_to_read,
    remove,
    rename_durably,
    status_of_entry,
    statuses_in,
)
from seatrial.folders import make_folders, open_judged
from seatrial.start import open_again, owner_of_new_files
from seatrial.training.folder_lock import lock_folder
from seatrial.training.plain_content import MOST_BYTES, in_words, load_plain, shown
from seatrial.training.plain_pickle import RefusedContentError

_FORMAT = 1
_NAME = re.compile(r"step-(\d{12,18})\.([0-9a-f]{64})\.pt")
_WRITING = ".writing-"
_BLOCK_BYTES = 1 << 20
_MOST_TRIED = 16
"""Damaged checkpoints that are read before a person must look: others may have put thousands of them there."""
_MOST_LOOKED_AT = 1_000
"""Files whose status is asked for at once, which takes some 30 ms here, and a second on a slow server of files."""


class CheckpointFolder:
    """The checkpoints of one job in one folder, which is created when it is first needed.

    One rank of the job uses it, usually rank 0. The first ``newest`` or ``save`` locks the folder until ``close`` or
    until the process ends; a second job in the same folder is refused. Until then everything goes by one descriptor of
    the folder: who can rename what lies above could put another folder of this user in its place, and have its
    checkpoints removed as older ones. The name of the folder stands in messages.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int = 2,
        *,
        note: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
        lock_wait_s: float = 10.0,
    ) -> None:
        """Open nothing yet.

        Args:
            folder: Where the checkpoints are.
            keep: Checkpoints that stay on disk, 2 or more; one more while the next is written.
            note: Called with sentences that a person should read but that stop nothing.
            lock_wait_s: Seconds to wait for another process that holds the lock.

        Raises:
            RequestError: ``keep`` is below 2.
        """
        if keep < 2:
            raise RequestError(f"keep is {keep}; it must be 2 or more checkpoints, since the newest may be lost.")
        self.folder = Path(folder)
        self._keep = keep
        self._note = note
        self._lock_wait_s = lock_wait_s
        self._is_locked = False
        self._opened: int | None = None
        """The folder."""
        self._held = contextlib.ExitStack()
        """The descriptors of the folder and of its lock."""
        weakref.finalize(self, self._held.close)
        self._places: list[str] = []
        """Where the folder was, as the kernel knows without asking a file system; the first is what its name led to."""
        self._read_bytes = 0
        """Read of checkpoints since ``newest`` was called."""
        self._owner = os.geteuid()
        """Owner of the file that was read last."""
        self._whole: dict[str, None] = {}
        """Names of the files that this object wrote, or has resumed from, in this order; loading one checks it
        again."""
        self._saved: set[str] = set()
        """Names of those that this process has written."""
        self._exchange = ""
        """How another user could have put another folder of this one in place of the folder; empty: nobody can."""
        self._left: set[str] = set()
        """Names of older files of other users, who may plant any number."""

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write the state at ``step``, then remove the oldest checkpoints beyond ``keep``. Return the path.

        When this returns, the checkpoint is on the disk and has been read back. Raises TypeError, with the key, for a
        value that is neither a tensor, a primitive, nor a dict, list or tuple of those; SeatrialError when the
        checkpoint could not be written, in which case all earlier checkpoints are unchanged. A folder that was moved
        gets the checkpoint all the same, and a note says where it is.
        """
        content = {"format": _FORMAT, "step": step, "state": _plain(state, "state")}
        self._lock()
        try:
            name = self._write(step, content)
        except OSError as error:
            if self._is_removed(error):
                raise SeatrialError(
                    f"the checkpoint of step {step} was not saved: {self.folder} was removed after this training had "
                    "opened it; start the training again, which makes a new one."
                ) from error
            raise SeatrialError(
                f"the checkpoint of step {step} was not saved in {self.folder}: {error.strerror or error}; the earlier "
                "ones are unchanged. Check the disk, then resume from the newest."
            ) from error
        self._whole.pop(name, None)
        self._whole[name] = None
        self._saved.add(name)
        self._remove_old(name)
        return self._place() / name

    def newest(self, most_bytes: int = MOST_BYTES) -> tuple[int, dict[str, Any]] | None:
        """Return the step and state of the newest complete checkpoint; None in a folder without checkpoints.

        A checkpoint that is damaged or larger is left in place and reported to ``note``, and so is one that this user
        may not read. Raises SeatrialError when there are checkpoints and none can be loaded: starting over is then a
        person's decision.
        """
        self._lock()
        try:
            names = self._names()
            paths = self._newest(names) if names else []
        except OSError as error:
            raise SeatrialError(
                f"{self.folder} cannot be listed: {error.strerror or error}; check the disk, or give another folder."
            ) from error
        num_tried = 0
        self._read_bytes = 0
        for path in paths:
            try:
                found = self.load(path, most_bytes)
            except _DamagedError as error:
                self._note(f"{error} It is skipped.")
            except RequestError:  # removed meanwhile
                continue
            else:
                self._whole[path.name] = None
                self._note_owner(path)
                return found
            num_tried += 1
            # A minute at most: the other ranks wait, and the first one to give up would be the one that reports it.
            if self._read_bytes >= MOST_BYTES:
                break
        if names:
            which = f"the {num_tried} newest of its" if len(names) > num_tried else "its"
            raise SeatrialError(
                f"{self.folder}: none of {which} {len(names)} checkpoints can be loaded; move them away to start from "
                "the beginning, or give another folder."
            )
        return None

    def load(self, path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> tuple[int, dict[str, Any]]:
        """Return the step and state of one checkpoint in any folder, all tensors on the CPU.

        Its content is compared with the digest in its name before any of it is interpreted. Raises RequestError for a
        file that does not exist or has another name; SeatrialError for a file that is damaged, has more bytes, or
        contains more than tensors and primitives.
        """
        path = Path(path)
        match = _NAME.fullmatch(path.name)
        if match is None and not has_entry(path):
            raise RequestError(f"there is no checkpoint {path}; {_nearest(path.parent)}.")
        if match is None:
            raise RequestError(
                f"{path} does not have the name of a checkpoint (step-<step>.<SHA-256>.pt), by which its content is "
                "checked; give a checkpoint under the name that it was saved with."
            )
        step, digest = int(match[1]), match[2]
        place = path
        try:
            if path.parent == self.folder:
                place = self._way() / path.name
            with open_to_read(place) as file:
                self._owner = os.fstat(file.fileno()).st_uid
                content = file.read(_size_bytes(file, most_bytes))
            self._read_bytes += len(content)
        except FileNotFoundError as error:
            if _is_link(place):
                raise _DamagedError(
                    f"{path} is a symbolic link to {ascii(error.filename)[1:-1]}, which does not exist."
                ) from error
            raise RequestError(f"there is no checkpoint {path}; {_nearest(path.parent)}.") from error
        except OSError as error:
            if error.errno == errno.EACCES:
                raise _DamagedError(f"this user may not read {path}; change its permissions.") from error
            raise _DamagedError(f"{path} cannot be read: {error.strerror or error}.") from error
        # The bytes that are compared are those that are read: the file may change meanwhile. A colleague may have put a
        # link to a private file there, and reads what is said: neither its size nor its digest.
        if hashlib.sha256(content).hexdigest() != digest:
            raise _DamagedError(f"{path} is damaged: its SHA-256 is not the one in its name.")
        return step, _read(content, path, step)

    def close(self) -> None:
        """Unlock the folder for other jobs. A later call opens whatever then has its name."""
        self._held.close()
        self._opened, self._is_locked = None, False

    def __enter__(self) -> CheckpointFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _descriptor(self) -> int:
        """Return the descriptor of the folder, which the first call opens. Raises OSError."""
        if self._opened is None:
            self._opened, self._exchange = open_judged(self.folder)
            self._held.callback(os.close, self._opened)
            self._places = [os.readlink(self._way())]
        return self._opened

    def _way(self) -> Path:
        """Return the way to the folder by its descriptor. Raises OSError."""
        return Path(f"/proc/self/fd/{self._descriptor()}")

    def _lock(self) -> None:
        if self._is_locked:
            return
        try:
            self._lock_opened()
        except BaseException:
            self.close()
            raise
        self._is_locked = True

    def _lock_opened(self) -> None:
        try:
            if self._opened is None:
                make_folders(self.folder)
            lock = lock_folder(self._way(), named=self.folder, wait_s=self._lock_wait_s)
            if lock is not None:
                self._held.callback(os.close, lock)
                # The folder is locked, so these were left behind by writers that died.
                leftovers = () if self._exchange else self._way().glob(f"{_WRITING}*")
                for leftover in itertools.islice(leftovers, _MOST_LOOKED_AT):
                    with contextlib.suppress(OSError):
                        remove(leftover)
        except OSError as error:
            raise RequestError(
                f"cannot write checkpoints to {self.folder}: {error.strerror or error}; give a folder that this user "
                "can write to."
            ) from error
        if lock is None:
            self._note(f"{self.folder} is on a file system without locks: nothing prevents a second job from using it.")

    def _is_removed(self, error: OSError) -> bool:
        place = os.readlink(self._way())
        return isinstance(error, FileNotFoundError) and place not in self._places and place.endswith(" (deleted)")

    def _place(self) -> Path:
        """Return where the checkpoints are: the folder by its name, unless somebody has moved it, or one above it."""
        place = os.readlink(self._way())
        if place not in self._places:
            self._places.append(place)
            self._note(
                f"{self.folder} was moved after this training had opened it: its checkpoints go on into that folder, "
                f"which is {ascii(place)[1:-1]} now; to resume from them, name that one."
            )
        return self.folder if place == self._places[0] else Path(place)

    def _write(self, step: int, content: dict[str, Any]) -> str:
        """Write a checkpoint and return its name. A failure leaves no file behind."""
        temporary = self._way() / f"{_WRITING}{uuid.uuid4().hex}"
        try:
            return self._commit(temporary, step, content)
        finally:
            with contextlib.suppress(OSError):
                remove(temporary)

    def _commit(self, temporary: Path, step: int, content: dict[str, Any]) -> str:
        with io.BufferedWriter(create(temporary)) as file:
            writer = _HashingWriter(file)
            torch.save(content, cast("IO[bytes]", writer))
            if writer.failed is not None:
                raise writer.failed
            file.flush()
            os.fsync(file.fileno())
            digest = writer.digest.hexdigest()
            self._read_back(file.fileno(), file.tell(), digest, step)
            with open_to_read(temporary) as named:
                is_same = os.path.samestat(os.fstat(file.fileno()), os.fstat(named.fileno()))
            if not is_same or _is_link(temporary):
                raise OSError(errno.ESTALE, "somebody else has put another file in the place of the one that it wrote")
        name = f"step-{step:012d}.{digest}.pt"
        # An older file of this name had the same content, or is damaged.
        rename_durably(temporary, temporary.with_name(name))
        return name

    def _read_back(self, written: int, size_bytes: int, digest: str, step: int) -> None:
        """Raise SeatrialError unless a file has this digest: as it was written, whatever has its name by now."""
        with os.fdopen(open_again(written, os.O_RDONLY), "rb") as file:
            if hasattr(os, "posix_fadvise"):  # read the disk, not the page cache
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if _digest(file, _as_ours(size_bytes, MOST_BYTES)) == digest:
                return
            others_may_write = bool(os.fstat(file.fileno()).st_mode & 0o022)
        another = "Another user who may write to it has changed it, or the" if others_may_write else "The"
        raise SeatrialError(
            f"the checkpoint of step {step} read back from {self.folder} differs from what was written; it was deleted."
            f" {another} disk or the memory of this host is faulty."
        )

    def _names(self) -> list[tuple[int, str]]:
        """Return step and name of all files with the name of a checkpoint, newest step first."""
        matches = map(_NAME.fullmatch, os.listdir(self._way()))
        return sorted(((int(match[1]), match[0]) for match in matches if match is not None), reverse=True)

    def _newest(self, names: list[tuple[int, str]]) -> list[Path]:
        """Return the newest ones, as many as are tried: by step, then by modification time."""
        last_step = names[:_MOST_TRIED][-1][0]
        looked_at = [name for step, name in names if step >= last_step][:_MOST_LOOKED_AT]
        # One that cannot be looked at is reported where it is loaded.
        times = dict.fromkeys(looked_at, 0)
        times |= {name: status.st_mtime_ns for name, status in statuses_in(self._way(), looked_at)}
        ordered = sorted(((step, times[name], name) for step, name in names if name in times), reverse=True)
        return [self.folder / name for _, _, name in ordered[:_MOST_TRIED]]

    def _note_owner(self, path: Path) -> None:
        """Say whose checkpoint this is, if it is another user's. Only its content shows whether the training can go on
        from it."""
        if self._owner == os.geteuid():
            return
        with contextlib.suppress(OSError):
            # A share may show all users as one.
            if self._owner != owner_of_new_files(self._descriptor()):
                self._note(f"{path} is a checkpoint of user {self._owner}; if it fits, the training goes on from it.")

    def _remove_old(self, written: str) -> None:
        """Remove files of ours older than the newest ``keep`` of ours that are known to be complete, but never the one
        just written.

        A file of others takes the place of none that is kept, also one that was resumed from: they can remove it.
        Nobody reads or removes it here.
        """
        try:
            names = [entry for entry in self._names() if entry[1] not in self._left]
            owners = {name: status.st_uid for name, status in statuses_in(self._way(), [*self._whole])}
            if (user := owners.get(written)) is None:  # removed meanwhile
                return
            self._whole = dict.fromkeys(name for name in self._whole if owners.get(name) == user)
            order = {name: number for number, name in enumerate(self._whole)}
            whole = sorted((order[name], step, name) for step, name in names if name in order)
            whole.sort(key=lambda entry: entry[1])
            if len(whole) < self._keep:
                return
            oldest_step = whole[-self._keep][1]
            old = [name for _, _, name in whole[: -self._keep] if name != written]
            old += [name for step, name in names if step < oldest_step and name not in order]
            found = dict(statuses_in(self._way(), old[:_MOST_LOOKED_AT]))
        except OSError as error:
            self._note(f"older checkpoints in {self.folder} could not be removed: {error.strerror or error}.")
            return
        failures = []
        for name, status in found.items():
            if status.st_uid != user:
                if not self._left:
                    self._note(
                        f"{self.folder} has older checkpoints of other users, such as {name} of user {status.st_uid}:"
                        " they stay."
                    )
                self._left.add(name)
                continue
            if self._exchange and name not in self._saved:
                # It may be of another training of this user: somebody else has put this folder there.
                if not self._left:
                    self._note(
                        f"{self.folder} has older checkpoints that this process has not written, such as {name}: they"
                        f" stay, since {self._exchange}."
                    )
                self._left.add(name)
                continue
            try:
                with contextlib.suppress(FileNotFoundError):
                    remove(self._way() / name)
                self._whole.pop(name, None)
            except OSError as error:
                failures.append(f"{name}: {error.strerror or error}")
        if failures:
            self._note(
                f"{len(failures)} older checkpoints in {self.folder} could not be removed, such as {failures[0]}."
            )


class _DamagedError(SeatrialError):
    """A checkpoint whose content changed, or is not what a checkpoint must contain, or that cannot be read."""


class _HashingWriter:
    """The file that ``torch.save`` writes to. It records the first error, since torch would report a failed write
    without it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.failed: OSError | None = None

    def write(self, data: Any) -> int:
        size_bytes = memoryview(data).nbytes
        if self.failed is None:
            try:
                self._file.write(data)
                self.digest.update(data)
            except OSError as error:
                self.failed = error
        return size_bytes

    def flush(self) -> None:
        """Do nothing: the file is flushed once, at the end."""


def _digest(file: IO[bytes], size_bytes: int) -> str:
    """Return the SHA-256 of a file that has this size, in hex, and of one byte more where it has become larger."""
    total, left = hashlib.sha256(), size_bytes + 1
    while left and (block := file.read(min(_BLOCK_BYTES, left))):
        total.update(block)
        left -= len(block)
    return total.hexdigest()


def _is_link(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(status_of_entry(path).st_mode)
    return False


def _size_bytes(file: IO[bytes], most_bytes: int) -> int:
    """Return the size of a file. Raises OSError for one that is too large to be one of ours: to read a sparse one might
    take days."""
    return _as_ours(os.fstat(file.fileno()).st_size, most_bytes)


def _as_ours(size_bytes: int, most_bytes: int) -> int:
    if size_bytes > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {in_words(most_bytes)}")
    return size_bytes


def _read(saved: bytes, path: Path, step: int) -> dict[str, Any]:
    """Return the state in a complete file. Raises _DamagedError for a file that is no checkpoint."""
    try:
        content = load_plain(saved)
    except RefusedContentError as error:
        raise _DamagedError(f"{path} is refused: {error}.") from error
    if not isinstance(content, dict) or content.keys() != {"format", "step", "state"}:
        raise _DamagedError(f"{path} is refused: torch.save wrote it, but it is not a checkpoint of seatrial.")
    if type(content["format"]) is not int or content["format"] != _FORMAT:
        raise _DamagedError(f"{path} has format {shown(content['format'])}, and this version reads format {_FORMAT}.")
    if type(content["step"]) is not int or content["step"] != step or not isinstance(content["state"], dict):
        raise _DamagedError(f"{path} is refused: it contains step {shown(content['step'])}, but its name says {step}.")
    return content["state"]


def _plain(value: Any, key_path: str) -> Any:
    """Return a copy of nested dicts, lists and tuples with all tensors on the CPU. Raises TypeError, with the key, for
    other types.

    Equal strings become one object: pickle writes different bytes for separate equal strings, and equal states must
    give equal files.
    """
    if type(value) is str:
        return sys.intern(value)
    if value is None or type(value) in (bool, int, float):
        return value
    if type(value) in (Tensor, nn.Parameter):
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise TypeError(f"{key_path} is a tensor that is sparse, quantized or without values; make it a plain one.")
        tensor = value.detach().cpu()
        # torch.save would write the whole memory that a view is part of.
        is_view = tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
        return tensor.clone() if is_view else tensor
    if isinstance(value, Mapping):
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{key_path} has the key {key!r} of type {type(key).__name__}; it must be str or int.")
        return {_plain(key, key_path): _plain(item, f"{key_path}[{key!r}]") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item, f"{key_path}[{index}]") for index, item in enumerate(value))
    raise TypeError(
        f"{key_path} is of type {type(value).__module__}.{type(value).__qualname__}; a checkpoint can hold only "
        "tensors, bool, int, float, str and None in dicts, lists and tuples."
    )


def _nearest(folder: Path) -> str:
    """Return what can be given in place of a checkpoint that is not in this folder."""
    try:
        names = sorted(name for name in names_in(folder) if _NAME.fullmatch(name))
    except OSError:
        return f"there is no folder {folder} either; give the path of an existing one"
    return f"the newest in {folder} is {names[-1]}" if names else f"{folder} has none; give the path of an existing one"
