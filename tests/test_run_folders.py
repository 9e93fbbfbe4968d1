"""The folder of a run is ours, and what lies in it is open to no more users than the umask leaves."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from seatrial import files, folders, start
from seatrial.errors import SeatrialError
from seatrial.judge.conclude import conclude
from seatrial.report.write import write_reports
from seatrial.run.rank_logs import RankLogs
from seatrial.run.record import new_folder
from seatrial.training.checkpoint import CheckpointFolder
from seatrial.training.data.datasets import DataSet, Download
from seatrial.training.data.fetch import fetch
from seatrial.training.profile import StepProfile
from seatrial.util.disk_writer import DiskWriter
from seatrial.worker.train_log import EpochLog

_NEIGHBOR = 12345
_DEFAULT = "system.posix_acl_default"
_USES: dict[str, Callable[[Path], Any]] = {
    "create": lambda path: files.create(path, run_folder=True),
    "append": lambda path: files.open_to_append(path, run_folder=True),
    "overwrite": lambda path: files.open_to_overwrite(path, run_folder=True),
    "read": lambda path: files.open_to_read(path, run_folder=True),
    "replace": lambda path: files.write_atomically(path, b"", run_folder=True),
    "remove": lambda path: files.remove(path, run_folder=True),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "run").mkdir()
    return folder


@pytest.fixture
def theirs(folder: Path) -> Path:
    """A folder of a neighbor, who has left nothing else to refuse in it."""
    (folder / "file").write_text("")
    os.chown(folder, _NEIGHBOR, _NEIGHBOR)
    return folder


@pytest.fixture(params=[0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _give_all(folder: Path) -> None:
    """Give a folder the access control list by which a user, the group and all others may do all with new files."""
    entries = ((0x01, -1), (0x02, _NEIGHBOR), (0x04, -1), (0x10, -1), (0x20, -1))
    packed = b"".join(struct.pack("<HHI", tag, 7, user & 0xFFFFFFFF) for tag, user in entries)
    try:
        os.setxattr(folder, _DEFAULT, struct.pack("<I", 2) + packed)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")


@pytest.mark.root
@pytest.mark.parametrize("use", _USES)
def test_the_folder_of_another_user_is_refused(use: str, theirs: Path) -> None:
    with pytest.raises(OSError, match=f"run is a folder of user {_NEIGHBOR}; remove it or name another place"):
        _USES[use](theirs / "file")
    assert [file.name for file in theirs.iterdir()] == ["file"]


@pytest.mark.root
def test_a_share_that_shows_all_users_as_one(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "owner_of_new_files", lambda fd: _NEIGHBOR)
    files.open_to_append(theirs / "new", run_folder=True).close()
    assert start._read(str(theirs / "file")) == b""


@pytest.mark.root
def test_the_report_is_written_into_no_folder_of_another_user(tmp_path: Path) -> None:
    (run := tmp_path / "unknown-run").mkdir()
    os.chown(run, _NEIGHBOR, _NEIGHBOR)
    with pytest.raises(Exception, match=f"unknown-run is a folder of user {_NEIGHBOR}"):
        write_reports(conclude([]), tmp_path)


@pytest.mark.root
def test_the_output_of_a_rank_goes_elsewhere(theirs: Path) -> None:
    """The agent sends it then."""
    disk = DiskWriter()
    file = disk.open(str(theirs / "rank0.gen0.log"), lambda gap_bytes: b"", returns=True)
    disk.write(file, b"secret")
    assert disk.end(float("inf"))
    assert (file.is_refused, disk.take_back(file)) == (True, b"secret")
    assert f"a folder of user {_NEIGHBOR}" in file.error


def _sent(piece: bytes) -> Any:
    data = base64.b64encode(zlib.compress(piece)).decode()
    return {"kind": "log", "rank": 0, "gen": 0, "at": 0, "data": data, "last": True}


@pytest.mark.root
def test_what_the_controller_cannot_keep_is_said(theirs: Path) -> None:
    logs = RankLogs(theirs, 1)
    logs.take(_sent(b"secret"))
    logs.close()
    assert logs.notes()[0].startswith("rank 0: 6 bytes of its output could not be kept")


@pytest.mark.root
def test_a_file_that_a_neighbor_put_there_has_no_output(folder: Path) -> None:
    (log := folder / "rank0.gen0.log").write_text("")
    os.chown(log, _NEIGHBOR, _NEIGHBOR)
    logs = RankLogs(folder, 1)
    logs.take(_sent(b"output"))
    logs.close()
    assert logs.notes()[0].startswith("rank 0: 6 bytes of its output could not be kept")


@pytest.mark.root
def test_a_bundle_in_the_folder_of_another_user_starts(theirs: Path) -> None:
    """The user of the controller may have another number than that of the agent; the SHA-256 decides."""
    (part := theirs / "seatrial.pyz").write_bytes(content := b"print('started')")
    command = [sys.executable, start.__file__, hashlib.sha256(content).hexdigest(), "-", str(part), "--"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")
    part.write_bytes(b"print('other')")
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert {file.name for file in theirs.iterdir()} == {"file", "seatrial.pyz"}


@pytest.mark.parametrize("refused", ["stat", "unlink"])
def test_a_share_without_files_that_have_no_name(refused: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file servers forget a file that is open once it is removed, and some remove none that is open."""
    real_stat, real_unlink, removed = os.fstat, os.unlink, list[str]()

    def unlink(name: str, *, dir_fd: int) -> None:
        removed.append(name)
        if refused == "unlink":
            raise OSError(errno.EBUSY, "busy")
        real_unlink(name, dir_fd=dir_fd)

    def fstat(fd: int) -> os.stat_result:
        if removed:
            raise OSError(errno.ESTALE, "stale")
        return real_stat(fd)

    fd = os.open(folder, os.O_PATH)
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", unlink)
        patched.setattr(os, "fstat", fstat)
        owner = start.owner_of_new_files(fd)
    os.close(fd)
    assert owner == os.geteuid()
    assert len([*folder.iterdir()]) == (refused == "unlink")


