"""A disk that answers nothing for a while, as a file server in failover does, in this process."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from functools import partial

import pytest

from seatrial.files import create, open_to_append
from seatrial.util import disk_writer

__all__ = ["SlowDisk"]


class SlowDisk:
    """Holds back all that a DiskWriter does from ``freeze`` until ``thaw``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answers = threading.Event()
        self._answers.set()
        self.freeze, self.thaw = self._answers.clear, self._answers.set
        monkeypatch.setattr(disk_writer, "open_to_append", partial(self._open, open_to_append))
        monkeypatch.setattr(disk_writer, "create", partial(self._open, create))

    def wait(self) -> None:
        assert self._answers.wait(60)

    def _open(self, opens: Callable[..., io.FileIO], path: str, *, run_folder: bool = False) -> io.FileIO:
        self.wait()
        opened = opens(path, run_folder=run_folder)
        file = _File(opened.fileno(), "ab", closefd=False)
        file.disk, file.opened = self, opened
        return file


class _File(io.FileIO):
    disk: SlowDisk
    opened: io.FileIO

    def write(self, data, /) -> int:  # type: ignore[no-untyped-def]
        self.disk.wait()
        return super().write(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.opened.close()
