"""Copies of the logs on a disk that is full or answers nothing: neither the run nor its end waits for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from event_streams import healthy
from kubernetes.attempted import Cluster, running
from kubernetes.kubectl_script_double import log_of
from kubernetes.test_interrupted_pods import answers_of
from kubernetes.test_run_log import ended_pod
from slow_disk import SlowDisk

from seatrial.targets.kubernetes import attempt as attempt_module
from seatrial.targets.kubernetes import log_copies
from seatrial.targets.kubernetes.log_copies import CopiedPart, LogCopies
from seatrial.util import disk_writer

POD = replace(ended_pod(0, 0), name="a", uid="first")
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
    monkeypatch.setattr(attempt_module, "_LAST_OUTPUT_S", 2.0)
    answers = answers_of(healthy(), tmp_path, None)
    cluster = Cluster(tmp_path, [running(0), running(1)], (log_of("trial-1-1-x"), _PRINTS), *answers)
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
    copies.write(copies.open(POD), b"x" * 10)
    assert copies.is_full()
    disk.thaw()
    assert list(copies.finish(lambda: False)) == []
    assert not copies.is_full()


def test_what_was_read_is_in_the_copy_that_is_asked(tmp_path: Path) -> None:
    copies = LogCopies(tmp_path)
    file = copies.open(POD)
    for number in range(1_000):
        copies.write(file, b"%d\n" % number)
    assert copies.end(POD, 8).data == b"998\n999\n"
    assert copies.beginning(POD, 4).data == b"0\n1\n"
    absent = replace(POD, name="absent")
    assert copies.end(absent, 8).data == copies.beginning(absent, 8).data == b""
    assert list(copies.finish(lambda: False)) == []


def test_a_disk_that_answers_nothing_is_waited_for_once(
    tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copies, "LAST_ANSWER_S", 0.5)
    copies = LogCopies(tmp_path)
    copies.write(copies.open(POD), b"an end")
    assert copies.end(POD, 3).data == b"end"
    read: Callable[..., CopiedPart] = log_copies._read

    def slow(*args: object) -> CopiedPart:
        disk.wait()
        return read(*args)

    monkeypatch.setattr(log_copies, "_read", slow)
    disk.freeze()
    began = time.monotonic()
    assert [copies.end(POD, 3).data for _ in range(20)] == [b""] * 20
    assert time.monotonic() - began < 5
    disk.thaw()
    until = time.monotonic() + 20
    while not copies.end(POD, 3).is_whole:
        assert time.monotonic() < until
    assert copies.end(POD, 3).data == b"end"
    assert list(copies.finish(lambda: False)) == []


def test_the_copy_of_another_pod_with_the_name_is_no_evidence(tmp_path: Path) -> None:
    """PyTorchJobs and MPIJobs give the pods of both starts of a run the same names (``--min-hosts``)."""
    copies = LogCopies(tmp_path)
    later, third = replace(POD, uid="later"), replace(POD, uid="third")
    copies.write(copies.open(POD), b"seatrial: rank 1 failed in step 3\n")
    assert list(copies.finish(lambda: False)) == []
    assert copies.end(later, 100).data == copies.beginning(later, 100).data == b""
    copies.write(copies.open(later), b"of the second start\n")
    assert copies.end(later, 100).data == copies.beginning(later, 100).data == b"of the second start\n"
    assert copies.end(POD, 100).data == b""
    copies.write(copies.open(third), b"of the third one\n")
    copies.write(copies.open(third), b"and its end\n")
    assert copies.end(third, 100).data == b"of the third one\nand its end\n"
    assert list(copies.finish(lambda: False)) == []
    assert [(tmp_path / f"a{number}.log").read_text() for number in (".1", ".2", "")] == [
        "seatrial: rank 1 failed in step 3\n",
        "of the second start\n",
        "of the third one\nand its end\n",
    ]


def test_an_earlier_copy_that_keeps_its_name_is_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of the network may refuse to rename it."""

    def refuse(path: Path) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(log_copies, "_put_aside", refuse)
    copies, later = LogCopies(tmp_path), replace(POD, uid="later")
    copies.write(copies.open(POD), b"of the first start\n")
    copies.write(copies.open(later), b"of the second start\n")
    assert copies.end(later, 100) == CopiedPart(b"", is_whole=False)
    assert len(list(copies.finish(lambda: False))) == 1
    assert (tmp_path / "a.log").read_text() == "of the first start\n"
