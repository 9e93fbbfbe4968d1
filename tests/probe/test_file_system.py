"""The file system of a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seatrial import start
from seatrial.probe.file_system import file_system, own_places
from seatrial.probe.mounts import mounts

TABLE = """\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
30 20 0:40 / {folder} rw,relatime shared:5 - nfs4 server:/export rw
31 30 0:41 / {folder}/inner\\040room rw - xfs /dev/sdb rw
32 20 0:42 / {folder}-other rw - tmpfs tmpfs rw
33 31 0:43 / {folder}/inner\\040room rw - tmpfs tmpfs rw
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "mountinfo").write_text(TABLE.format(folder=tmp_path / "data"))
    for name in ("data/deep", "data/inner room/x", "data-other"):
        (tmp_path / name).mkdir(parents=True)
    return proc


@pytest.mark.parametrize(
    ("name", "kind", "in_memory"),
    [
        ("", "ext4", False),
        ("data/deep", "nfs4", False),
        ("data/inner room/x", "tmpfs", True),
        ("data-other", "tmpfs", True),
    ],
)
def test_the_innermost_mount_counts_and_of_two_at_one_place_the_later(
    table: Path, name: str, kind: str, in_memory: bool
) -> None:
    found = file_system(str(table.parent / name), table)
    assert (found.kind, found.in_memory) == (kind, in_memory)


def test_a_link_leads_to_where_the_files_are(table: Path) -> None:
    (table.parent / "link").symlink_to(table.parent / "data")
    assert file_system(str(table.parent / "link"), table).kind == "nfs4"


def test_free_space_is_that_of_the_folder(tmp_path: Path) -> None:
    found = file_system(str(tmp_path))
    assert found.kind != ""
    assert found.free_bytes == pytest.approx(os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize, rel=0.2)
    assert found.free_inodes is None or found.free_inodes > 0


def test_without_a_mount_table_the_kind_is_not_known(tmp_path: Path) -> None:
    assert file_system(str(tmp_path), tmp_path / "nowhere").kind == ""


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_system(str(tmp_path / "nowhere"))


@pytest.fixture
def machine(table: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with the table above, on which the folder ``data`` and what is in it count as mounts."""
    numbers = {"data": "30", "inner room": "33", "data-other": "32"}

    def mount_of(fd: int) -> str:
        names = Path(os.readlink(f"/proc/self/fd/{fd}")).parts
        return next((number for name, number in reversed(numbers.items()) if name in names), "20")

    monkeypatch.setattr("seatrial.probe.file_system.mount_of", mount_of)
    (table / "sys/kernel/random").mkdir(parents=True)
    (table / "sys/kernel/random/boot_id").write_text("0123\n")
    return table.parent


@pytest.mark.parametrize(
    ("names", "own"),
    [
        (["data-other/x"], ["", "data-other"]),
        (["none", "deep/none"], [""]),
        (["data-other/file"], ["", "data-other", "data-other/file"]),
        (["data/deep"], None),
        (["data/inner room/x"], None),  # the server of the folder above says what is below this name
        (["none", "data/none"], None),
        (["data-other/to-data/deep"], None),
        (["data-other/to-data/to-other"], None),
        (["data-other/loop"], None),
    ],
)
def test_places_of_this_machine_are_known_by_the_ways(machine: Path, names: list[str], own: list[str] | None) -> None:
    """Who can write to a shared folder can put a link to a folder of the machine there."""
    (machine / "data-other/to-data").symlink_to("../data")
    (machine / "data-other/loop").symlink_to("loop")
    (machine / "data/to-other").symlink_to("../data-other")
    (machine / "data-other/file").write_bytes(b"")
    for name in own or ():
        (machine / name).chmod(0o777)
    numbers = own and [str((machine / name).stat().st_ino) for name in own]
    found = own_places([machine / name for name in names], machine)
    assert (found is None) == (own is None)
    if found is not None:
        assert {place.split()[2] for place in found} >= set(numbers or ())
        assert {tuple(place.split()[:2]) for place in found} <= {("0123", "8:1"), ("0123", "0:42")}


@pytest.mark.parametrize(
    ("kind", "point", "source", "own"),
    [
        ("ext4", "/", "/dev/vda", True),
        ("ext4", "/data", "/dev/loop3", False),  # an image on a disk that machines share
        ("btrfs", "/data", "/dev/loop3", False),
        ("xfs", "/data", "/dev/dm-1", False),  # encrypted, or a volume of LVM, on such an image
        ("xfs", "/data", "/dev/dm-0", True),
        ("ext4", "/data", "/dev/rbd0", False),
        ("zfs", "/data", "pool/data", True),
        ("overlay", "/data", "overlay", False),  # what it shows may lie on a shared disk
        ("overlay", "/", "overlay", True),
        ("tmpfs", "/data", "tmpfs", True),
        ("nfs4", "/", "server:/root", False),
    ],
)
def test_a_file_system_is_of_one_machine_if_its_blocks_are(
    kind: str, point: str, source: str, own: bool, machine: Path
) -> None:
    numbers = {
        "/dev/vda": "254:0",
        "/dev/loop3": "7:3",
        "/dev/dm-0": "253:0",
        "/dev/dm-1": "253:1",
        "/dev/rbd0": "252:0",
    }
    number = numbers[source] if kind in ("ext4", "xfs") else "0:50"
    table = f"20 1 {number} / {point} rw - {kind} {source} rw\n"
    (machine / "proc/self/mountinfo").write_text(table)
    blocks = machine / "sys/class/block"
    for name, parts in {
        "vda": (),
        "loop3": (),
        "rbd0": (),
        "dm-0": ("vda",),
        "dm-1": ("dm-2",),
        "dm-2": ("loop3",),
    }.items():
        (blocks / name / "slaves").mkdir(parents=True)
        for part in parts:
            (blocks / name / "slaves" / part).mkdir()
    (machine / "sys/dev/block").mkdir(parents=True)
    for name, of in numbers.items():
        (machine / "sys/dev/block" / of).symlink_to(blocks / name.removeprefix("/dev/"))
    assert (own_places([machine / "none"], machine) is not None) == own


@pytest.mark.root
def test_what_root_alone_can_change_is_no_place_of_others(machine: Path) -> None:
    before = own_places([machine / "none"], machine)
    (machine / "deep").mkdir(mode=0o755)
    assert own_places([machine / "deep"], machine) == before
    for mode, owner in ((0o775, 0), (0o755, 65534)):
        (machine / "deep").chmod(mode)
        os.chown(machine / "deep", owner, owner)
        assert len(own_places([machine / "deep"], machine) or ()) == len(before or ()) + 1


def test_a_way_of_very_many_places_tells_nothing(machine: Path) -> None:
    for number in range(101):
        (machine / f"link{number}").symlink_to("none")
    links = [machine / f"link{number}" for number in range(101)]
    assert own_places(links[:50], machine)
    assert own_places(links, machine) is None


def test_without_a_boot_or_a_mount_table_nothing_is_known(machine: Path) -> None:
    machine.chmod(0o777)
    for path in ("sys/kernel/random/boot_id", "self/mountinfo"):
        assert own_places([machine], machine)
        (machine / "proc" / path).rename(machine / "kept")
        assert own_places([machine], machine) is None
        (machine / "kept").rename(machine / "proc" / path)


def test_the_real_table_has_the_number_of_a_mount(tmp_path: Path) -> None:
    with start.reached("", str(tmp_path)) as fd:
        assert start.mount_of(fd) in {mount.number for mount in mounts()}
