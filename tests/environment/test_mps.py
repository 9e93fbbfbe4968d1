"""Where ranks look for the control daemon of MPS: not where a neighbor listens who answers nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatrial.environment.mps import mps_settings

_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in which somebody listens, by sockets of the kind that CUDA connects to."""
    (folder := tmp_path / "nvidia-mps").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.bind(str(folder / "control"))
        yield folder


def test_where_nobody_listens_a_rank_looks_where_nobody_can(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        place = mps_settings({}, str(folder))[_VARIABLE]
        with pytest.raises(OSError, match=r"No such file|denied"):
            os.mkdir(f"{place}/control")


def test_a_daemon_of_root_or_of_this_user_is_used(folder: Path) -> None:
    assert mps_settings({}, str(folder)) == {}


def test_the_folder_that_the_user_names_stays(tmp_path: Path) -> None:
    assert mps_settings({_VARIABLE: "/run/mps"}, str(tmp_path)) == {}


@pytest.mark.root
@pytest.mark.parametrize("of", ["control", "."])
def test_a_neighbor_who_listens_is_not_asked(folder: Path, of: str) -> None:
    os.chown(folder / of, 65534, 65534)
    assert mps_settings({}, str(folder)) == {_VARIABLE: "/proc"}
    (link := folder.parent / "link").symlink_to(folder)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    os.chown(folder / of, 0, 0)
    assert mps_settings({}, str(link)) == {_VARIABLE: "/proc"}


@pytest.mark.parametrize(("mode", "is_used"), [(0o777, False), (0o775, False), (0o1777, True), (0o711, True)])
def test_a_socket_that_a_neighbor_can_exchange_is_not_asked(mode: int, is_used: bool, folder: Path) -> None:
    """Many guides open root's folder to all (chmod 777): a neighbor renames root's socket and listens there himself."""
    folder.chmod(mode)
    assert mps_settings({}, str(folder)) == ({} if is_used else {_VARIABLE: "/proc"})
    assert mps_settings({_VARIABLE: str(folder)}, str(folder)) == {}
    (folder / "control").chmod(0o666)
    assert mps_settings({}, str(folder)) == ({} if is_used else {_VARIABLE: "/proc"})


def test_a_folder_above_that_others_can_change_is_not_trusted(folder: Path) -> None:
    folder.parent.chmod(0o777)
    assert mps_settings({}, str(folder)) == {_VARIABLE: "/proc"}
