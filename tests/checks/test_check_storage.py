"""The storage check on real folders of this machine, all ranks in one process."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checks.fake_context import FakeContext
from disks import made_disk

from seatrial.checks.storage import CHECK, data_file, tokens
from seatrial.checks.storage.params import Params
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.findings import Finding, Ruling
from seatrial.probe.file_system import file_system, own_places
from seatrial.rank.meeting import MeetingError

MIB = 2**20
STAGES = [stage.name for stage in CHECK.stages]


def trial(params: Sequence[Params], stages: Sequence[str] = STAGES) -> list[FakeContext]:
    """Run a rank for each of the parameters, each on a separate node, stage by stage."""
    ranks = range(len(params))
    contexts = [
        FakeContext(check="storage", rank=rank, ranks=tuple(ranks), node=f"n{rank}", node_rank=rank) for rank in ranks
    ]
    for stage in stages:
        shared: dict[str, Any] = {}
        for context, mine in zip(contexts, params, strict=True):
            context.stage = stage
            if stage != "key" or context.rank == 0:
                CHECK.measure(context, mine)
                shared |= context.given
        for context in contexts:
            context.given = dict(shared)
    return contexts


def shared_by(folder: Path, num_ranks: int) -> tuple[Params, list[FakeContext]]:
    """Return the parameters of ranks that will write little in a new folder, and these ranks, which have a key."""
    folder.mkdir()
    params = replace(small(folder, shared="yes"), size_bytes=MIB)
    return params, trial([params] * num_ranks, ["key"])


def go_on(contexts: Sequence[FakeContext], params: Params, stages: Sequence[str]) -> None:
    """Have ranks of a trial carry out further stages."""
    for stage in stages:
        for context in contexts:
            context.stage = stage
            CHECK.measure(context, params)


def grave(ruling: Ruling) -> list[Finding]:
    return [finding for finding in ruling.findings if finding.severity != "info"]


def judge(contexts: Sequence[FakeContext], params: Params) -> Ruling:
    ranks = {
        context.rank: RankRecord(
            rank=context.rank, node=context.node, node_rank=context.rank, local_rank=0, device="a CPU", kind="a CPU"
        )
        for context in contexts
    }
    measurements = tuple(measurement for context in contexts for measurement in context.measurements)
    facts = tuple(fact for context in contexts for fact in context.facts)
    return CHECK.judge(
        Evidence(ranks=ranks, asked=tuple(ranks), measurements=measurements, facts=facts, device_type="cpu"), params
    )


def small(folder: Path | None, **changes: Any) -> Params:
    return Params(folder=None if folder is None else str(folder), size_bytes=20 * MIB, appends=3, **changes)


def facts(context: FakeContext, name: str) -> list[Any]:
    return [fact.value for fact in context.facts if fact.name == name]


def test_two_ranks_on_one_folder_write_read_and_leave_nothing(tmp_path: Path) -> None:
    params = small(tmp_path, shared="yes")
    contexts = trial([params, params])
    # On one node, lest two turns on one disk are compared as two disks.
    contexts[1].node = contexts[0].node
    ruling = judge(contexts, params)
    assert (ruling.findings, ruling.absent, ruling.unjudged) == ((), (), ())
    measured = {
        (measurement.name, measurement.variant.replace("warm", "cold")): measurement
        for measurement in contexts[1].measurements
    }
    assert measured["wrong_bytes", ""].value == 0
    assert measured["write_gbps", ""].size_bytes == measured["read_gbps", "cold"].size_bytes == 20 * MIB
    assert measured["write_gbps", ""].value > 0
    assert measured["read_gbps", "cold"].value > 0
    assert 0 < measured["fsync_ms", "median"].value <= measured["fsync_ms", "p99"].value
    assert measured["free_bytes", ""].value > 0
    assert facts(contexts[0], "sees") == [[[0, 1]]]
    assert [label for label in contexts[0].phases if label.startswith("append")] == ["append 0", "append 1", "append 2"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_token_that_a_neighbor_takes_away_names_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """In a folder without the sticky bit: rank 0 has found its token, and the others come too late for it."""
    look, away, looks = tokens.visible_ranks, tmp_path / "away", itertools.count()

    def looked_and_moved(folder: str, key: str, owner: int, ranks: Collection[int]) -> tuple[list[int], list[int]]:
        found, rank = look(folder, key, owner, ranks), next(looks)
        if rank == 1:
            time.sleep(0.02)  # the clock of a file system moves every 10 ms or so
            os.rename(tokens.file_path(folder, key, 0, "token"), away)
        if rank == 3 and comes_back:
            os.rename(away, tokens.file_path(folder, key, 0, "token"))
        return found

    monkeypatch.setattr(tokens, "visible_ranks", looked_and_moved)
    params = small(tmp_path, shared="yes")
    contexts = trial([params] * 4)
    assert [facts(context, "sees") for context in contexts] == [*[[[[0, 3]]]] * 2, *[[[[1, 3]]]] * 2]
    ruling = judge(contexts, params)
    assert [finding for finding in ruling.findings if finding.severity == "fail"] == []
    assert "whether the folder is shared: somebody removed or moved the token of rank 0, or its folder" in ruling.absent


@pytest.mark.parametrize("exchanged_for", [{0, 1, 2, 3}, {0}])
def test_a_folder_that_is_exchanged_while_ranks_look_names_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanged_for: set[int]
) -> None:
    """For one that lacks the token of rank 0 alone; its token keeps its ctime."""
    folder, decoy, away = (tmp_path / name for name in ("folder", "decoy", "away"))
    look, looks = tokens.visible_ranks, itertools.count()

    def exchanged(*arguments: Any) -> tuple[list[int], list[int]]:
        if next(looks) not in exchanged_for:
            return look(*arguments)
        folder.rename(away)
        decoy.rename(folder)
        found = look(*arguments)
        folder.rename(decoy)
        away.rename(folder)
        return found

    params, contexts = shared_by(folder, 4)
    go_on(contexts, params, ["token"])
    shutil.copytree(folder, decoy)
    (token,) = decoy.glob("*-0.token")
    token.unlink()
    monkeypatch.setattr(tokens, "visible_ranks", exchanged)
    go_on(contexts, params, ["view", "measure"])
    assert [facts(context, "sees") for context in contexts] == [[[[0, 3]]]] * 4
    assert [finding for finding in judge(contexts, params).findings if finding.severity == "fail"] == []
    assert len([*decoy.iterdir()]) == 3
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_token_left_in_an_exchanged_folder_names_nobody(tmp_path: Path, comes_back: bool) -> None:
    """Rank 0 alone opens the one that another user has put there for a moment, or that stays."""
    folder, decoy, away = (tmp_path / name for name in ("folder", "decoy", "away"))
    params, contexts = shared_by(folder, 4)
    decoy.mkdir()
    go_on(contexts[1:], params, ["token"])
    folder.rename(away)
    decoy.rename(folder)
    go_on(contexts[:1], params, ["token"])
    if comes_back:
        folder.rename(decoy)
        away.rename(folder)
    go_on(contexts, params, ["view", "measure"])
    lost = [rank for rank in range(4) if facts(contexts[rank], "token_lost")]
    assert lost == ([0] if comes_back else [1, 2, 3])
    assert [finding for finding in judge(contexts, params).findings if finding.severity == "fail"] == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_is_closed_for_some_names_nobody(tmp_path: Path) -> None:
    """A link to itself is in its place when ranks 0 and 1 leave their tokens."""
    folder, away = tmp_path / "folder", tmp_path / "away"
    params, contexts = shared_by(folder, 5)
    go_on(contexts[2:], params, ["token"])
    folder.rename(away)
    folder.symlink_to(folder)
    go_on(contexts[:2], params, ["token"])
    folder.unlink()
    away.rename(folder)
    go_on(contexts, params, ["view", "measure"])
    (finding,) = [finding for finding in judge(contexts, params).findings if finding.severity == "fail"]
    assert finding.what == f"{folder} on nodes n0, n1 cannot be written to: Too many levels of symbolic links"
    assert (finding.culprit.kind, finding.culprit.nodes) == ("none", ())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_ways_to_folders_are_reported_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the folder is missing, and of both folders that are tried where none was named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    for params, folders in (
        (small(tmp_path / "missing"), ["missing"]),
        (replace(small(None), size_bytes=MIB), ["", "missing"]),
    ):
        (context,) = trial([params])
        ways = [
            {"folder": str(tmp_path / name).rstrip("/"), "places": own_places([tmp_path / name])} for name in folders
        ]
        assert [fact.value for fact in context.facts if (fact.name, fact.stage) == ("way", "token")] == ways
        assert [fact.value for fact in context.facts if (fact.name, fact.stage) == ("way", "measure")] == ways
        assert [fact.stage for fact in context.facts if fact.name == "refused"] == ["token"] * (len(folders) == 1)


@pytest.mark.root
def test_files_in_the_place_of_all_tokens_are_no_tokens(tmp_path: Path) -> None:
    """Also where one of them is in the place of ours: whose the others are is not read from it."""
    params = replace(small(tmp_path, shared="no"), size_bytes=MIB)
    contexts = trial([params] * 2, ["key", "token"])
    for path in tmp_path.iterdir():
        path.unlink()
        path.touch()
        os.chown(path, 10001, 10001)
    go_on(contexts, params, ["view", "measure"])
    for context in contexts:
        assert [facts(context, name) for name in ("sees", "foreign")] == [[[]], [[[0, 1]]]]
        assert facts(context, "token_lost") == [True, True]
    assert [finding for finding in judge(contexts, params).findings if finding.severity == "fail"] == []


def test_a_full_shared_folder_that_refuses_one_token_names_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user of the disk takes its last inode while rank 1 leaves its token."""
    leave, numbers = tokens.Token.leave, itertools.count()

    def full_for_one(token: tokens.Token) -> None:
        if next(numbers) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        leave(token)

    monkeypatch.setattr(tokens.Token, "leave", full_for_one)
    params = small(tmp_path, shared="yes")
    contexts = trial([params] * 3)
    (finding,) = [finding for finding in judge(contexts, params).findings if finding.severity == "fail"]
    assert finding.what == f"{tmp_path} on node n1 cannot be written to: No space left on device"
    assert (finding.culprit.kind, finding.culprit.nodes) == ("none", ())
    assert list(tmp_path.iterdir()) == []


