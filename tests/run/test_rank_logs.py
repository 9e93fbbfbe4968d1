"""The files with the output of remote ranks."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import threading
import time
import zlib
from pathlib import Path

import pytest
from hostile_files import HOSTILE, assert_unharmed
from slow_disk import SlowDisk

from seatrial.files import create, open_to_append
from seatrial.protocol import fields
from seatrial.protocol.commands import PIECE_BYTES, RankLog
from seatrial.run import rank_logs
from seatrial.run.rank_logs import RankLogs
from seatrial.util import disk_writer


def piece(at: int, text: bytes, *, rank: int = 0, gen: int = 0, last: bool = False) -> RankLog:
    data = base64.b64encode(zlib.compress(text)).decode()
    return RankLog(kind="log", rank=rank, gen=gen, at=at, data=data, last=last)


def test_pieces_make_one_file_for_each_rank(tmp_path: Path) -> None:
    logs = RankLogs(tmp_path, 4)
    logs.begin(1)
    for message in (
        piece(0, b"one ", rank=3),
        piece(4, b"\xfftwo\n", rank=3),
        piece(9, b"", rank=3, last=True),
        piece(0, b"again\n", rank=3, gen=1, last=True),
    ):
        logs.take(message)
    logs.close()
    assert (tmp_path / "rank3.gen0.log").read_bytes() == b"one \xfftwo\n"
    assert (tmp_path / "rank3.gen1.log").read_bytes() == b"again\n"
    assert logs.notes() == []


def test_pods_that_all_start_again_have_files_of_their_own(tmp_path: Path) -> None:
    """The conductor in them counts generations and bytes from 0 again."""
    with contextlib.closing(RankLogs(tmp_path, 1, 2)) as logs:
        for text in (b"first\n", b"again\n"):
            logs.begin_start()
            logs.begin(0)
            logs.take(piece(0, text, last=True))
        # No more starts than the run can have.
        logs.begin_start()
        logs.begin(0)
        with pytest.raises(ValueError, match="came twice"):
            logs.take(piece(0, b"third\n", last=True))
    assert [(tmp_path / f"rank0.gen{number}.log").read_bytes() for number in (0, 1)] == [b"first\n", b"again\n"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_gap_has_a_line_and_a_note(tmp_path: Path) -> None:
    logs = RankLogs(tmp_path, 2)
    logs.take(piece(0, b"begin"))
    logs.take(piece(1000, b"end", last=True))
    logs.close()
    assert (tmp_path / "rank0.gen0.log").read_bytes() == b"begin\nseatrial: 995 bytes of output are missing here\nend"
    (note,) = logs.notes()
    assert note.startswith("rank 0: 995 bytes of its output could not be kept")


def test_an_end_that_does_not_arrive_has_a_note(tmp_path: Path) -> None:
    with contextlib.closing(RankLogs(tmp_path, 1)) as logs:
        logs.take(piece(0, b"begin"))
    assert logs.notes() == ["rank 0: the end of its output did not arrive, so rank0.gen0.log may be cut"]


def test_a_folder_that_takes_nothing_has_a_note(tmp_path: Path) -> None:
    logs = RankLogs(tmp_path / "absent", 1)
    logs.take(piece(0, b"12345", last=True))
    logs.close()
    (note,) = logs.notes()
    assert note.startswith("rank 0: 5 bytes of its output could not be kept")


def test_the_restarts_of_a_rank_share_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_logs, "_MAX_RANK_BYTES", 100)
    logs = RankLogs(tmp_path, 2)
    for generation in range(5):
        logs.begin(generation)
        logs.take(piece(0, b"x" * 40, gen=generation, last=True))
    logs.take(piece(0, b"y" * 40, rank=1, last=True))
    logs.close()
    missing = b"\nseatrial: 40 bytes of output are missing here\n"
    contents = [(tmp_path / f"rank0.gen{number}.log").read_bytes() for number in range(5)]
    assert contents == [b"x" * 40] * 2 + [missing] * 3
    assert (tmp_path / "rank1.gen0.log").read_bytes() == b"y" * 40
    assert [note[:40] for note in logs.notes()] == ["rank 0: 40 bytes of its output could not"] * 3


def test_a_rank_has_no_more_files_than_the_run_has_generations(tmp_path: Path) -> None:
    logs = RankLogs(tmp_path, 2)
    logs.begin(fields.MOST_GENERATIONS)
    for generation in range(fields.MOST_GENERATIONS):
        logs.take(piece(0, b"", gen=generation, last=True))
    with pytest.raises(ValueError, match="rank 0, generation 16"):
        logs.take(piece(0, b"", gen=fields.MOST_GENERATIONS))
    logs.close()
    many = RankLogs(tmp_path, 2, generations=101)
    many.begin(100)
    many.take(piece(0, b"the restart that somebody asked for", gen=100, last=True))
    many.close()
    assert (tmp_path / "rank0.gen100.log").exists()


def test_no_rank_prints_in_a_generation_that_has_not_begun(tmp_path: Path) -> None:
    logs = RankLogs(tmp_path, 2)
    logs.begin(1)
    with pytest.raises(ValueError, match="rank 0, generation 2"):
        logs.take(piece(0, b"x", gen=2))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files in the order in which they are opened, each time."""
    opened: list[str] = []

    def noted(path: str, *, run_folder: bool) -> io.FileIO:
        opened.append(os.path.basename(path))
        return (open_to_append if os.path.exists(path) else create)(path, run_folder=run_folder)

    monkeypatch.setattr(disk_writer, "open_to_append", noted)
    monkeypatch.setattr(disk_writer, "create", noted)
    return opened


