"""A neighbor's chain of links keeps nobody: what the kernel follows in no time would take minutes to look at."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seatrial import files, start
from seatrial.agent import mpi_rank, py_spy
from seatrial.environment import working_folder
from seatrial.environment.working_folder import FolderTrust
from seatrial.errors import SeatrialError
from seatrial.judge.conclude import conclude
from seatrial.report.write import write_somewhere
from seatrial.targets.ssh import bootstrap
from seatrial.training.checkpoint import CheckpointFolder

_NEIGHBOR = 12345
_NOBODY = dataclasses.asdict(FolderTrust())
_WORDS = "there are more than 500 names on the way, those of links included"


def _chain(folder: Path, end: str, links: int = 40) -> Path:
    """Make a chain of links, each through as many names as one can hold, to ``end`` in the folder."""
    (folder / "x").mkdir()
    for number in range(links):
        following = end if number == links - 1 else f"link{number + 1}"
        (folder / f"link{number}").symlink_to("x/../" * ((4090 - len(following)) // 5) + following)
    return folder / "link0"


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    (tmp_path / "end").mkdir()
    (tmp_path / "end" / "train.py").write_text("")
    return _chain(tmp_path, "end")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The readings of all mounts."""
    asked: list[int] = []
    real = start.mounted_by

    def mounted_by(fd: int) -> int:
        asked.append(fd)
        return real(fd)

    monkeypatch.setattr(start, "mounted_by", mounted_by)
    return asked


def test_the_mount_is_judged_where_it_changes(tmp_path: Path, asked: list[int]) -> None:
    folder = tmp_path.joinpath(*["x"] * 100)
    folder.mkdir(parents=True)
    num_mounts = len({start.mount_of(fd) for _, fd, *_ in start.way_to(str(folder))})
    asked.clear()
    steps = [*start.way_to(str(folder))]
    assert len(steps) > 100
    assert len(asked) <= num_mounts + 1


_USES: dict[str, Callable[[Path], Any]] = {
    "a folder of the run": lambda chain: working_folder.refusal(str(chain), "", FolderTrust()),
    "a script": lambda chain: working_folder.refusal(str(chain.parent), f"{chain}/train.py", FolderTrust()),
    "trust": lambda chain: working_folder.trust_here(str(chain), "train.py"),
    "a folder that may be here": lambda chain: working_folder.is_here(str(chain), FolderTrust()),
    "a share": lambda chain: working_folder._share_of(str(chain), ()),
    "a folder for mpirun": lambda chain: mpi_rank.enter(json.dumps({"path": str(chain), **_NOBODY})),
    "a folder over ssh": lambda chain: bootstrap._enter(
        {"path": str(chain), **_NOBODY}, start.trusted_users, start.way_to
    ),
    "py-spy": lambda chain: py_spy.find("/bin/python", {"PATH": str(chain)}),
    "a folder for reports": lambda chain: write_somewhere(conclude([]), chain, ""),
    "the folder of a run": lambda chain: write_somewhere(conclude([]), _as_run(chain), ""),
}


def _as_run(chain: Path) -> Path:
    """Put the chain in the place of the folder of a run, and return the folder above."""
    return chain.rename(chain.with_name("unknown-run")).parent


@pytest.mark.parametrize("use", _USES)
def test_no_use_follows_a_chain_to_its_end(
    use: str, chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    began = time.process_time()
    _USES[use](chain)
    assert time.process_time() - began < 2.0


def test_a_way_that_is_too_long_is_said(chain: Path) -> None:
    """The kernel follows it."""
    assert chain.joinpath("train.py").exists()
    assert working_folder.refusal(str(chain), "", FolderTrust()) == f"{chain}/: {_WORDS}"
    with pytest.raises(OSError, match=_WORDS):
        files.status_behind_links(chain, chain.parent)


@pytest.mark.parametrize("links", [0, 1])
def test_a_way_of_a_person_is_not_too_long(links: int, tmp_path: Path) -> None:
    names = (start._MOST_NAMES - len(tmp_path.parts)) // 2 - 4
    below = "x/../" * (names // (1 + links))
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to(below or ".")
    typed = tmp_path / below / "link" if links else tmp_path / below
    assert working_folder.refusal(str(typed), "", FolderTrust()) == ""


def test_many_chains_among_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "end").write_text("no checkpoint")
    chain = _chain(tmp_path, "end")
    for number in range(16):
        (tmp_path / f"step-{999_999_999_000 + number:012d}.{number:064x}.pt").symlink_to(chain.name)
    notes: list[str] = []
    began = time.process_time()
    with CheckpointFolder(tmp_path, note=notes.append) as folder, pytest.raises(SeatrialError, match="none of"):
        folder.newest()
    assert time.process_time() - began < 5.0
    assert _WORDS in notes[0]


@pytest.mark.root
@pytest.mark.parametrize("use", ["a folder that may be here", "a folder over ssh"])
def test_the_first_link_of_a_neighbor_ends_the_way(use: str, chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.lchown(chain, _NEIGHBOR, _NEIGHBOR)
    followed: list[str] = []
    real = start._target_of

    def target_of(link: int, entry: str) -> str:
        followed.append(entry)
        return real(link, entry)

    monkeypatch.setattr(start, "_target_of", target_of)
    assert _USES[use](chain) in (None, True)
    assert str(chain) not in followed
    assert working_folder.refusal(str(chain), "", FolderTrust()) == f"{chain} belongs to user {_NEIGHBOR}"
    assert str(chain) not in followed, "a disk of this machine maps no owners"


def test_a_deep_way_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step keeps its whole name, which may be longer than any path that the kernel takes."""
    name, times = "y" * 90, 10
    monkeypatch.chdir(tmp_path)
    for number in range(times):
        os.symlink(f"{name}/" * 40 + "on" * (number < times - 1), "on")
        for _ in range(40):
            os.mkdir(name)
            os.chdir(name)
    tracemalloc.start()
    try:
        assert working_folder.is_here(str(tmp_path / "on"), FolderTrust())
        assert working_folder.refusal(str(tmp_path / "on"), "", FolderTrust()) == ""
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_many_files_in_a_folder_are_looked_at_in_no_time(tmp_path: Path, asked: list[int]) -> None:
    """A colleague can put as many among the checkpoints as the disk takes."""
    for number in range(20):
        (tmp_path / f"{number}").write_text("")
        files.status_of_entry(tmp_path / f"{number}")
        files.status_of_entry(tmp_path / f"{number}", tmp_path)
    assert asked == []