def test_separate_folders_are_recognized(tmp_path: Path) -> None:
    params = []
    for name in "ab":
        (tmp_path / name).mkdir()
        params.append(small(tmp_path / name, shared="no"))
    contexts = trial(params, STAGES[:-1])
    assert [facts(context, "sees") for context in contexts] == [[[[0, 0]]], [[[1, 1]]]]
    assert judge(contexts, params[0]).findings == ()
    (finding,) = judge(contexts, small(tmp_path, shared="yes")).findings
    assert (finding.severity, finding.culprit.kind, finding.culprit.nodes) == ("fail", "none", ("n0", "n1"))


def test_without_a_named_folder_the_first_usable_one_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, spare = tmp_path / "gone", tmp_path / "spare"
    spare.mkdir()
    params, tried = small(None), []
    for temporary in (spare, tmp_path / "nowhere"):
        # Only as long as it is tried: pytest itself does not work in a folder that was removed.
        with monkeypatch.context() as patch:
            gone.mkdir()
            patch.chdir(gone)
            gone.rmdir()
            patch.setattr(tempfile, "tempdir", str(temporary))
            tried.append(judge(trial([params]), params))
    found, nowhere = tried
    assert [finding.severity for finding in found.findings if "no folder was named" in finding.what] == ["info"]
    assert str(spare) in found.findings[0].what
    assert (found.absent, found.unjudged) == ((), ())
    assert (nowhere.findings, nowhere.absent) == ((), ())
    assert nowhere.unjudged == (
        f"storage: no folder was named, and {tmp_path}/nowhere on node n0 cannot be written to: "
        "No such file or directory",
    )


