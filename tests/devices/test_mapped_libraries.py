"""Which libnccl or librccl the processes of a node have mapped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seatrial.devices.node_state import mapped_libraries


def test_each_library_is_listed_once(tmp_path: Path) -> None:
    first = "7f00-7f10 r-xp 00000000 08:01 1 /opt/my env/lib/libnccl.so.2\n7f10-7f20 rw-p 00000000 00:00 0 [heap]\n"
    second = "7f00-7f10 r-xp 00000000 08:01 2 /opt/rocm/lib/librccl.so.1.0\n7f20-7f30 r-xp 0 08:01 3 /lib/libc.so.6\n"
    for pid, maps in (
        ("10", first),
        ("11", first + second),
        ("12", None),
        ("self", "7f-8f r-xp 0 08:01 1 /x/libnccl.so.9\n"),
    ):
        (tmp_path / pid).mkdir()
        if maps is not None:  # 12 is somebody else's, or has just ended
            (tmp_path / pid / "maps").write_text(maps)
    assert mapped_libraries(tmp_path) == ("/opt/my env/lib/libnccl.so.2", "/opt/rocm/lib/librccl.so.1.0")
    assert mapped_libraries(tmp_path / "none") == ()


@pytest.mark.root
def test_a_file_that_another_user_has_mapped_is_no_library_of_ours(tmp_path: Path) -> None:
    """Root may look at the processes of all users, and these choose what they map, and how often."""
    for pid, library, user in (
        ("10", "/opt/libnccl.so.2", 0),
        ("11", "/tmp/sentence of a neighbor/libnccl.so.2", 65534),
    ):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "maps").write_text(f"7f00-7f10 r-xp 00000000 08:01 1 {library}\n")
        os.chown(tmp_path / pid, user, user)
    assert mapped_libraries(tmp_path) == ("/opt/libnccl.so.2",)


def test_of_endless_mappings_the_first_ones_are_read(tmp_path: Path) -> None:
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "maps").write_text(
        "7f00-7f10 r-xp 0 08:01 1 /lib/libc.so.6\n" * 200_000 + "7f r-xp /libnccl.so.2\n"
    )
    assert mapped_libraries(tmp_path) == ()
