"""A neighbor's link among checkpoints or data: nothing it leads to is opened but a regular file, and nobody waits."""

from __future__ import annotations

import gzip
import os
import pty
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from neighbor_mount import NEIGHBOR, mounted, mounted_and_unasked

from seatrial import files, start
from seatrial.errors import RequestError
from seatrial.report import recorded_events
from seatrial.run.handed_files import read_evidence
from seatrial.training.checkpoint import CheckpointFolder
from seatrial.training.data import dataset_files, find_workload, idx
from seatrial.training.data.data_file import open_data_file
from seatrial.training.data.datasets import DATASETS
from seatrial.training.data.fetch import fetch
from seatrial.training.data.transfer import size_of

_SAYS = f"is on a file system of user {NEIGHBOR}, who decides what it shows"
_LINK = f"step-999999999999.{'ab' * 32}.pt"
_READ: dict[str, Callable[[Path], Any]] = {
    "a file": files.open_to_read,
    "a file that is no link": lambda path: files.open_to_read(path, follows_links=False),
    "a file in the folder of a run": lambda path: files.open_to_read(path, run_folder=True),
    "a file that a person named": lambda path: files.read_input(path, 10),
    "a trusted file": lambda path: files.read_trusted(path, 10),
    "a part of the bundle": lambda path: start._read(str(path)),
    "data": lambda path: open_data_file(path).__enter__(),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "shared").mkdir()
    return folder


@pytest.fixture
def terminal() -> Iterator[str]:
    controller, terminal = pty.openpty()
    yield os.ttyname(terminal)
    os.close(terminal)
    os.close(controller)