@pytest.mark.parametrize("use", ["create", "append", "overwrite", "replace"])
def test_no_list_gives_others_more_than_the_umask(use: str, umask: int, folder: Path) -> None:
    """A default access control list replaces the umask; where the kernel shows one, the group bits are its limit."""
    _give_all(folder)
    made = _USES[use](folder / "file")
    if made is not None:
        made.close()
    assert stat.S_IMODE((folder / "file").stat().st_mode) == 0o666 & ~umask


_MAKERS: dict[str, Callable[[Path], Any]] = {
    "checkpoints": lambda path: CheckpointFolder(path).newest(),
    "log": lambda path: EpochLog(path / "log", None, continued=False).close(),
    "out": new_folder,
    "profile": lambda path: StepProfile(path / "trace", torch.device("cpu")).stop(),
    "reports": lambda path: write_reports(conclude([]), path),
}


@pytest.mark.parametrize("maker", _MAKERS)
def test_no_list_opens_a_folder_that_is_made(maker: str, umask: int, folder: Path) -> None:
    _give_all(folder)
    _MAKERS[maker](folder / "above" / "below")
    for made in (folder / "above", folder / "above" / "below"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o777 & ~umask
        (made / "of another program").mkdir()
        assert stat.S_IMODE((made / "of another program").stat().st_mode) == 0o777 & ~umask


@pytest.mark.parametrize("umask", [0o077], indirect=True)
def test_no_list_opens_the_folder_of_data(umask: int, folder: Path) -> None:
    _give_all(folder)
    dataset = DataSet(name="made", downloads=(Download(name="a", size_bytes=1, sha256=""),), mirrors=())
    with pytest.raises(SeatrialError, match="there is no mirror"):
        fetch(dataset, folder / "data", print_status=lambda text: None, on_bytes=lambda download, size_bytes: None)
    for made in (folder / "data", folder / "data" / "made"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o777 & ~umask


def test_folders_that_exist_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    folders.make_folders(tmp_path / "link" / "a" / ".." / "b")
    folders.make_folders(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "file", "link"]
    for below in ("file", "file/below"):
        with pytest.raises(NotADirectoryError):
            folders.make_folders(tmp_path / below)


def test_no_list_opens_the_folder_of_a_run(umask: int, tmp_path: Path) -> None:
    _give_all(tmp_path)
    _, folder = new_folder(tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~umask
    # As that of a Slurm job makes its log.
    subprocess.run(["sh", "-c", "exec > slurm.log; mkdir below; exec > below/file"], cwd=folder, timeout=20, check=True)
    files_made = [folder / "slurm.log", folder / "below" / "file"]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files_made] == [0o666 & ~umask] * 2
    assert _DEFAULT in os.listxattr(folder)
    written = write_reports(conclude([]), tmp_path)
    assert stat.S_IMODE(written.folder.stat().st_mode) == 0o777 & ~umask
    assert (
        stat.S_IMODE(written.document.stat().st_mode) == stat.S_IMODE(written.latest.stat().st_mode) == 0o666 & ~umask
    )
