"""The page that a rank writes and its agent reads."""

from __future__ import annotations

import mmap
import os
import signal
import struct
from collections.abc import Iterator

import pytest

from seatrial.protocol.phase_page import PhaseReader, PhaseWriter, create


@pytest.fixture
def page() -> Iterator[int]:
    fd = create()
    yield fd
    os.close(fd)


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_a_page_keeps_its_size(page: int, size: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(page, size)
    reader = PhaseReader(page)
    assert reader.read() == (0, "")
    reader.close()


def test_an_empty_page_has_no_phase(page: int) -> None:
    reader = PhaseReader(page)
    assert reader.read() == (0, "")
    reader.close()


@pytest.mark.parametrize("label", ["", "all_reduce 8 B", "größer", "x" * 1_000])
def test_a_written_phase_is_read(page: int, label: str) -> None:
    reader, writer = PhaseReader(page), PhaseWriter(page)
    writer.write("a long label before it, whose end must not show")
    writer.write(label)
    number, read = reader.read()
    assert (number, writer.number, writer.label) == (2, 2, label)
    assert read == label[: len(read)]
    assert len(read) == min(len(label), 494)
    reader.close()


def test_numbers_continue_from_where_the_writer_sets_them(page: int) -> None:
    reader, writer = PhaseReader(page), PhaseWriter(page)
    writer.number = 7 * 10**9
    writer.write("x")
    assert reader.read() == (7 * 10**9 + 1, "x")
    reader.close()


def test_a_label_is_never_read_with_another_number(page: int) -> None:
    """The writer died between the number and the label: the phase was entered, its name is not known."""
    reader, writer = PhaseReader(page), PhaseWriter(page)
    writer.write("one")
    with mmap.mmap(page, 512) as raw:
        raw[:8] = struct.pack("<Q", 2)
        assert reader.read() == (2, "")
    reader.close()


def test_the_last_phase_outlives_its_writer(page: int) -> None:
    reader = PhaseReader(page)
    ready, write_ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        writer = PhaseWriter(page)
        for number in range(1_000):
            writer.write(f"phase {number}")
        os.write(write_ready, b"x")
        signal.pause()
    os.read(ready, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert reader.read() == (1_000, "phase 999")
    reader.close()
    os.close(ready)
    os.close(write_ready)


def test_a_reader_during_constant_writes(page: int) -> None:
    reader = PhaseReader(page)
    pid = os.fork()
    if pid == 0:
        writer = PhaseWriter(page)
        while True:
            writer.write(f"{writer.number + 1} " + "x" * (writer.number % 97))
    seen = [reader.read() for _ in range(20_000)]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    numbers = [number for number, _ in seen]
    assert numbers == sorted(numbers)
    labels = {label.partition(" ")[0] for number, label in seen if label and not label.startswith(f"{number} ")}
    assert labels == set()
    reader.close()
