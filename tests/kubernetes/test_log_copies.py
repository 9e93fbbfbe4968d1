"""Copies of the logs on a disk that is full or answers nothing: neither the run nor its end waits for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from event_streams import healthy
from kubernetes.attempted import Cluster, running
from kubernetes.test_interrupted_pods import answers_of
from slow_disk import SlowDisk

from seatrial.targets.kubernetes import attempt as attempt_module
from seatrial.targets.kubernetes import log_copies
from seatrial.targets.kubernetes.log_copies import LogCopies
from seatrial.util import disk_writer

_PRINTS = 'i=0; while [ $i -lt 500 ]; do echo "2026-01-01T00:00:01Z $i of a line"; i=$((i+1)); done'


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.thaw()


def _full() -> None:
    raise OSError(28, os.strerror(28))


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A trial that ends well, while the other pod prints much; its objects are deleted."""
    monkeypatch.setattr(attempt_module, "_LAST_OUTPUT_S", 3.0)
    answers = answers_of(healthy(), tmp_path, None)
    cluster = Cluster(tmp_path, [running(0), running(1)], ("'logs trial-1-1-x'*", _PRINTS), *answers)
    attempt = cluster.attempt()
    try:
        attempt.run()
    finally:
        assert attempt.cleanup(keep=False) == []
    return cluster


def test_a_full_disk_ends_no_run(tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "wait", _full)
    cluster = _run(tmp_path, monkeypatch)
    assert cluster.run_log.over
    noted = [event["text"] for event in cluster.events if event["kind"] == "note"]
    assert any(
        "could not" in text or "are missing in trial-1-1-x.log (No space left on device)" in text for text in noted
    )


def test_a_disk_that_answers_nothing_keeps_no_object(
    tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop waited in it: neither Ctrl-C nor the deletion came through."""
    monkeypatch.setattr(log_copies, "_LAST_WRITE_S", 0.2)
    monkeypatch.setattr(log_copies, "LAST_ANSWER_S", 0.2)
    disk.freeze()
    cluster = _run(tmp_path, monkeypatch)
    assert cluster.run_log.over
    noted = [event["text"] for event in cluster.events if event["kind"] == "note"]
    assert any("of a log are missing in trial-1-1-x.log (the disk has not answered for" in text for text in noted)


def test_no_log_is_read_that_can_wait_while_much_waits_for_the_disk(
    tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_writer, "_FULL_BYTES", 10)
    copies = LogCopies(tmp_path)
    disk.freeze()
    copies.write(copies.open("a"), b"x" * 10)
    assert copies.is_full()
    disk.thaw()
    assert list(copies.finish(lambda: False)) == []
    assert not copies.is_full()


def test_what_was_read_is_in_the_copy_that_is_asked(tmp_path: Path) -> None:
    copies = LogCopies(tmp_path)
    file = copies.open("a")
    for number in range(1_000):
        copies.write(file, b"%d\n" % number)
    assert copies.end("a", 8) == b"998\n999\n"
    assert copies.beginning("a", 4) == b"0\n1\n"
    assert copies.end("absent", 8) == copies.beginning("absent", 8) == b""
    assert list(copies.finish(lambda: False)) == []


def test_a_disk_that_answers_nothing_is_waited_for_once(
    tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copies, "LAST_ANSWER_S", 0.5)
    (tmp_path / "a.log").write_text("an end")
    copies = LogCopies(tmp_path)
    read: Callable[..., bytes] = log_copies._read

    def slow(*args: object) -> bytes:
        disk.wait()
        return read(*args)

    monkeypatch.setattr(log_copies, "_read", slow)
    disk.freeze()
    began = time.monotonic()
    assert [copies.end("a", 3) for _ in range(20)] == [b""] * 20
    assert time.monotonic() - began < 5
    disk.thaw()
    until = time.monotonic() + 20
    while not copies.end("a", 3):
        assert time.monotonic() < until
    assert copies.end("a", 3) == b"end"
