"""Whoever writes to a disk that answers nothing does not wait; what is missing in the file is counted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from slow_disk import SlowDisk

from seatrial.util import disk_writer
from seatrial.util.disk_writer import DiskWriter

_WORDS = b"[%d missing]".__mod__


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


@pytest.fixture
def writer(disk: SlowDisk) -> Iterator[DiskWriter]:
    writer = DiskWriter()
    yield writer
    disk.thaw()
    assert writer.end(time.monotonic() + 20)


def _finish(writer: DiskWriter) -> None:
    assert writer.finish(time.monotonic() + 20)


def test_all_is_written_in_its_order(writer: DiskWriter, tmp_path: Path) -> None:
    files = [writer.open(str(tmp_path / name), _WORDS) for name in "ab"]
    pieces = [b"%06d," % number for number in range(20_000)]
    for piece in pieces:
        for file in files:
            writer.write(file, piece)
    writer.write(files[0], b"x" * (5 << 20))
    for file in files:
        writer.close(file)
    _finish(writer)
    assert (tmp_path / "a").read_bytes() == b"".join(pieces) + b"x" * (5 << 20)
    assert (tmp_path / "b").read_bytes() == b"".join(pieces)
    assert all(file.opened is not None and file.opened.closed for file in files)
    assert [file.missing_bytes for file in files] == [0, 0]
    assert writer._num_waiting == 0


def test_a_thread_that_cannot_start_keeps_nobody_waiting(
    writer: DiskWriter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """This user has no process left; later he has."""
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no process")))
        with pytest.raises(RuntimeError, match="no process"):
            writer.open(str(tmp_path / "a"), _WORDS)
        began = time.monotonic()
        _finish(writer)
        assert time.monotonic() - began < 5
    file = writer.open(str(tmp_path / "a"), _WORDS)
    writer.write(file, b"first")
    _finish(writer)
    assert (tmp_path / "a").read_bytes() == b"first"


def test_a_disk_that_answers_nothing_holds_up_nobody(writer: DiskWriter, disk: SlowDisk, tmp_path: Path) -> None:
    began = time.monotonic()
    disk.freeze()
    file = writer.open(str(tmp_path / "a"), _WORDS)
    writer.write(file, b"first ")
    writer.close(file)
    assert not writer.finish(time.monotonic() + 0.3)
    assert not writer.finish(time.monotonic() + 20, lambda: True)
    assert 0.1 < writer.silent_s() <= time.monotonic() - began < 10
    disk.thaw()
    _finish(writer)
    assert writer.silent_s() == 0
    assert (tmp_path / "a").read_bytes() == b"first "


def test_what_exceeds_the_bound_is_counted_at_its_place(writer: DiskWriter, disk: SlowDisk, tmp_path: Path) -> None:
    file = writer.open(str(tmp_path / "a"), _WORDS, 100)
    _finish(writer)
    disk.freeze()
    for piece in (b"a" * 80, b"b" * 30, b"c" * 40):
        writer.write(file, piece)
    disk.thaw()
    _finish(writer)
    writer.write(file, b"d")
    writer.write(file, b"e" * 101)
    writer.close(file)
    _finish(writer)
    assert (tmp_path / "a").read_bytes() == b"a" * 80 + b"[70 missing]d[101 missing]"
    assert file.missing_bytes == 171


def test_a_full_disk_is_counted_at_its_place(
    writer: DiskWriter, disk: SlowDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = writer.open(str(tmp_path / "a"), _WORDS)
    writer.write(file, b"before ")
    _finish(writer)

    def full() -> None:
        raise OSError(28, "No space left on device")

    for piece in (b"one ", b"two "):
        with monkeypatch.context() as patch:
            patch.setattr(disk, "wait", full)
            writer.write(file, piece)
            _finish(writer)
    writer.write(file, b"after")
    _finish(writer)
    assert (tmp_path / "a").read_bytes() == b"before [8 missing]after"
    assert (file.missing_bytes, file.error) == (8, "No space left on device")


def test_a_file_that_is_refused_gives_all_back(writer: DiskWriter, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    file = writer.open(str(tmp_path / "a"), _WORDS, returns=True)
    writer.write(file, b"first ")
    _finish(writer)
    writer.write(file, b"second")
    _finish(writer)
    assert file.is_refused
    assert writer.take_back(file) == b"first second"
    assert writer._num_waiting == file.missing_bytes == 0
    assert not (tmp_path / "b").exists()


def test_a_file_that_is_refused_keeps_nobody_waiting(writer: DiskWriter, disk: SlowDisk, tmp_path: Path) -> None:
    """The output of scripts stays in its pipe while much waits for the disk."""
    (tmp_path / "a").mkdir()
    disk.freeze()
    file = writer.open(str(tmp_path / "a"), _WORDS)
    for _ in range(17):
        writer.write(file, bytes(1 << 20))
    assert writer.is_full()
    disk.thaw()
    _finish(writer)
    writer.write(file, b"x")
    assert file.is_refused
    assert not writer.is_full()
    assert (file.missing_bytes, writer._num_waiting) == ((17 << 20) + 1, 0)


def test_room_is_waited_for_no_longer_than_asked(
    writer: DiskWriter, disk: SlowDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_writer, "_FULL_BYTES", 10)
    file = writer.open(str(tmp_path / "a"), _WORDS)
    writer.wait_for_room(20)
    _finish(writer)
    disk.freeze()
    writer.write(file, b"x" * 10)
    began = time.monotonic()
    writer.wait_for_room(0.2)
    assert 0.1 < time.monotonic() - began < 10
    assert writer.is_full()
    disk.thaw()
    _finish(writer)
    assert not writer.is_full()


def test_what_is_written_after_an_end_that_did_not_wait_is_written(disk: SlowDisk, tmp_path: Path) -> None:
    writer = DiskWriter()
    file = writer.open(str(tmp_path / "a"), _WORDS)
    disk.freeze()
    writer.write(file, b"first ")
    assert not writer.end(time.monotonic() + 0.1)
    disk.thaw()
    until = time.monotonic() + 20
    while writer._thread is not None:
        assert time.monotonic() < until
        time.sleep(0.01)
    writer.write(file, b"second")
    assert writer.finish(time.monotonic() + 20)
    assert (tmp_path / "a").read_bytes() == b"first second"
    writer.close(file)
    assert writer.end(time.monotonic() + 20)


def test_a_file_that_another_process_made_is_left_to_it(writer: DiskWriter, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("theirs")
    files = [writer.open(str(tmp_path / name), _WORDS, is_new=True) for name in "ab"]
    for file in files:
        writer.write(file, b"ours")
    _finish(writer)
    assert [(file.is_there, file.is_refused, file.unwritten_bytes) for file in files] == [(True,) * 2 + (4,), (0, 0, 0)]
    assert [(tmp_path / name).read_text() for name in "ab"] == ["theirs", "ours"]


def test_what_is_closed_has_come_to_its_end_before_the_next_opens(
    writer: DiskWriter, disk: SlowDisk, tmp_path: Path
) -> None:
    """The second log of a name waited behind a part of the first one, and got what followed of it."""
    disk.freeze()
    other, first = (writer.open(str(tmp_path / name), _WORDS) for name in ("other", "log"))
    for file in (other, first):
        writer.write(file, b"1" * (5 << 20))
    writer.close(first, partial(os.rename, tmp_path / "log", tmp_path / "log.1"))
    second = writer.open(str(tmp_path / "log"), _WORDS)
    writer.write(second, b"2")
    disk.thaw()
    _finish(writer)
    assert (tmp_path / "log").read_bytes() == b"2"
    assert {(tmp_path / name).read_bytes() for name in ("other", "log.1")} == {b"1" * (5 << 20)}


def test_a_file_that_cannot_be_opened_again_lacks_what_came_then(
    writer: DiskWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_writer, "_MOST_OPEN", 1)
    file = writer.open(str(tmp_path / "a"), _WORDS)
    writer.write(file, b"one ")
    writer.open(str(tmp_path / "b"), _WORDS)
    _finish(writer)
    (tmp_path / "a").rename(tmp_path / "aside")
    (tmp_path / "a").mkdir()
    writer.write(file, b"two ")
    _finish(writer)
    (tmp_path / "a").rmdir()
    (tmp_path / "aside").rename(tmp_path / "a")
    writer.write(file, b"three")
    _finish(writer)
    assert (tmp_path / "a").read_bytes() == b"one [4 missing]three"
    assert file.missing_bytes == 4


def test_what_the_disk_does_not_take_is_unwritten_at_all_times(writer: DiskWriter, tmp_path: Path) -> None:
    """It is asked while the thread counts what is missing."""
    file = writer.open(str(tmp_path / "a"), _WORDS)
    _finish(writer)

    class Waiting(bytearray):
        def __len__(self) -> int:
            file.missing_bytes = 4  # The thread takes the last piece, which is lost.
            return 0

    file.waiting = Waiting()
    assert file.unwritten_bytes == 4
    file.waiting = bytearray()
    writer.close(file)
