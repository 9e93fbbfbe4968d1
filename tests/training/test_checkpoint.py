"""Checkpoints on disk: only complete ones are loaded, nothing in them runs, and each failure is one sentence."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_files import HOSTILE, assert_unharmed

from seatrial.errors import RequestError, SeatrialError
from seatrial.files import open_to_read, status_of_entry, statuses_in
from seatrial.training import checkpoint
from seatrial.training.checkpoint import CheckpointFolder

STATE: dict[str, Any] = {
    "model": {"weight": torch.arange(6.0).reshape(2, 3), "seen": torch.tensor(7), "none": torch.zeros(0)},
    "optimizer": {"weight": {"momentum": torch.full((2, 3), -0.0)}, "betas": (0.9, 0.999), "foreach": None},
    "step": 2**70,
    "nested": [[1, True, float("inf")], {3: "three"}],
}


def _assert_equal(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left.view(torch.uint8), right.view(torch.uint8)) if left.dim() else torch.equal(left, right)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            _assert_equal(left[key], right[key])
    elif isinstance(left, list | tuple):
        for one, other in zip(left, right, strict=True):
            _assert_equal(one, other)
    else:
        assert left == right


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, notes: list[str]) -> Iterator[CheckpointFolder]:
    with CheckpointFolder(tmp_path / "kept", note=notes.append, lock_wait_s=0) as opened:
        yield opened


def _files(store: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir() if path.name != "lock")


def _plant(store: CheckpointFolder, step: int, content: bytes) -> Path:
    """A file whose name is right for what is in it."""
    path = store.folder / f"step-{step:012d}.{hashlib.sha256(content).hexdigest()}.pt"
    path.write_bytes(content)
    return path


def _saved_by_torch(content: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def test_an_empty_folder_has_no_newest(store: CheckpointFolder) -> None:
    assert store.newest() is None


def test_what_was_saved_comes_back_to_the_bit(store: CheckpointFolder, notes: list[str]) -> None:
    path = store.save(3, STATE)
    found = store.newest()
    assert found is not None
    assert found[0] == 3
    _assert_equal(found[1], STATE)
    _assert_equal(store.load(path), (3, STATE))
    assert notes == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool], ids=str)
def test_every_kind_of_number_comes_back(store: CheckpointFolder, dtype: torch.dtype) -> None:
    values = torch.tensor([0, 1, 1]).to(dtype)
    assert torch.equal(store.load(store.save(1, {"values": values}))[1]["values"], values)


def test_a_view_is_saved_without_what_it_is_a_view_of(store: CheckpointFolder) -> None:
    whole = torch.arange(1_000_000)
    path = store.save(1, {"part": whole[5:7], "parameter": torch.nn.Parameter(torch.ones(2))})
    assert path.stat().st_size < 10_000
    state = store.load(path)[1]
    assert state["part"].tolist() == [5, 6]
    assert type(state["parameter"]) is torch.Tensor


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"model": {"path": Path("x")}}, r"state\['model'\]\['path'\]"),
        ({"list": [1, {2}]}, r"state\['list'\]\[1\]"),
        ({"sparse": torch.eye(2).to_sparse()}, r"state\['sparse'\]"),
        ({"empty": torch.zeros(2, device="meta")}, r"state\['empty'\]"),
        ({"keys": {1.5: 0}}, r"state\['keys'\]"),
        ({"model": torch.nn.Linear(1, 1)}, r"state\['model'\]"),
    ],
    ids=["path", "set", "sparse", "meta", "key", "module"],
)
def test_what_is_neither_tensor_nor_primitive_is_refused_by_its_key(
    store: CheckpointFolder, value: dict[str, Any], key: str
) -> None:
    with pytest.raises(TypeError, match=key):
        store.save(1, value)
    assert store.newest() is None


def test_the_newest_are_kept_and_the_older_ones_go(store: CheckpointFolder) -> None:
    for step in (1, 2, 3, 10):
        store.save(step, STATE)
    assert [name[:17] for name in _files(store)] == ["step-000000000003", "step-000000000010"]


def test_fewer_than_two_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="must be 2 or more"):
        CheckpointFolder(tmp_path, keep=1)


def test_damaged_ones_do_not_count_among_those_that_are_kept(tmp_path: Path, notes: list[str]) -> None:
    with CheckpointFolder(tmp_path) as first:
        first.save(1, STATE)
        first.save(2, STATE).write_bytes(b"")
    with CheckpointFolder(tmp_path, note=notes.append) as second:
        second.save(3, STATE)
        assert [name[14:17] for name in _files(second)] == ["001", "002", "003"]
        second.save(4, STATE)
        assert [name[14:17] for name in _files(second)] == ["003", "004"]


def test_what_was_just_saved_stays_though_others_have_higher_steps(store: CheckpointFolder) -> None:
    for step in (10, 20, 5):
        path = store.save(step, STATE)
    assert path.exists()
    assert len(_files(store)) == 3


def test_the_same_state_saved_twice_is_one_file_and_mends_a_damaged_one(store: CheckpointFolder) -> None:
    path = store.save(1, STATE)
    assert store.save(1, STATE) == path
    path.write_bytes(b"damaged")
    assert store.save(1, STATE) == path
    assert store.newest() is not None
    assert len(_files(store)) == 1


def test_of_two_with_the_same_step_the_later_one_wins(store: CheckpointFolder) -> None:
    first = store.save(1, {"which": "first"})
    store.save(1, {"which": "second"})
    os.utime(first, (1, 1))
    assert store.newest() == (1, {"which": "second"})


@pytest.mark.parametrize("position", [0, 100, -1])
def test_one_flipped_bit_is_noticed_and_the_one_before_is_taken(
    store: CheckpointFolder, notes: list[str], position: int
) -> None:
    store.save(1, {"which": "former"})
    path = store.save(2, STATE)
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    assert store.newest() == (1, {"which": "former"})
    [note] = notes
    assert str(path) in note
    assert "is damaged" in note
    assert "skipped" in note
    with pytest.raises(SeatrialError, match="is damaged"):
        store.load(path)


def test_nothing_of_a_file_behind_a_link_is_said(store: CheckpointFolder, notes: list[str], tmp_path: Path) -> None:
    """A colleague reads the output of the job, and would find a short secret by its digest or its size."""
    (secret := tmp_path / "pin").write_bytes(b"4711\n" * 100)
    store.save(1, {"which": "former"})
    (link := store.folder / f"step-{2:012d}.{'0' * 64}.pt").symlink_to(secret)
    assert store.newest() == (1, {"which": "former"})
    assert notes == [f"{link} is damaged: its SHA-256 is not the one in its name. It is skipped."]


@pytest.mark.parametrize("size_bytes", [0, 1, 500])
def test_a_half_written_one_is_never_loaded(store: CheckpointFolder, notes: list[str], size_bytes: int) -> None:
    store.save(1, {"which": "former"})
    path = store.save(2, STATE)
    os.truncate(path, size_bytes)
    assert store.newest() == (1, {"which": "former"})
    assert "is damaged" in notes[0]


def test_where_all_are_damaged_a_person_decides(store: CheckpointFolder, notes: list[str]) -> None:
    os.truncate(store.save(1, STATE), 10)
    with pytest.raises(SeatrialError, match="none of its 1 checkpoints can be loaded"):
        store.newest()
    assert len(notes) == 1


class _Hostile:
    def __init__(self, folder: Path) -> None:
        self.command = f"touch {folder}/was-here"

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "old"])
def test_a_hostile_pickle_is_refused_by_name_and_not_run(
    store: CheckpointFolder, notes: list[str], tmp_path: Path, zipped: bool
) -> None:
    store.save(1, {"which": "former"})
    content = {"format": 1, "step": 2, "state": {"model": _Hostile(tmp_path)}}
    path = _plant(store, 2, _saved_by_torch(content, _use_new_zipfile_serialization=zipped))
    assert store.newest() == (1, {"which": "former"})
    assert str(path) in notes[0]
    assert ("system" if zipped else "not a zip file") in notes[0]
    with pytest.raises(SeatrialError, match="is refused"):
        store.load(path)
    assert not (tmp_path / "was-here").exists()


def test_a_bare_pickle_is_refused(store: CheckpointFolder, tmp_path: Path) -> None:
    store.save(1, STATE)
    path = _plant(store, 2, pickle.dumps(_Hostile(tmp_path)))
    with pytest.raises(SeatrialError, match="is refused"):
        store.load(path)
    assert not (tmp_path / "was-here").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": 1}, "not a checkpoint of seatrial"),
        ([1], "not a checkpoint of seatrial"),
        ({"format": 2, "step": 1, "state": {}}, "has format 2"),
        ({"format": 1, "step": 7, "state": {}}, "contains step 7, but its name says 1"),
        ({"format": 1, "step": 1, "state": 3}, "is refused"),
    ],
    ids=["foreign", "list", "later", "other-step", "no-state"],
)
def test_what_another_program_saved_is_refused(store: CheckpointFolder, content: Any, message: str) -> None:
    store.save(1, STATE)
    with pytest.raises(SeatrialError, match=message):
        store.load(_plant(store, 1, _saved_by_torch(content)))


def test_a_zip_file_of_another_kind_is_refused(store: CheckpointFolder) -> None:
    store.save(1, STATE)
    with pytest.raises(SeatrialError, match="it is damaged"):
        store.load(_plant(store, 1, b"PK\x03\x04" + bytes(100)))


def test_other_names_and_missing_files_are_wrong_requests(store: CheckpointFolder, tmp_path: Path) -> None:
    path = store.save(1, STATE)
    with pytest.raises(RequestError, match="does not have the name of a checkpoint"):
        store.load(shutil.copy(path, tmp_path / "best.pt"))
    path.unlink()
    with pytest.raises(RequestError, match="there is no checkpoint"):
        store.load(path)


def test_what_dead_writers_left_is_removed_and_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / ".writing-0123").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    with CheckpointFolder(tmp_path) as opened:
        assert opened.newest() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "notes.txt"]


def test_a_second_job_is_refused_with_the_holder_named(store: CheckpointFolder, notes: list[str]) -> None:
    store.save(1, STATE)
    half = store.folder / ".writing-0123"
    half.write_bytes(b"of the first job")
    second = CheckpointFolder(store.folder, lock_wait_s=0.05)
    for use in (second.newest, lambda: second.save(2, STATE)):
        with pytest.raises(RequestError, match=rf"process {os.getpid()} on {socket.gethostname()}"):
            use()
    assert half.exists()
    store.close()
    assert second.newest() is not None
    second.close()


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from seatrial.training.folder_lock import lock_folder\n"
        "print(lock_folder(folder := Path(sys.argv[1]), named=folder, wait_s=0), flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        store = CheckpointFolder(tmp_path, lock_wait_s=0)
        with pytest.raises(RequestError, match=f"process {process.pid} on "):
            store.newest()
        process.kill()
        process.wait()
        assert f'"pid": {process.pid}' in (tmp_path / "lock").read_text()
        assert store.newest() is None
        store.close()


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_a_neighbor_plants_among_checkpoints_is_reported(
    store: CheckpointFolder, notes: list[str], kind: str
) -> None:
    store.save(1, {"a": 1})
    path = store.folder / f"step-{2:012d}.{'0' * 64}.pt"
    HOSTILE[kind][0](path)
    assert store.newest() == (1, {"a": 1})
    (note,) = notes
    assert note.startswith(str(path))
    assert note.endswith("It is skipped.")
    store.save(3, {"a": 3})
    assert store.newest() == (3, {"a": 3})
    assert_unharmed(path)


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if kind != "hard link"])
def test_a_planted_lock_is_refused_and_nothing_written(store: CheckpointFolder, kind: str) -> None:
    store.folder.mkdir()
    path = store.folder / "lock"
    HOSTILE[kind][0](path)
    with pytest.raises(RequestError, match=f"cannot write checkpoints to {store.folder}: lock is {HOSTILE[kind][1]}"):
        store.save(1, {"a": 1})
    assert_unharmed(path)


def test_the_name_of_a_holder_cannot_color_a_terminal(tmp_path: Path) -> None:
    holder = {"pid": "\x1b[31m", "host": "a\nError: forged", "since": "\x1b]0;title\x07"}
    (tmp_path / "lock").write_text(json.dumps(holder))
    (tmp_path / "lock").chmod(0o644)
    with (tmp_path / "lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RequestError, match="is in use by another job") as caught:
            CheckpointFolder(tmp_path, lock_wait_s=0).newest()
    assert f"a user who can read {tmp_path / 'lock'} holds this lock" in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_checkpoint_may_be_reached_by_a_link(store: CheckpointFolder, tmp_path: Path) -> None:
    saved = store.save(1, {"a": 1})
    moved = saved.rename(tmp_path / saved.name)
    saved.symlink_to(moved)
    assert store.newest() == (1, {"a": 1})


def test_of_thousands_of_damaged_ones_only_the_newest_are_read(
    store: CheckpointFolder, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(1, STATE)
    for number in range(1_000):
        (store.folder / f"step-{10**17 + number}.{number:064x}.pt").write_bytes(b"")
    with pytest.raises(SeatrialError, match="none of the 16 newest of its 1001 checkpoints can be loaded"):
        store.newest()
    assert len(notes) == 16
    # Nor are they read when the next one is saved.
    monkeypatch.setattr(store, "load", None)
    for step in (2, 3, 4):
        store.save(step, STATE)
    assert sum(path.stat().st_size > 0 for path in store.folder.glob("step-*")) == 2


def test_large_damaged_ones_are_read_up_to_a_sum(
    store: CheckpointFolder, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a sum of gigabytes the other ranks would give up waiting, and one of them would be in the headline."""
    monkeypatch.setattr(checkpoint, "MOST_BYTES", 1 << 20)
    store.save(1, STATE)
    for number in range(8):
        size_bytes = (1 << 19) + (number == 7 and 1 << 20)  # the newest is too large, so nothing of it is read
        (store.folder / f"step-{10**17 + number}.{number:064x}.pt").write_bytes(bytes(size_bytes))
    with pytest.raises(SeatrialError, match="none of the 3 newest of its 9 checkpoints can be loaded"):
        store.newest(1 << 20)
    assert len(notes) == 3


