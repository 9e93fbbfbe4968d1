"""Disks that are full, read-only, gone or faulty: one sentence, and the earlier checkpoints are unchanged."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from disks import made_disk

from seatrial.errors import RequestError, SeatrialError
from seatrial.training.checkpoint import CheckpointFolder

STATE = {"weight": torch.arange(6.0)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CheckpointFolder]:
    with CheckpointFolder(tmp_path / "kept") as opened:
        yield opened


def _files(store: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir() if path.name != "lock")


def test_a_write_that_fails_leaves_the_former_ones_and_nothing_else(store: CheckpointFolder) -> None:
    store.save(1, STATE)
    before = _files(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(SeatrialError, match=r"step 2 was not saved in .*: File too large; the earlier ones"):
            store.save(2, {"large": torch.zeros(1_000_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert _files(store) == before
    assert store.newest() is not None


def test_a_folder_that_is_none_is_a_wrong_request(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        with pytest.raises(RequestError, match="cannot write checkpoints to"):
            CheckpointFolder(folder).newest()


def test_a_file_is_read_back_before_its_rename_and_before_old_ones_go(
    store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a loss of power needs and no kill can show: the order of calls."""
    for step in (1, 2):
        store.save(step, STATE)
    calls: list[str] = []

    def recorded(name: str) -> Any:
        whole = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            target = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else str(arguments[0])
            of_file = ".writing-" in target or ".pt" in target
            calls.append(f"{name} {'file' if of_file else 'folder'}")
            return whole(*arguments, **options)

        return call

    for name in ("fsync", "replace", "unlink"):
        monkeypatch.setattr(os, name, recorded(name))
    store.save(3, STATE)
    # The first unlink is of the temporary name, in case that a save has failed.
    assert calls == ["fsync file", "replace file", "fsync folder", "unlink file", "unlink file"]


def test_content_that_reads_back_changed_is_not_kept(store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(1, STATE)
    before = _files(store)
    fsync = os.fsync

    def damaging(descriptor: int) -> None:
        """A disk that changes one byte."""
        os.pwrite(descriptor, b"\xff", 200)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", damaging)
    with pytest.raises(SeatrialError, match=r"read back from .* differs from what was written; .* deleted\. The disk"):
        store.save(2, STATE)
    assert _files(store) == before


def _at_fsync(monkeypatch: pytest.MonkeyPatch, what: Callable[[Path], None]) -> None:
    """Have another user do something to the file of a checkpoint once it is written."""
    fsync = os.fsync

    def disturbed(descriptor: int) -> None:
        fsync(descriptor)
        place = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if place.name.startswith(".writing-"):
            what(place)

    monkeypatch.setattr(os, "fsync", disturbed)


@pytest.mark.parametrize("size_bytes", [100, 1 << 40])
def test_others_who_may_write_to_a_file_may_have_changed_it(
    store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    store.save(1, STATE)
    before = _files(store)

    def resize(place: Path) -> None:
        place.chmod(0o664)
        os.truncate(place, size_bytes)

    _at_fsync(monkeypatch, resize)
    with pytest.raises(SeatrialError, match=r"deleted\. Another user who may write to it has changed it, or the disk"):
        store.save(2, STATE)
    assert _files(store) == before


@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_that_others_exchange_shows_no_fault_of_the_disk(
    store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    store.save(1, STATE)
    before = _files(store)

    def exchange(place: Path) -> None:
        place.rename(place.with_name("theirs"))
        place.symlink_to("theirs") if is_link else place.write_bytes(b"other")

    _at_fsync(monkeypatch, exchange)
    with pytest.raises(
        SeatrialError, match=r"step 2 was not saved in .*: somebody else has put another file in the pla"
    ):
        store.save(2, STATE)
    (store.folder / "theirs").unlink()
    assert _files(store) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    with made_disk(tmp_path, 1 << 20) as disk:
        yield disk


@pytest.mark.root
def test_a_full_disk_is_one_sentence_and_earlier_checkpoints_stay(small_disk: Path) -> None:
    with CheckpointFolder(small_disk) as opened:
        opened.save(1, {"values": torch.ones(50_000)})
        with pytest.raises(SeatrialError, match=r"step 2 was not saved in .*: No space left on device"):
            opened.save(2, {"values": torch.ones(500_000)})
        assert not list(small_disk.glob(".writing-*"))
        found = opened.newest()
        assert found is not None
        assert found[0] == 1
        opened.save(3, {"values": torch.ones(50_000)})


@pytest.mark.root
def test_a_read_only_folder_is_refused_before_training(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(RequestError, match=r"cannot write checkpoints to .*: Read-only file system"):
        CheckpointFolder(small_disk).newest()
