"""Folders of the storage check that another user of the machine may have exchanged: no node is named for them."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from checks.fake_context import FakeContext
from checks.test_check_storage import MIB, facts, go_on, judge, small, trial
from checks.test_storage_judge import NAMED, fact, failed, faults, fleet
from neighbor_mount import mounted_and_unasked

from seatrial import files
from seatrial.checks.storage import CHECK, data_file, tokens
from seatrial.checks.storage.params import Params
from seatrial.folders import may_be_exchanged


def _closed(folder: Path) -> tuple[Params, list[FakeContext]]:
    """Return the ranks of a trial that met no folder, which is there again."""
    params = replace(small(folder, shared="yes"), size_bytes=MIB)
    contexts = trial([params] * 3, ["key"])
    folder.rename(away := folder.with_name("away"))
    go_on(contexts, params, ["token"])
    away.rename(folder)
    go_on(contexts, params, ["view", "measure"])
    return params, contexts


@pytest.mark.parametrize(("mode", "is_open"), [(0o755, False), (0o1777, True), (0o775, True)])
def test_a_folder_that_others_can_rename_names_no_node(tmp_path: Path, mode: int, *, is_open: bool) -> None:
    (folder := tmp_path / "open" / "folder").mkdir(parents=True)
    folder.parent.chmod(mode)
    params, contexts = _closed(folder)
    assert [{*facts(context, "exchanged")} for context in contexts] == [{str(folder)} if is_open else set()] * 3
    (finding,) = [finding for finding in judge(contexts, params).findings if finding.severity == "fail"]
    assert finding.what == f"{folder} on nodes n0, n1, n2 cannot be written to: No such file or directory"
    if is_open:
        assert finding.culprit.kind == "none"
        assert finding.culprit.name == f"the file system at {folder}, which another user may have exchanged"


@pytest.mark.parametrize(("mode", "is_open"), [(0o755, False), (0o775, True)])
def test_a_folder_that_others_put_in_its_place_names_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, *, is_open: bool
) -> None:
    """It can be opened, and takes no files; a rank may meet it at any stage."""
    (folder := tmp_path / "open" / "folder").mkdir(parents=True)
    folder.parent.chmod(mode)

    def closed(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    for module, name in ((files, "create"), (tokens, "visible_ranks"), (data_file, "append")):
        params = replace(small(folder, shared="yes"), size_bytes=MIB)
        with monkeypatch.context() as patched:
            patched.setattr(module, name, closed)
            contexts = trial([params] * 2)
        assert {path for context in contexts for path in facts(context, "exchanged")} == (
            {str(folder)} if is_open else set()
        )
        kinds = {finding.culprit.kind for finding in judge(contexts, params).findings if finding.severity == "fail"}
        assert not is_open or kinds == {"none"}


def test_a_folder_that_others_can_exchange_is_told_and_names_no_node(tmp_path: Path) -> None:
    """Also where there was no error: they may have led to another file system meanwhile."""
    (folder := tmp_path / "open" / "folder").mkdir(parents=True)
    for mode, is_open in ((0o755, False), (0o1777, False), (0o775, True)):
        folder.parent.chmod(mode)
        params = replace(small(folder, shared="yes"), size_bytes=MIB, min_write_gbps=1e6)
        ruling = judge(trial([params] * 2), params)
        remarks = [finding.what for finding in ruling.findings if finding.severity == "info"]
        exchanged = f"another user can exchange {folder} on nodes n0, n1: what was measured may be another folder"
        assert remarks == [exchanged] * is_open
        assert {finding.culprit.kind for finding in ruling.findings if finding.severity == "fail"} == {"none"}


def test_memory_to_which_another_user_may_have_led_passes_no_limit() -> None:
    params = replace(NAMED, min_write_gbps=0.5)
    for more, is_absent in (((), False), ((fact("exchanged", 1, "/ckpt"),), True)):
        whole = fleet([[1.0]] * 2, own=[0, 1], in_memory=True, kinds={0: "tmpfs", 1: "tmpfs"})
        ruling = CHECK.judge(replace(whole, facts=(*whole.facts, *more)), params)
        assert ("write_gbps of n1 on its storage: the folder is in memory there" in ruling.absent) == is_absent


def test_a_folder_without_room_that_may_have_been_exchanged() -> None:
    whole = fleet([[1.0]] * 2, own=[0, 1])
    short = tuple(
        replace(entry, value=1.0) if entry.name == "free_bytes" and entry.rank == 1 else entry
        for entry in whole.measurements
    )
    for more, kind in (((), "node"), ((fact("exchanged", 1, "/ckpt"),), "none")):
        ruling = CHECK.judge(replace(whole, measurements=short, facts=(*whole.facts, *more)), NAMED)
        assert [culprit for culprit, _ in failed(ruling)] == [kind]


def test_an_error_of_a_file_system_that_was_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of another user answers as that one likes."""
    (folder := tmp_path / "folder").mkdir()
    folder.chmod(0o775)

    def faulty(path: str) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(tokens, "open_named_folder", faulty)
    (context,) = trial([replace(small(folder), size_bytes=MIB)])
    assert facts(context, "exchanged") == [str(folder)]