def test_a_missing_named_folder_fails_its_node(tmp_path: Path) -> None:
    params = small(tmp_path / "missing")
    (finding,) = grave(judge(trial([params]), params))
    assert (finding.severity, finding.culprit.nodes, finding.measured) == ("fail", ("n0",), "ENOENT")
    assert finding.what == f"{tmp_path}/missing on node n0 cannot be written to: No such file or directory"
    assert "mounted" in finding.action
    # What a node lacks in a folder that it has in common with another one may have been taken away there.
    (finding,) = grave(judge(trial([small(tmp_path), params]), params))
    assert (finding.severity, finding.culprit.kind) == ("fail", "none")
    assert finding.what == f"{tmp_path}/missing on node n1 cannot be written to: No such file or directory"


def test_a_changed_byte_is_found_with_its_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = data_file.drop_from_cache

    def spoil(fd: int, size_bytes: int) -> float:
        kept = right(fd, size_bytes)
        for place in (9 * MIB + 5, 17 * MIB):
            byte = os.pread(fd, 1, place)
            os.pwrite(fd, bytes([byte[0] ^ 4]), place)
        return kept

    monkeypatch.setattr(data_file, "drop_from_cache", spoil)
    params = small(tmp_path)
    (finding,) = grave(judge(trial([params]), params))
    assert finding.severity == "fail"
    assert (finding.culprit.kind, finding.culprit.nodes) == ("node", ("n0",))
    assert finding.measured == f"2 wrong bytes, the first at offset {9 * MIB + 5}"
    assert str(tmp_path) in finding.what