@pytest.mark.parametrize("read", _READ)
def test_no_terminal_is_opened(read: str, folder: Path, terminal: str) -> None:
    """A session leader without a terminal, such as a rank, would get it as its own: its owner could end the rank."""
    (link := folder / _LINK).symlink_to(terminal)
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.alarm(10)
        try:
            _READ[read](link)
        except (OSError, RequestError, SystemExit):
            fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
            os._exit(int(fields[4]) != 0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_session_gets_no_terminal_from_what_is_read_all_the_same(folder: Path, terminal: str) -> None:
    """It takes the place of the file once that was looked at: the descriptor leads to the file, whatever its name."""
    code = (
        "import os, sys; from seatrial import start; os.setsid(); path, terminal = sys.argv[1:]\n"
        "fd = os.open(terminal, os.O_PATH); os.close(start.open_again(fd, os.O_RDONLY))\n"
        "print(open('/proc/self/stat').read().rpartition(')')[2].split()[4])"
    )
    words = [sys.executable, "-c", code, str(folder), terminal]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "0\n"


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/tty", "/dev/kmsg"])
def test_no_device_is_read(target: str, folder: Path) -> None:
    (link := folder / "x").symlink_to(target)
    with pytest.raises(OSError, match="x is a device and no regular file"):
        files.open_to_read(link)
    with pytest.raises(OSError, match="x is a device"):
        files.read_input(link, 10)


@pytest.mark.parametrize("target", ["/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"])
def test_no_file_of_the_kernel_is_read(target: str, folder: Path) -> None:
    """It is a regular one by its mode, and whoever reads /proc/kmsg waits for ever."""
    if not os.path.exists(target):
        pytest.skip(f"no {target} here")
    (link := folder / "x").symlink_to(target)
    with pytest.raises(OSError, match=r"x is a file of the kernel \((proc|sysfs)\)"):
        files.open_to_read(link)
    with pytest.raises(OSError, match="x is a file of the kernel"):
        files.read_input(link, 10)


def test_a_pipe_that_a_shell_hands_over_is_read() -> None:
    for name in ("/dev/fd", "/proc/self/fd"):
        ours, theirs = os.pipe()
        os.write(theirs, b"node1\n")
        os.close(theirs)
        assert files.read_input(f"{name}/{ours}", 100) == b"node1\n"
        os.close(ours)


def test_links_of_data_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To another disk, by a relative name, up, and to the folder itself."""
    (disk := tmp_path / "disk" / "raw").mkdir(parents=True)
    (data := tmp_path / "data").mkdir()
    for download in DATASETS["mnist"].downloads:
        (disk / download.name).write_bytes(gzip.compress(struct.pack(">I", 2049)))
    for target in ("../disk/raw", disk, "."):
        (data / "mnist").symlink_to(target)
        if target == ".":
            for file in disk.iterdir():
                (data / file.name).symlink_to(file)
        monkeypatch.chdir(tmp_path)
        for typed in (data, Path("data"), Path("disk/../data")):
            assert dataset_files.find("mnist", typed) == tuple(
                typed / "mnist" / download.name for download in DATASETS["mnist"].downloads
            )
        with open_data_file(Path("data/mnist") / DATASETS["mnist"].downloads[0].name, Path("data")) as data_file:
            assert data_file.read(4, "it") == struct.pack(">I", 2049)
        (data / "mnist").unlink()


def _checkpoint_of(folder: Path) -> tuple[Path, list[str]]:
    notes: list[str] = []
    with CheckpointFolder(folder, keep=2, note=notes.append) as checkpoints:
        return checkpoints.save(3, {"x": 1}), notes


def _newest(folder: Path) -> tuple[tuple[int, dict[str, Any]] | None, list[str]]:
    notes: list[str] = []
    with CheckpointFolder(folder, keep=2, note=notes.append) as checkpoints:
        return checkpoints.newest(), notes


def test_a_terminal_among_checkpoints_is_skipped(folder: Path, terminal: str) -> None:
    _checkpoint_of(folder)
    (planted := folder / _LINK).symlink_to(terminal)
    found, notes = _newest(folder)
    assert found == (3, {"x": 1})
    assert [note.split(";")[0] for note in notes] == [
        f"{planted} cannot be read: {_LINK} is a device and no regular file"
    ]


@pytest.mark.root
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_system_of_a_neighbor_among_checkpoints_is_skipped(is_link: bool, folder: Path, tmp_path: Path) -> None:
    _checkpoint_of(folder)
    planted, theirs = folder / _LINK, tmp_path / "theirs"
    if is_link:
        theirs.mkdir()
        planted.symlink_to(theirs / "x")
    else:
        planted.write_text("")
    with mounted_and_unasked(theirs if is_link else planted):
        found, notes = _newest(folder)
    assert found == (3, {"x": 1})
    where = theirs if is_link else planted
    assert notes == [f"{planted} cannot be read: {where} {_SAYS}. It is skipped."]


@pytest.mark.root
@pytest.mark.parametrize("is_whole_folder", [False, True])
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_data_on_a_file_system_of_a_neighbor(name: str, is_whole_folder: bool, folder: Path, tmp_path: Path) -> None:
    (theirs := tmp_path / "theirs").mkdir()
    if is_whole_folder:
        (folder / name).symlink_to(theirs)
    else:
        (folder / name).mkdir()
        for download in DATASETS[name].downloads:
            (folder / name / download.name).symlink_to(theirs / "x")
    first = folder / name / DATASETS[name].downloads[0].name
    with mounted_and_unasked(theirs):
        assert dataset_files.find(name, folder)
        with pytest.raises(RequestError, match=rf"{first} .* is not usable: it cannot be read \({theirs} {_SAYS}\)"):
            find_workload(name, num_samples=1, data_dir=folder)
        if not is_whole_folder:
            assert size_of(first) is None, "it is fetched, and takes the place of the link"
    if is_whole_folder:
        with mounted_and_unasked(theirs), pytest.raises(Exception, match=f"{theirs} {_SAYS}"):
            fetch(DATASETS[name], folder, print_status=print, on_bytes=lambda *_: None)


@pytest.mark.root
def test_a_file_that_a_neighbor_has_mounted_in_place(folder: Path) -> None:
    (file := folder / "node0.events").write_text("")
    with mounted_and_unasked(file):
        assert recorded_events.event_files(folder) == {}
        for read in _READ.values():
            with pytest.raises((OSError, RequestError, SystemExit)):
                read(file)
        with pytest.raises(OSError, match=_SAYS):
            files.status_of_entry(file)
        assert files.has_entry(file)
        for read_by_name in (lambda: recorded_events.read_events((file,)), lambda: read_evidence((str(file),))):
            with pytest.raises(RequestError, match=_SAYS):
                read_by_name()


@pytest.mark.root
def test_a_folder_that_the_user_names_may_be_a_neighbors_file_system(folder: Path, tmp_path: Path) -> None:
    (link := tmp_path / "link").symlink_to(folder)
    with mounted(folder, shown_owner=NEIGHBOR, name="train"):
        for named in (folder, link):
            assert files.status_behind_links(named / "train").st_uid == NEIGHBOR
            with pytest.raises(RequestError, match="at byte 0: it begins with"):
                idx.read_sizes(named / "train", 1, named)
    (tmp_path / "data").symlink_to(folder / "train")
    with mounted(folder, shown_owner=NEIGHBOR, name="train"), pytest.raises(OSError, match=_SAYS):
        files.open_to_read(tmp_path / "data")