def test_an_error_of_a_disk_is_no_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    tmp_path.chmod(0o775)
    monkeypatch.setattr(data_file, "append", faulty)
    (context,) = trial([replace(small(tmp_path), size_bytes=MIB)])
    assert facts(context, "exchanged") == []
    assert [value["code"] for value in facts(context, "trouble")] == ["EIO"]


@pytest.mark.parametrize("shared", ["yes", "no", "any"])
def test_what_another_user_may_have_exchanged_is_no_fault_of_a_node(shared: str) -> None:
    """Whatever the user says of other nodes."""
    views = {rank: [[rank, rank]] for rank in range(2)} if shared == "no" else None
    whole, params = fleet([[1.0]] * 2, views=views, own=[0, 1]), replace(NAMED, shared=shared)
    for met in faults(1, "ENOENT").values():
        for more, kind in (((), "node"), ((fact("exchanged", 1, "/ckpt"),), "none")):
            ruling = CHECK.judge(replace(whole, facts=(*whole.facts, *met, *more)), params)
            assert [culprit for culprit, _ in failed(ruling)] == [kind]


def test_a_slow_file_system_of_another_user_names_no_node() -> None:
    slow = fleet([[1.0]] * 5 + [[0.5]] + [[1.0]] * 2, again={0: 1.5, 1: 1.5, 5: 0.6})
    for more, kind in (
        ((), "node"),
        ((fact("exchanged", 5, "/ckpt"),), "none"),
        ((fact("exchanged", 5, "/tmp"),), "node"),  # it was never used
    ):
        ruling = CHECK.judge(replace(slow, facts=(*slow.facts, *more)), NAMED)
        assert [culprit for culprit, _ in failed(ruling)] == [kind]


def test_files_of_others_where_another_user_may_have_put_them() -> None:
    """The user has said that each node has a folder of its own."""
    params = replace(NAMED, shared="no")
    views = {0: [[0, 1]], 1: [[0, 1]], 2: [[2, 2]]}
    for exchanged, named in (((), [("node", ("n0", "n1"))]), ((1,), [("node", ("n0",))]), ((0, 1), [("none", ())])):
        whole = fleet([[1.0]] * 3, views=views)
        more = tuple(fact("exchanged", rank, "/ckpt") for rank in exchanged)
        assert failed(CHECK.judge(replace(whole, facts=(*whole.facts, *more)), params)) == named


@pytest.mark.root
def test_a_file_system_that_was_there_for_a_moment_names_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_early(path: str) -> int:
        with mounted_and_unasked(Path(path)):
            return os.open(path, os.O_PATH | os.O_DIRECTORY)

    monkeypatch.setattr(tokens, "open_named_folder", too_early)
    params = replace(small(tmp_path, shared="yes"), size_bytes=MIB)
    contexts = trial([params] * 2, ["key", "token", "view", "measure"])
    assert facts(contexts[0], "exchanged") == [str(tmp_path)]
    (finding,) = [finding for finding in judge(contexts, params).findings if finding.severity == "fail"]
    assert (finding.culprit.kind, finding.measured) == ("none", "ENOTCONN")


@pytest.mark.parametrize(
    ("mode", "name", "is_open"),
    [
        (0o755, "", False),
        (0o775, "", True),
        (0o1777, "", False),
        (0o1777, "missing", True),
        (0o775, "missing", True),
        (0o775, "missing/below", True),
        (0o755, "missing/below", False),
        (0o775, "link", True),
        (0o755, "file/below", False),
        (0o1777, "file/below", False),
        (0o755, "link", False),
    ],
)
def test_who_can_make_names_in_a_folder_can_exchange_them(
    tmp_path: Path, mode: int, name: str, *, is_open: bool
) -> None:
    (folder := tmp_path / "folder").mkdir()
    (folder / "link").symlink_to(tmp_path)
    (folder / "file").touch()
    folder.chmod(mode)
    assert may_be_exchanged(folder / name) is is_open


def test_the_way_of_the_kernel_counts_behind_a_link(tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/missing")
    assert not may_be_exchanged(tmp_path / "link")
    folder.chmod(0o775)
    assert may_be_exchanged(tmp_path / "link")


@pytest.mark.root
def test_a_folder_or_a_link_of_another_user_can_be_exchanged(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert not may_be_exchanged(tmp_path / "link/missing")
    os.chown(tmp_path / "link", 10001, 10001, follow_symlinks=False)
    assert may_be_exchanged(tmp_path / "link/missing")