def test_one_file_of_each_rank_is_written_at_a_time(tmp_path: Path, opened: list[str]) -> None:
    """Pieces of a byte for 8 ranks and 16 generations in turn opened a file each: on a slow disk nobody was heard."""
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.closing(RankLogs(tmp_path, 8)) as logs:
        logs.begin(15)
        for at in range(10):
            for number in range(8 * 16):
                with contextlib.suppress(ValueError):
                    logs.take(piece(at, b"x", rank=number % 8, gen=number // 8))
        assert logs._disk.finish(time.monotonic() + 20)
        assert len(opened) == 8 * 16
        assert len(os.listdir("/proc/self/fd")) - before <= 8
    assert {path.read_bytes() for path in tmp_path.glob("*.gen15.log")} == {b"x" * 10}


def test_pieces_open_their_file_once(tmp_path: Path, opened: list[str]) -> None:
    """On a disk of the network that takes 20 ms: no agent was heard for a minute while one sent pieces of a byte."""
    with contextlib.closing(RankLogs(tmp_path, 3)) as logs:
        for at in range(50):
            for rank in range(3):
                logs.take(piece(at, b"x", rank=rank))
            assert logs._disk.finish(time.monotonic() + 20)
        assert sorted(opened) == [f"rank{rank}.gen0.log" for rank in range(3)]
        assert {(tmp_path / name).read_bytes() for name in opened} == {b"x" * 50}


def test_few_files_stay_open(tmp_path: Path) -> None:
    num = 200
    before = len(os.listdir("/proc/self/fd"))
    logs = RankLogs(tmp_path, num)
    for at in range(2):
        for rank in range(num):
            logs.take(piece(3 * at, b"one", rank=rank))
        assert logs._disk.finish(time.monotonic() + 20)
    assert len(os.listdir("/proc/self/fd")) - before <= 64
    logs.take(piece(6, b".", rank=num - 1, last=True))
    logs.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"oneone", b"oneone."}


def test_a_disk_that_answers_nothing_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Agents that heard nothing for 30 s ended their healthy ranks. What does not fit is missing at its place."""
    disk = SlowDisk(monkeypatch)
    request.addfinalizer(disk.thaw)
    monkeypatch.setattr(rank_logs, "_MOST_WAITING_BYTES", 100)
    disk.freeze()
    began = time.monotonic()
    logs = RankLogs(tmp_path, 2)
    for at in range(4):
        logs.take(piece(at * 40, b"x" * 40))
    logs.take(piece(0, b"y" * 10, rank=1, last=True))
    logs.close(lambda: True)
    assert time.monotonic() - began < 10
    first, second = logs.notes()
    assert "bytes of its output could not be kept" in first
    assert "did not take them (it has not answered for " in first
    assert second.startswith("rank 1: 10 bytes")
    disk.thaw()
    logs.close()
    missing = b"\nseatrial: 80 bytes of output are missing here\n"
    assert (tmp_path / "rank0.gen0.log").read_bytes() == b"x" * 80 + missing
    assert (tmp_path / "rank1.gen0.log").read_bytes() == b"y" * 10


@pytest.mark.parametrize("ranks_that_flood", [1, 8])
def test_ranks_that_print_without_end_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, ranks_that_flood: int
) -> None:
    """One node filled all the memory that output may wait in, and that of all other nodes was missing."""
    disk = SlowDisk(monkeypatch)
    request.addfinalizer(disk.thaw)
    monkeypatch.setattr(rank_logs, "_MOST_WAITING_BYTES", 10_000)
    disk.freeze()
    logs = RankLogs(tmp_path, ranks_that_flood + 1)
    for at in range(0, 20_000, 10):
        for rank in range(ranks_that_flood):
            logs.take(piece(at, b"x" * 10, rank=rank))
    assert 8_000 <= logs._disk.waiting_bytes < 9_800
    logs.take(piece(0, b"y" * 200, rank=ranks_that_flood, last=True))
    disk.thaw()
    logs.close()
    assert (tmp_path / f"rank{ranks_that_flood}.gen0.log").read_bytes() == b"y" * 200


def test_a_thread_that_cannot_start_names_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This user has no process left; later he has."""
    logs = RankLogs(tmp_path, 1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no process")))
        logs.take(piece(0, b"one"))
        assert "3 bytes of its output could not be kept" in logs.notes()[0]
    logs.take(piece(3, b"two", last=True))
    logs.close()
    assert (tmp_path / "rank0.gen0.log").read_bytes() == b"\nseatrial: 3 bytes of output are missing here\ntwo"
    assert "3 bytes of its output could not be kept" in logs.notes()[0]


def test_a_file_that_an_agent_writes_itself_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "rank0.gen0.log").write_text("whole\n")
    logs = RankLogs(tmp_path, 1)
    logs.take(piece(0, b"other"))
    logs.close()
    assert (tmp_path / "rank0.gen0.log").read_text() == "whole\n"
    assert logs.notes() == []


@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_is_replaced_and_no_link_followed(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    HOSTILE[kind][0](folder / "rank0.gen0.log")
    with contextlib.closing(RankLogs(folder, 1)) as logs:
        logs.take(piece(0, b"x", last=True))
    assert_unharmed(folder / "rank0.gen0.log")


@pytest.mark.parametrize(
    "message",
    [
        piece(0, b"x", rank=4),
        piece(0, b"x", rank=-1),
        piece(0, b"x", gen=-1),
        piece(-1, b"x"),
        {**piece(0, b"x"), "rank": "../0"},
        {**piece(0, b"x"), "at": 0.5},
        {**piece(0, b"x"), "data": "no base64"},
        {**piece(0, b"x"), "data": base64.b64encode(b"no zlib").decode()},
        {**piece(0, b"x"), "data": base64.b64encode(zlib.compress(b"cut")[:-5]).decode()},
        piece(0, b"x" * (PIECE_BYTES + 1)),
        piece(0, b"0" * 100_000_000),
    ],
)
def test_what_is_no_piece_is_refused(message: RankLog, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError)):
        RankLogs(tmp_path, 4).take(message)
    assert list(tmp_path.iterdir()) == []


def test_a_piece_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(RankLogs(tmp_path, 1)) as logs:
        logs.take(piece(0, b"one"))
        with pytest.raises(ValueError, match="came twice"):
            logs.take(piece(0, b"one"))
    assert (tmp_path / "rank0.gen0.log").read_text() == "one"


def test_a_piece_after_the_last_one_is_refused(tmp_path: Path) -> None:
    logs = RankLogs(tmp_path, 1)
    logs.take(piece(0, b"one", last=True))
    with pytest.raises(ValueError, match="after the last one"):
        logs.take(piece(3, b"two"))
    logs.close()
    assert (tmp_path / "rank0.gen0.log").read_text() == "one"
