"""Checkpoints on disk: whatever happens while one is written, the newest whole one can be loaded.

A checkpoint is one file, ``step-<step>.<SHA-256 of the file>.pt``, that plain ``torch.save`` wrote. It is written under
another name, flushed to the disk, read back, and only then given this one by a rename, so:

- a file that bears such a name was complete once; whether it still is, its name says;
- no such file is ever written to again;
- what has another name is not a checkpoint.

Only tensors and primitives are kept in it, so that loading one runs no code of whoever wrote it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import uuid
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, cast

import torch
from torch import Tensor, nn

from seatrial.errors import RequestError, SeatrialError
from seatrial.training.folder_lock import lock_folder

__all__ = ["CheckpointStore"]

_FORMAT = 1
_NAME = re.compile(r"step-(\d{12,18})\.([0-9a-f]{64})\.pt")
_WRITING = ".writing-"
_BLOCK_BYTES = 1 << 20
_ZIP_MAGIC = b"PK\x03\x04"


class CheckpointStore:
    """The checkpoints of one job in one folder, which is made when it is first needed.

    For one rank of the job, usually rank 0. The first ``newest`` or ``save`` locks the folder until ``close``, or until
    the process ends: a second job in it is refused. ``keep`` checkpoints, 2 or more, stay on disk (and one more while
    the next is written). ``note`` is told what a person should know of and what stops nothing.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int = 2,
        *,
        note: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
        lock_wait_s: float = 10.0,
    ) -> None:
        if keep < 2:
            raise RequestError(
                f"{keep} checkpoints are to be kept; it must be 2 or more, since the newest may be lost."
            )
        self.folder = Path(folder)
        self._keep = keep
        self._note = note
        self._lock_wait_s = lock_wait_s
        self._is_open = False
        self._unlock: Callable[[], object] = lambda: None
        self._whole: set[Path] = set()
        """Those whose digest was right when it was last looked at; to load one looks again."""

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write the state at ``step`` and then remove the oldest checkpoints that are not to be kept.

        When this returns, the checkpoint is on the disk and was read back. Raises TypeError, with the key, for what is
        neither a tensor nor a primitive, dict, list or tuple of such; SeatrialError when it could not be written: then
        all former checkpoints are as they were.
        """
        content = {"format": _FORMAT, "step": step, "state": _plain(state, "state")}
        self._open()
        temporary = self.folder / f"{_WRITING}{uuid.uuid4().hex}"
        try:
            try:
                path = self._commit(temporary, step, content)
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
        except OSError as error:
            raise SeatrialError(
                f"the checkpoint of step {step} was not saved in {self.folder}: {error.strerror or error}; the former "
                "ones are as they were. Look at the disk, and begin again from the newest."
            ) from error
        self._whole.add(path)
        self._remove_old(path)
        return path

    def newest(self) -> tuple[int, dict[str, Any]] | None:
        """The step and state of the newest checkpoint that is whole; None in a folder without any.

        One that is damaged is left where it is, and ``note`` is told why. Raises SeatrialError when there are
        checkpoints and all are damaged: to begin from the start is then for a person to decide.
        """
        self._open()
        paths = self._listed()
        for path in paths:
            try:
                return self.load(path)
            except _DamagedError as error:
                self._note(f"{error} It is skipped.")
        if paths:
            raise SeatrialError(
                f"{self.folder}: none of its {len(paths)} checkpoints can be loaded; move them away to begin from the "
                "start, or give another folder."
            )
        return None

    def load(self, path: str | os.PathLike[str]) -> tuple[int, dict[str, Any]]:
        """The step and state of one checkpoint of any folder, all tensors on the CPU.

        Its content is held against the digest in its name before anything of it is interpreted. Raises RequestError
        for a file that is not there or has another name; SeatrialError for one that is damaged, or that asks for more
        than tensors and primitives.
        """
        path = Path(path)
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise RequestError(
                f"{path} has not the name of a checkpoint (step-<step>.<SHA-256>.pt), by which its content is checked; "
                "give one with the name that it was saved under."
            )
        step, digest = int(match[1]), match[2]
        try:
            with open(path, "rb") as file:
                if (seen := _digest(file)) != digest:
                    size_bytes = os.fstat(file.fileno()).st_size
                    raise _DamagedError(
                        f"{path} is damaged: the SHA-256 of its {size_bytes} bytes begins with {seen[:12]} and not "
                        f"with {digest[:12]} as its name says."
                    )
                state = _read(file, path, step)
        except FileNotFoundError as error:
            raise RequestError(f"there is no checkpoint {path}.") from error
        except PermissionError as error:
            raise SeatrialError(f"{path} may not be read by this user.") from error
        except OSError as error:
            raise _DamagedError(f"{path} cannot be read: {error.strerror or error}.") from error
        return step, state

    def close(self) -> None:
        """Let other jobs use the folder."""
        self._unlock()
        self._is_open = False

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        if self._is_open:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = lock_folder(self.folder, wait_s=self._lock_wait_s)
            if lock is not None:
                self._unlock = weakref.finalize(self, os.close, lock)
                # Nobody else is at work here, so these are of writers that died.
                for left in self.folder.glob(f"{_WRITING}*"):
                    left.unlink(missing_ok=True)
        except OSError as error:
            raise RequestError(
                f"checkpoints cannot be kept in {self.folder}: {error.strerror or error}; give a folder that this user "
                "can write to."
            ) from error
        if lock is None:
            self._note(f"{self.folder} is on a file system without locks: nothing keeps a second job out of it.")
        self._is_open = True

    def _commit(self, temporary: Path, step: int, content: dict[str, Any]) -> Path:
        with open(temporary, "xb") as file:
            writer = _HashingWriter(file)
            torch.save(content, cast("IO[bytes]", writer))
            if writer.failed is not None:
                raise writer.failed
            file.flush()
            os.fsync(file.fileno())
            digest = writer.digest.hexdigest()
        with open(temporary, "rb") as file:
            if hasattr(os, "posix_fadvise"):  # from the disk, and not what the kernel still remembers
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if _digest(file) != digest:
                raise SeatrialError(
                    f"the checkpoint of step {step} is read back from {self.folder} with other content than was "
                    "written; it is not kept. The disk or the memory of this host is at fault."
                )
        path = self.folder / f"step-{step:012d}.{digest}.pt"
        # An older file of this name had the same content, or is damaged.
        os.rename(temporary, path)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return path

    def _listed(self) -> list[Path]:
        """All that bear the name of a checkpoint, newest first: by step, then by when they were written."""
        found = []
        for path in self.folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is not None:
                found.append((int(match[1]), path.stat().st_mtime_ns, path))
        return [path for _, _, path in sorted(found, reverse=True)]

    def _remove_old(self, written: Path) -> None:
        """Remove what is older than the newest ``keep`` that are whole, and never what was just written."""
        try:
            num_whole = 0
            for path in self._listed():
                if num_whole < self._keep:
                    num_whole += self._is_whole(path)
                elif path != written:
                    path.unlink(missing_ok=True)
                    self._whole.discard(path)
        except OSError as error:
            self._note(f"older checkpoints in {self.folder} could not be removed: {error.strerror or error}.")

    def _is_whole(self, path: Path) -> bool:
        if path not in self._whole:
            try:
                with open(path, "rb") as file:
                    if f".{_digest(file)}." in path.name:
                        self._whole.add(path)
            except OSError:
                return False
        return path in self._whole


class _DamagedError(SeatrialError):
    """A checkpoint whose content is not what it was, or what it must be."""


class _HashingWriter:
    """What ``torch.save`` writes to. It keeps the first error: torch would tell of a failed write in its own words."""

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
        """The file is flushed once, at the end."""


def _digest(file: IO[bytes]) -> str:
    """SHA-256 of a whole file, in hex; the file is at its beginning before and after."""
    total = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        total.update(block)
    file.seek(0)
    return total.hexdigest()


def _read(file: IO[bytes], path: Path, step: int) -> dict[str, Any]:
    """The state in a file that is whole."""
    # Only torch's present format: until torch 2.6, weights_only did not hold for the oldest one (CVE-2025-32434).
    magic = file.read(len(_ZIP_MAGIC))
    file.seek(0)
    if magic != _ZIP_MAGIC:
        raise _DamagedError(f"{path} is refused: it is not a zip file, as all that torch.save writes today.")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        wanted = re.search(r"(?:GLOBAL |global )([\w.]+)", str(error))
        what = wanted[1] if wanted else "more than tensors and primitives"
        raise _DamagedError(f"{path} is refused: it asks for {what}, which no checkpoint needs.") from error
    except (OSError, MemoryError):
        raise
    except Exception as error:
        text = str(error).partition("\n")[0]
        raise _DamagedError(f"{path} is refused: torch cannot read it ({text}).") from error
    if not isinstance(content, dict) or content.keys() != {"format", "step", "state"}:
        raise _DamagedError(f"{path} is refused: it is a file of torch.save, but not a checkpoint of ours.")
    if content["format"] != _FORMAT:
        raise _DamagedError(f"{path} has format {content['format']!r}, and this version reads format {_FORMAT}.")
    if content["step"] != step or not isinstance(content["state"], dict):
        raise _DamagedError(f"{path} is refused: it holds step {content['step']!r}, and its name says {step}.")
    return content["state"]


def _plain(value: Any, where: str) -> Any:
    """A copy of nested dicts, lists and tuples with all tensors on the CPU. TypeError, with the key, for the rest.

    Strings that are equal become one object: pickle writes those apart from equal ones, and equal states are to be
    equal files.
    """
    if type(value) is str:
        return sys.intern(value)
    if value is None or type(value) in (bool, int, float):
        return value
    if type(value) in (Tensor, nn.Parameter):
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise TypeError(f"{where} is a tensor that is sparse, quantized or without values; make it a plain one.")
        tensor = value.detach().cpu()
        # torch.save writes all of the memory that a view belongs to.
        is_view = tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
        return tensor.clone() if is_view else tensor
    if isinstance(value, Mapping):
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{where} has the key {key!r} of type {type(key).__name__}; it must be str or int.")
        return {_plain(key, where): _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item, f"{where}[{index}]") for index, item in enumerate(value))
    raise TypeError(
        f"{where} is of type {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, bool, "
        "int, float, str and None in dicts, lists and tuples."
    )