def test_a_file_that_lost_its_end_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = data_file.drop_from_cache

    def cut(fd: int, size_bytes: int) -> float:
        os.ftruncate(fd, 10 * MIB)
        return right(fd, size_bytes)

    monkeypatch.setattr(data_file, "drop_from_cache", cut)
    params = small(tmp_path)
    (finding,) = grave(judge(trial([params]), params))
    assert finding.measured == f"{10 * MIB} wrong bytes, the first at offset {10 * MIB}"


def test_a_file_on_disk_leaves_the_cache_and_one_in_memory_is_warm(tmp_path: Path) -> None:
    for folder in (tmp_path, Path("/dev/shm")):
        with data_file.nameless_file(str(folder), os.getpid()) as fd:
            data_file.write(fd, 4 * MIB, 1, time.monotonic() + 60, lambda label: None)
            kept = data_file.drop_from_cache(fd, 4 * MIB)
            in_memory = file_system(fd).in_memory
        assert kept == 1 if in_memory else kept < 0.05


def test_a_file_that_a_neighbor_renames_in_time_is_left_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(path: str) -> None:
        os.rename(path, tmp_path / "theirs")
        raise FileNotFoundError

    monkeypatch.setattr(data_file, "remove", too_late)
    with data_file.nameless_file(str(tmp_path), 0) as fd:
        os.write(fd, b"x" * 4096)
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("theirs", 0)]


def test_an_error_in_the_middle_is_reported_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    params = small(tmp_path)
    contexts = trial([params], STAGES[:-1])
    monkeypatch.setattr(os, "fsync", fail)
    contexts[0].stage = "measure"
    CHECK.measure(contexts[0], params)
    (finding,) = grave(judge(contexts, params))
    assert (finding.severity, finding.measured) == ("fail", "EIO")
    assert "cannot be used (append): Input/output error" in finding.what
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stage", ["view", "measure"])
def test_a_bug_leaves_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    params = small(tmp_path)
    contexts = trial([params], ["key", "token"])
    assert [path.suffix for path in tmp_path.iterdir()] == [".token"]
    contexts[0].stage = stage

    def mistake(*arguments: Any) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(tokens, "visible_ranks", mistake)
    monkeypatch.setattr(data_file, "append", mistake)
    with pytest.raises(KeyError):
        CHECK.measure(contexts[0], params)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_too_small_is_not_written_to(tmp_path: Path) -> None:
    params = Params(folder=str(tmp_path), size_bytes=2**50, appends=1)
    contexts = trial([params, params])
    assert not any(measurement.name == "write_gbps" for context in contexts for measurement in context.measurements)
    (finding,) = grave(judge(contexts, params))
    assert (finding.severity, finding.culprit.kind) == ("fail", "none"), "all share it, so no node is at fault"
    assert "has too few free bytes" in finding.what
    assert finding.limit is not None
    assert finding.limit.origin == f"storage.size_bytes {2**50} for 2 ranks that write there"
    assert finding.limit.value == 2 * (2**50 + MIB)
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_ends_in_time_with_a_part(tmp_path: Path) -> None:
    params = small(tmp_path)
    contexts = trial([params], STAGES[:-1])
    contexts[0].stage, contexts[0].timeout_s = "measure", 0.0
    CHECK.measure(contexts[0], params)
    ruling = judge(contexts, params)
    assert ruling.findings == ()
    assert ruling.unjudged == (
        "storage: append ended after 1 of 3 appends of rank 0",
        f"storage: write ended after {8 * MIB} of {20 * MIB} bytes of rank 0",
    )


