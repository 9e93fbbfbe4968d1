"""The folder of checkpoints is opened once: what takes its name later is neither read, written to nor emptied."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from disks import made_disk
from neighbor_mount import NEIGHBOR, mounted_and_unasked

from seatrial.errors import RequestError, SeatrialError
from seatrial.training.checkpoint import CheckpointFolder

STATE: dict[str, Any] = {"weight": torch.arange(6.0)}


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, notes: list[str]) -> Iterator[CheckpointFolder]:
    with CheckpointFolder(tmp_path / "team/kept", note=notes.append, lock_wait_s=0) as opened:
        yield opened


@pytest.fixture
def best(tmp_path: Path) -> Path:
    """The checkpoints of another training of the same user."""
    with CheckpointFolder(tmp_path / "home/best", keep=9) as other:
        for step in range(1, 6):
            other.save(step, STATE)
    (tmp_path / "home/best/.writing-0123").write_bytes(b"of that training")
    return tmp_path / "home/best"


def _exchange(folder: Path, other: Path) -> Path:
    """Do what everybody can who may write to the folder above. Returns the new name of the folder."""
    moved = folder.rename(folder.with_name("moved"))
    folder.symlink_to(other)
    return moved


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _steps(folder: Path) -> list[int]:
    return [int(name[5:17]) for name in _files(folder) if name.startswith("step-")]


def test_an_exchanged_folder_costs_no_checkpoint_of_another_training(store: CheckpointFolder, best: Path) -> None:
    before = _files(best)
    store.save(10_000, STATE)
    moved = _exchange(store.folder, best)
    for step in (20_000, 30_000, 40_000):
        store.save(step, STATE)
    assert _files(best) == before
    assert _steps(moved) == [30_000, 40_000]
    assert [name for name in _files(moved) if name.startswith(".")] == []


def test_a_folder_above_that_is_exchanged_changes_nothing_either(tmp_path: Path, best: Path) -> None:
    before = _files(best)
    with CheckpointFolder(tmp_path / "team/a/best", lock_wait_s=0) as store:
        store.save(10_000, STATE)
        moved = _exchange(tmp_path / "team/a", best.parent)
        store.save(20_000, STATE)
        store.save(30_000, STATE)
    assert _files(best) == before
    assert _steps(moved / "best") == [20_000, 30_000]


def test_what_is_loaded_is_of_the_opened_folder(store: CheckpointFolder, best: Path) -> None:
    path = store.save(3, {"which": "ours"})
    _exchange(store.folder, best)
    assert store.newest() == (3, {"which": "ours"})
    assert store.load(path) == (3, {"which": "ours"})


def test_a_folder_that_was_only_read_is_the_one_that_is_written_to(store: CheckpointFolder, best: Path) -> None:
    with CheckpointFolder(store.folder) as before:
        path = before.save(3, STATE)
    assert store.load(path)[0] == 3
    moved = _exchange(store.folder, best)
    store.save(10_000, STATE)
    assert _steps(moved) == [3, 10_000]
    assert _steps(best) == [1, 2, 3, 4, 5]


def test_a_load_alone_makes_and_locks_nothing(store: CheckpointFolder) -> None:
    path = store.folder / f"step-{1:012d}.{'0' * 64}.pt"
    with pytest.raises(RequestError, match=f"there is no checkpoint {path}; there is no folder"):
        store.load(path)
    assert not store.folder.exists()


def test_the_lock_stays_that_of_the_opened_folder(store: CheckpointFolder, best: Path) -> None:
    store.save(1, STATE)
    moved = _exchange(store.folder, best)
    store.save(2, STATE)
    with pytest.raises(RequestError, match=f"{moved} is in use by another job"):
        CheckpointFolder(moved, lock_wait_s=0).newest()
    with CheckpointFolder(best, lock_wait_s=0) as other:
        assert other.newest() is not None


def test_a_folder_that_its_user_has_moved_gets_the_rest_and_a_note(store: CheckpointFolder, notes: list[str]) -> None:
    store.save(1, STATE)
    moved = store.folder.rename(store.folder.with_name("archive\x1b[31m"))
    for step in (2, 3):
        assert store.save(step, STATE).parent == moved
    assert _steps(moved) == [2, 3]
    [note] = notes
    assert note.isprintable()
    assert note.startswith(f"{store.folder} was moved after this training had opened it: ")
    assert f"{store.folder.parent}/archive\\x1b[31m" in note
    moved.rename(store.folder)
    assert store.save(4, STATE).parent == store.folder
    assert len(notes) == 1


@pytest.mark.parametrize("mode", [0o755, 0o775])
def test_a_restart_empties_no_folder_that_others_could_put_there(
    mode: int, tmp_path: Path, best: Path, notes: list[str]
) -> None:
    """A rank that starts again opens the name anew, and a neighbor may have put a link there meanwhile."""
    before = _steps(best)
    with CheckpointFolder(tmp_path / "team/kept") as store:
        store.save(10_000, STATE)
    (tmp_path / "team").chmod(mode)
    _exchange(tmp_path / "team/kept", best)
    with CheckpointFolder(tmp_path / "team/kept", note=notes.append) as store:
        store.newest()
        for step in (20_000, 30_000, 40_000, 50_000):
            store.save(step, STATE)
    written = [40_000, 50_000]
    assert _steps(best) == ([*before, *written] if mode == 0o775 else written)
    assert len([note for note in notes if "has not written" in note]) == (mode == 0o775), notes


@pytest.mark.root
@pytest.mark.parametrize("whose", ["of a neighbor", "ours"])
def test_a_restart_empties_no_folder_of_a_neighbor(whose: str, tmp_path: Path, notes: list[str]) -> None:
    """Below a folder like /tmp its owner alone can rename it: between any two looks at its name."""
    (tmp_path / "team/kept").mkdir(parents=True)
    (tmp_path / "team").chmod(0o1777)
    with CheckpointFolder(tmp_path / "team/kept") as store:
        store.save(1, STATE)
    if whose == "of a neighbor":
        os.chown(tmp_path / "team/kept", NEIGHBOR, NEIGHBOR)
    with CheckpointFolder(tmp_path / "team/kept", note=notes.append) as store:
        for step in (2, 3):
            store.save(step, STATE)
    is_theirs = whose == "of a neighbor"
    assert _steps(tmp_path / "team/kept") == ([1, 2, 3] if is_theirs else [2, 3])
    said = f"they stay, since {tmp_path}/team/kept belongs to user {NEIGHBOR}."
    assert [said in note for note in notes] == [True] * is_theirs


def test_the_way_that_is_judged_is_the_one_of_the_kernel(tmp_path: Path, best: Path, notes: list[str]) -> None:
    """A link of our own leads into the folder of a team, and ``..`` is that folder, not the one that the link is in."""
    before = _steps(best)
    (tmp_path / "team/data").mkdir(parents=True)
    (tmp_path / "team").chmod(0o777)
    (tmp_path / "team/kept").symlink_to(best)
    (tmp_path / "home/data").symlink_to(tmp_path / "team/data")
    with CheckpointFolder(f"{tmp_path}/home/data/../kept", note=notes.append) as store:
        for step in (20_000, 30_000, 40_000):
            store.save(step, STATE)
    assert _steps(best) == [*before, 30_000, 40_000]
    assert f"they stay, since other users can write to {tmp_path}/team." in notes[0]


def test_a_closed_store_opens_what_lies_at_the_name_then(store: CheckpointFolder, best: Path) -> None:
    store.save(10_000, STATE)
    _exchange(store.folder, best)
    store.close()
    found = store.newest()
    assert found is not None
    assert found[0] == 5


def test_a_refused_store_opens_what_lies_at_the_name_later(store: CheckpointFolder, best: Path) -> None:
    store.save(1, STATE)
    second = CheckpointFolder(store.folder, lock_wait_s=0)
    with pytest.raises(RequestError, match=f"{store.folder} is in use by another job"):
        second.newest()
    _exchange(store.folder, best)
    found = second.newest()
    second.close()
    assert found is not None
    assert found[0] == 5


@pytest.mark.parametrize("made_again", [False, True])
def test_a_folder_that_vanished_is_one_sentence(store: CheckpointFolder, made_again: bool) -> None:
    store.save(1, STATE)
    shutil.rmtree(store.folder)
    if made_again:
        store.folder.mkdir()
    with pytest.raises(SeatrialError, match=f"step 2 was not saved: {store.folder} was removed after this training"):
        store.save(2, STATE)


def test_no_message_has_the_number_of_a_descriptor(store: CheckpointFolder, notes: list[str]) -> None:
    store.save(1, STATE)
    links = [store.folder / f"step-{step:012d}.{'0' * 64}.pt" for step in (3, 2)]
    links[0].symlink_to("gone")
    links[1].symlink_to("../gone")
    assert store.newest() is not None
    targets = (store.folder / "gone", store.folder.parent / "gone")
    assert notes == [
        f"{link} is a symbolic link to {target}, which does not exist. It is skipped."
        for link, target in zip(links, targets, strict=True)
    ]
    with pytest.raises(RequestError, match=f"there is no checkpoint .*; the newest in {store.folder} is step-"):
        store.load(store.folder / f"step-{4:012d}.{'0' * 64}.pt")


@pytest.mark.root
def test_what_a_neighbor_mounts_there_later_is_not_asked(store: CheckpointFolder, notes: list[str]) -> None:
    store.save(1, STATE)
    with mounted_and_unasked(store.folder):
        store.save(2, STATE)
        assert store.newest() is not None
        store.save(3, STATE)
    assert _steps(store.folder) == [2, 3]
    assert notes == []


@pytest.mark.root
def test_what_a_neighbor_mounts_at_a_checkpoint_is_named(store: CheckpointFolder, notes: list[str]) -> None:
    store.save(1, STATE)
    (path := store.folder / f"step-{2:012d}.{'0' * 64}.pt").touch()
    with mounted_and_unasked(path):
        assert store.newest() is not None
    [note] = notes
    assert note.startswith(f"{path} cannot be read: {path} is on a file system of user ")


@pytest.mark.root
def test_a_disk_that_was_taken_away_by_force_is_one_sentence(tmp_path: Path, notes: list[str]) -> None:
    """An automounter never does that: it waits until nobody uses the disk."""
    with made_disk(tmp_path, 1 << 20) as disk, CheckpointFolder(disk / "kept", note=notes.append) as store:
        store.save(1, STATE)
        assert subprocess.run(["umount", str(disk)], capture_output=True, check=False).returncode != 0
        subprocess.run(["umount", "-l", str(disk)], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=True)
        with pytest.raises(
            SeatrialError, match=f"not saved in {disk}/kept: its file system was unmounted meanwhile, or "
        ):
            store.save(2, STATE)
        assert list(disk.iterdir()) == []


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with CheckpointFolder(tmp_path) as store:
        store.save(1, STATE)
    CheckpointFolder(tmp_path).newest()
    assert os.listdir("/proc/self/fd") == before


def test_a_link_to_another_folder_of_ours_changes_no_file_there(tmp_path: Path) -> None:
    """A neighbor may have put it where others can write, and the names of our files are known."""
    (other := tmp_path / "other").mkdir()
    for name in ("lock", ".writing-notes"):
        (other / name).write_text("precious")
    (team := tmp_path / "team").mkdir()
    team.chmod(0o777)
    (team / "kept").symlink_to(other)
    store = CheckpointFolder(team / "kept")
    store.save(1, STATE)
    store.close()
    assert [(other / name).read_text() for name in ("lock", ".writing-notes")] == ["precious"] * 2