def test_one_that_this_user_may_not_read_is_passed_over(
    store: CheckpointFolder, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a file that another user has put there would end each start and each restart."""
    store.save(1, STATE)
    planted = _plant(store, 10**17, b"private")
    planted.chmod(0)
    opened = open_to_read

    def as_another_user(path: Path) -> Any:
        if path.name == planted.name:  # root may read all files
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path)

    monkeypatch.setattr(checkpoint, "open_to_read", as_another_user)
    _assert_equal(store.newest(), (1, STATE))
    assert notes == [f"this user may not read {planted}; change its permissions. It is skipped."]
    with pytest.raises(SeatrialError, match="this user may not read"):
        store.load(planted)


def test_what_others_put_there_has_no_place_among_those_that_are_kept(tmp_path: Path) -> None:
    with CheckpointFolder(tmp_path) as store:
        first = store.save(1, STATE)
        for step in (10**17, 10**17 + 1):
            _plant(store, step, b"PK whole, and no checkpoint")
        second, third = store.save(2, STATE), store.save(3, STATE)
        assert (first.exists(), second.exists(), third.exists()) == (False, True, True)


@pytest.mark.root
def test_a_file_of_others_that_was_resumed_from_keeps_none_of_ours_away(tmp_path: Path) -> None:
    """In a sticky folder its owner alone can remove it; then a save would have removed all of ours for him."""
    notes = list[str]()
    with CheckpointFolder(tmp_path, note=notes.append) as ours:
        saved = ours.save(200, {"by": "us"})
        theirs = ours.save(300, {"by": "them"})
    os.chown(theirs, 12345, 12345)
    with CheckpointFolder(tmp_path, note=notes.append) as ours:
        assert ours.newest() == (300, {"by": "them"})
        assert notes == [f"{theirs} is a checkpoint of user 12345; if it fits, the training goes on from it."]
        second = ours.save(310, {"by": "us"})
        assert sorted(tmp_path.glob("step-*")) == [saved, theirs, second]
        third = ours.save(320, {"by": "us"})
        assert sorted(tmp_path.glob("step-*")) == [theirs, second, third]
        assert len(notes) == 2


@pytest.mark.root
def test_what_other_users_put_there_stays_and_is_noted_once(store: CheckpointFolder, notes: list[str]) -> None:
    assert store.newest() is None
    own = _plant(store, 1, b"of an earlier run")
    theirs = [_plant(store, 0, b"%d" % number) for number in range(1_500)]
    for path in theirs:
        os.chown(path, 12345, 12345)
    for step in (2, 3, 4):
        store.save(step, STATE)
    assert not own.exists()
    assert all(path.exists() for path in theirs)
    assert len(notes) == 1
    assert "older checkpoints of other users, such as step-" in notes[0]


@pytest.mark.parametrize("step", [0, 10**17])
def test_no_number_of_names_keeps_a_start_or_a_save_waiting(
    step: int, store: CheckpointFolder, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.newest()
    looked_at: list[int] = []

    def recorded(folder: Path, names: list[str]) -> Iterator[tuple[str, os.stat_result]]:
        looked_at.append(len(names))
        return statuses_in(folder, names)

    def recorded_status(path: Path) -> os.stat_result:
        looked_at.append(1)
        return status_of_entry(path)

    monkeypatch.setattr(checkpoint, "statuses_in", recorded)
    monkeypatch.setattr(checkpoint, "status_of_entry", recorded_status)
    for number in range(3_000):
        (store.folder / f"step-{step:012d}.{number:064x}.pt").touch()
    with pytest.raises(SeatrialError, match="none of the 16 newest of its 3000 checkpoints can be loaded"):
        store.newest()
    for number in (1, 2, 3):
        store.save(number, STATE)
    assert max(looked_at) <= 1_001
    assert len(looked_at) <= 10
    assert len(notes) == 16


def test_one_that_is_removed_meanwhile_is_passed_over(store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(1, STATE)
    gone = store.save(2, STATE)
    listed = os.listdir(store.folder)
    gone.unlink()
    monkeypatch.setattr(os, "listdir", lambda folder: listed)
    found = store.newest()
    assert found is not None
    assert found[0] == 1


def test_an_entry_that_cannot_be_removed_keeps_no_other(store: CheckpointFolder, notes: list[str]) -> None:
    first = store.save(1, STATE)
    (store.folder / f"step-{2:012d}.{'0' * 64}.pt").mkdir()
    store.save(3, STATE)
    store.save(4, STATE)
    assert not first.exists()
    assert len(notes) == 1
    assert "could not be removed" in notes[0]


def test_a_format_or_step_that_is_no_number_is_refused(store: CheckpointFolder) -> None:
    store.save(1, STATE)
    for content in (
        {"format": torch.zeros(2), "step": 1, "state": {}},
        {"format": 1, "step": torch.ones(2), "state": {}},
        {"format": "\x1b[2J" * 100, "step": 1, "state": {}},
    ):
        with pytest.raises(SeatrialError, match=r"has format|contains step") as refused:
            store.load(_plant(store, 1, _saved_by_torch(content)))
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 500