@pytest.mark.parametrize(("quick_s", "synced_mib"), [(60.0, [8, 20]), (-1.0, [8, 16, 20])])
def test_a_slow_disk_syncs_fewer_bytes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_s: float, synced_mib: list[int]
) -> None:
    monkeypatch.setattr(data_file, "_QUICK_S", quick_s)
    labels: list[str] = []
    with data_file.nameless_file(str(tmp_path), 0) as fd:
        moved = data_file.write(fd, 20 * MIB, 0, time.monotonic() + 60, labels.append)
    assert moved.size_bytes == 20 * MIB
    assert [label for label in labels if label.startswith("fsync")] == [f"fsync at {each * MIB}" for each in synced_mib]


def test_a_repeat_writes_and_reads_alone(tmp_path: Path) -> None:
    params = small(tmp_path)
    (context,) = trial([params], [*STAGES, "repeat"])
    again = {measurement.name for measurement in context.measurements if measurement.stage == "repeat"}
    assert again == {"write_gbps", "read_gbps", "fsync_ms", "cpu_share", "wrong_bytes"}
    assert list(tmp_path.iterdir()) == []


def test_only_old_files_of_ours_are_removed(tmp_path: Path) -> None:
    old = time.time() - 25 * 3600
    name = "seatrial-storage-0123456789abcdef-{}.token"
    ours, others = (
        [name.format(number) for number in range(3)],
        [name.format(7) + ".bak", "data.token", "x" + name.format(8)],
    )
    for each in (*ours, *others):
        (tmp_path / each).write_text("0")
        os.utime(tmp_path / each, (old, old))
    os.utime(tmp_path / ours[1])
    target = tmp_path / "keep"
    target.write_text("kept")
    os.utime(target, (old, old))
    (tmp_path / name.format(9)).symlink_to(target)
    os.utime(tmp_path / name.format(9), (old, old), follow_symlinks=False)
    (tmp_path / name.format(10)).mkdir()
    os.utime(tmp_path / name.format(10), (old, old))
    assert sorted(tokens.remove_leftovers(str(tmp_path), time.time())) == [ours[0], ours[2]]
    assert {path.name for path in tmp_path.iterdir()} == {ours[1], *others, "keep", name.format(9), name.format(10)}
    assert tokens.remove_leftovers(str(tmp_path / "nowhere"), time.time()) == []


def test_names_without_end_are_not_all_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others can put any number there; what is left is for later trials."""
    for number in range(9):
        (tmp_path / f"seatrial-storage-0123456789abcdef-{number}.token").touch()
        os.utime(tmp_path / f"seatrial-storage-0123456789abcdef-{number}.token", (0, 0))
    monkeypatch.setattr(tokens, "_MOST_LOOKED_AT", 4)
    assert len(tokens.remove_leftovers(str(tmp_path), time.time())) == 4
    monkeypatch.setattr(tokens, "_MOST_NAMES", 3)
    assert len(tokens.remove_leftovers(str(tmp_path), time.time())) == 3
    assert len([*tmp_path.iterdir()]) == 2


def test_who_sees_a_token_knows_no_other_name(tmp_path: Path) -> None:
    """A neighbor puts the files there that the name of a token lets him expect."""
    params = small(tmp_path, shared="no")
    contexts = trial([params, params], ["key"])
    contexts[0].stage = "token"
    CHECK.measure(contexts[0], params)
    (token,) = tmp_path.iterdir()
    code = token.name.split("-")[2]
    for name in ("0.data", "1.token", "1.data"):
        (tmp_path / f"seatrial-storage-{code}-{name}").touch()
    for stage in ("view", "measure"):
        contexts[0].stage = stage
        CHECK.measure(contexts[0], params)
    assert facts(contexts[0], "sees") == [[[0, 0]]]
    assert facts(contexts[0], "trouble") == []


@pytest.mark.root
def test_another_users_file_is_no_token(tmp_path: Path) -> None:
    for rank in (0, 1):
        Path(tokens.file_path(str(tmp_path), "0" * 16, rank, "token")).touch()
    assert tokens.visible_ranks(str(tmp_path), "0" * 16, os.geteuid(), [0, 1, 2]) == ([0, 1], [])
    os.chown(tokens.file_path(str(tmp_path), "0" * 16, 1, "token"), 10001, 10001)
    assert tokens.visible_ranks(str(tmp_path), "0" * 16, os.geteuid(), [0, 1, 2]) == ([0], [1])


@pytest.mark.root
def test_another_users_file_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "seatrial-storage-0123456789abcdef-0.token"
    path.write_text("0")
    os.chown(path, 10001, 10001)
    os.utime(path, (0, 0))
    assert tokens.remove_leftovers(str(tmp_path), time.time()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory of 24 MiB."""
    with made_disk(tmp_path, 24 * MIB) as disk:
        yield disk


@pytest.mark.root
def test_a_folder_in_memory_is_reported_and_judged_warm(small_disk: Path) -> None:
    params = Params(folder=str(small_disk), size_bytes=4 * MIB, appends=2, min_read_gbps=0.001)
    ruling = judge(trial([params]), params)
    (finding,) = ruling.findings
    assert finding.severity == "info"
    assert "the folder is in memory (tmpfs) on node n0" in finding.what
    assert ruling.absent == ()
    assert [entry.passed for entry in ruling.judged if entry.measurement.name == "read_gbps"] == [True]


@pytest.mark.root
def test_a_disk_that_fills_up_meanwhile_is_reported(small_disk: Path) -> None:
    params = Params(folder=str(small_disk), size_bytes=8 * MIB, appends=1)
    contexts = trial([params], STAGES[:-1])
    (small_disk / "filler").write_bytes(bytes(20 * MIB))
    contexts[0].stage = "measure"
    CHECK.measure(contexts[0], params)
    (finding,) = grave(judge(contexts, params))
    assert (finding.culprit.nodes, finding.measured) == (("n0",), "ENOSPC")
    assert "No space left on device" in finding.what
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


@pytest.mark.root
def test_a_full_disk_has_no_room(small_disk: Path) -> None:
    size_bytes = 24 * MIB
    (small_disk / "filler").write_bytes(bytes(size_bytes))
    params = small(small_disk)
    (finding,) = grave(judge(trial([params]), params))
    assert (finding.severity, finding.measured) == ("fail", "0 bytes free")
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


@pytest.mark.root
def test_a_read_only_file_system_fails_its_node(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    params = small(small_disk)
    (finding,) = grave(judge(trial([params]), params))
    assert (finding.severity, finding.culprit.nodes, finding.measured) == ("fail", ("n0",), "EROFS")
    assert "Read-only file system" in finding.what
    assert "mount it for writing" in finding.action


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"folder": "checkpoints"}, "folder is 'checkpoints'; it must be an absolute path"),
        ({"shared": "maybe"}, "shared is 'maybe'; it must be one of yes, no, any"),
        ({"shared": "yes"}, "no folder is given"),
        ({"size_bytes": 4096}, "size_bytes is 4096"),
        ({"size_bytes": 2**20 + 1}, "multiple of 4096"),
        ({"appends": 0}, "appends is 0"),
        ({"min_write_gbps": 0}, "min_write_gbps is 0; a limit must be above 0"),
        ({"max_fsync_ms": -1}, "max_fsync_ms is -1"),
    ],
)
def test_invalid_values_are_refused(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Params(**params)


@pytest.mark.parametrize(
    "key", ["x/api", "CUDA error: out of memory", "", "0123456789abcdeF", "0123456789abcdef\n", ["0" * 16], None]
)
def test_a_key_that_is_no_key_reaches_no_file(tmp_path: Path, key: object) -> None:
    """It comes from another rank, and is a part of the names of files that are written and removed."""
    (tmp_path / "seatrial-storage-x").mkdir()
    theirs = tmp_path / "seatrial-storage-x" / "api-0.token"
    theirs.write_text("not ours")
    context = FakeContext(check="storage", rank=1, ranks=(0, 1), given={"storage/key": key})
    for stage in ("token", "view", "measure", "repeat"):
        context.stage = stage
        with pytest.raises(MeetingError, match=r"^rank 0 shared no key of 16 hexadecimal digits"):
            CHECK.measure(context, Params(folder=str(tmp_path)))
    assert [path.name for path in tmp_path.rglob("*")] == ["seatrial-storage-x", "api-0.token"]


def test_a_link_in_place_of_a_token_stays(tmp_path: Path) -> None:
    theirs = Path(tokens.file_path(str(tmp_path), "0" * 16, 0, "token"))
    theirs.symlink_to("elsewhere")
    tokens.Token(str(tmp_path), "0" * 16, 0).remove()
    assert theirs.is_symlink()
