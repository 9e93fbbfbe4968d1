"""The file system of a folder."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import made_disk
from neighbor_mount import mounted_and_unasked

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


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("name", "kind", "in_memory"),
    [
        (".", "ext4", False),
        ("data/deep", "nfs4", False),
        ("data/inner room/x", "tmpfs", True),
        ("data-other", "tmpfs", True),
    ],
)
def test_the_mount_of_an_open_folder_counts(machine: Path, name: str, kind: str, in_memory: bool) -> None:
    with opened(machine / name) as folder:
        found = file_system(folder, machine / "proc")
    assert (found.kind, found.in_memory) == (kind, in_memory)


@pytest.mark.root
def test_what_a_neighbor_mounts_over_an_open_folder_is_not_asked(tmp_path: Path) -> None:
    with made_disk(tmp_path, 1 << 20) as disk:
        (disk / "shared").mkdir()
        with opened(disk / "shared") as folder:
            before = file_system(folder)
            for place in (disk / "shared", disk):
                with mounted_and_unasked(place):
                    assert file_system(folder) == before
    assert (before.kind, before.mount_point) == ("tmpfs", str(disk))


def test_free_space_is_that_of_the_folder(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        found = file_system(folder)
    assert found.kind != ""
    assert found.free_bytes == pytest.approx(os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize, rel=0.2)
    assert found.free_inodes is None or found.free_inodes > 0


def test_without_a_mount_table_the_kind_is_not_known(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        assert file_system(folder, tmp_path / "nowhere").kind == ""


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
    sysfs = table.parent / "sys"
    for folder in ("devices/pci0000:00/block/sda", "dev/block"):
        (sysfs / folder).mkdir(parents=True)
    (sysfs / "dev/block/8:1").symlink_to(sysfs / "devices/pci0000:00/block/sda")
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


_PCI = "devices/pci0000:00"
_VIRTUAL = "devices/virtual"
_DEVICES = {
    "vda": f"{_PCI}/virtio1/block/vda",
    "sda": f"{_PCI}/ata1/host0/target0:0:0/0:0:0:0/block/sda",
    "sda1": f"{_PCI}/ata1/host0/target0:0:0/0:0:0:0/block/sda/sda1",
    "sdb": "devices/platform/host3/session1/target3:0:0/3:0:0:0/block/sdb",  # iSCSI
    "sdc": f"{_PCI}/host7/rport-7:0-1/target7:0:1/7:0:1:0/block/sdc",  # Fibre Channel
    "nvme0n1": f"{_PCI}/nvme/nvme0/nvme0n1",
    "nvme1n1": f"{_VIRTUAL}/nvme-fabrics/ctl/nvme1/nvme1n1",
    "nvme2n1": f"{_VIRTUAL}/nvme-subsystem/nvme-subsys2/nvme2n1",  # by two ways, both in this machine
    "loop3": f"{_VIRTUAL}/block/loop3",
    "ublkb0": f"{_VIRTUAL}/block/ublkb0",
    "scinia": f"{_VIRTUAL}/block/scinia",
    "zram0": f"{_VIRTUAL}/block/zram0",
    "rbd0": "devices/rbd/0/block/rbd0",
    "dm-0": f"{_VIRTUAL}/block/dm-0",
    "dm-1": f"{_VIRTUAL}/block/dm-1",
    "md0": f"{_VIRTUAL}/block/md0",
    "md0p1": f"{_VIRTUAL}/block/md0/md0p1",
}
_SLAVES = {"dm-0": ("sda1", "nvme0n1"), "dm-1": ("md0",), "md0": ("vda", "loop3")}


@pytest.fixture
def on_devices(machine: Path) -> Path:
    """The machine with block devices, in the form of the kernel's sysfs."""
    sysfs = machine / "sys"
    for folder in ("class/block", "dev/block"):
        (sysfs / folder).mkdir(parents=True, exist_ok=True)
    for number, (name, path) in enumerate(_DEVICES.items()):
        (sysfs / path).mkdir(parents=True, exist_ok=True)
        (sysfs / "class/block" / name).symlink_to(sysfs / path)
        (sysfs / "dev/block" / f"9:{number}").symlink_to(sysfs / path)
        for part in _SLAVES.get(name, ()):
            (sysfs / path / "slaves").mkdir(exist_ok=True)
            (sysfs / path / "slaves" / part).symlink_to(sysfs / _DEVICES[part])
    for name in ("sda1", "md0p1"):
        (sysfs / _DEVICES[name] / "partition").write_text("1\n")
    for name, controllers in {"nvme0n1": {".": "pcie"}, "nvme1n1": {".": "tcp"}, "nvme2n1": {"nvme2": "pcie"}}.items():
        device = (sysfs / _DEVICES[name]).parent
        (sysfs / _DEVICES[name] / "device").symlink_to(device)
        for controller, transport in controllers.items():
            (device / controller).mkdir(exist_ok=True)
            (device / controller / "transport").write_text(f"{transport}\n")
    return machine


def _is_own(machine: Path, kind: str, point: str, source: str, number: str) -> bool:
    (machine / "proc/self/mountinfo").write_text(f"20 1 {number} / {point} rw - {kind} {source} rw\n")
    return own_places([machine / "none"], machine) is not None


@pytest.mark.parametrize("name", _DEVICES)
def test_a_file_system_is_of_one_machine_if_its_blocks_are(name: str, on_devices: Path) -> None:
    own = name in {"vda", "sda", "sda1", "nvme0n1", "nvme2n1", "zram0", "dm-0"}
    number = f"9:{list(_DEVICES).index(name)}"
    assert _is_own(on_devices, "ext4", "/data", "/dev/root", number) == own
    assert _is_own(on_devices, "btrfs", "/data", f"/dev/{name}", "0:50") == own


@pytest.mark.parametrize(
    ("kind", "point", "source", "own"),
    [
        ("zfs", "/data", "tank/nbd1", True),
        ("overlay", "/data", "overlay", False),  # what it shows may lie on a shared disk
        ("overlay", "/", "overlay", True),
        ("tmpfs", "/data", "tmpfs", True),
        ("nfs4", "/", "server:/root", False),
        ("fuse.sshfs", "/data", "/dev/vda", False),
    ],
)
def test_a_file_system_without_a_device_counts_by_its_kind(
    kind: str, point: str, source: str, own: bool, on_devices: Path
) -> None:
    assert _is_own(on_devices, kind, point, source, "0:50") == own


def test_nothing_is_known_from_a_working_folder_that_is_gone(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "gone").mkdir()
    monkeypatch.chdir(machine / "gone")
    (machine / "gone").rmdir()
    assert own_places([Path("x")], machine) is None
    assert own_places([machine / "data/deep"], machine) is None
    assert own_places([machine / "deep/none"], machine) is not None


def test_the_folder_above_a_link_is_where_the_link_leads(machine: Path) -> None:
    (machine / "data-other/current").symlink_to("../data/deep")
    assert own_places([machine / "data-other/current/../x"], machine) is None


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


_SEEN = """
import os, sys
from seatrial.environment.working_folder import may_map_owners
from seatrial.probe.file_system import file_system
for folder in sys.argv[1:]:
    print(file_system(os.open(folder, os.O_RDONLY)).kind, may_map_owners(os.stat(folder)))
"""


@pytest.mark.root
@pytest.mark.parametrize("name", ["a\rb", "c\u2003-\u2003proc", "d\x0b-\x0bext4"])
def test_a_name_of_a_mount_hides_no_kind(name: str, tmp_path: Path) -> None:
    """Another user chooses it, and the kernel escapes blanks of ASCII alone."""
    for folder in (plain := tmp_path / "plain", named := tmp_path / name):
        folder.mkdir()
    mount = 'mount -t ramfs x "$2" && mount -t ramfs x "$3" || exit 77; exec "$0" -c "$1" "$2" "$3"'
    command = ["unshare", "--mount", "sh", "-c", mount, sys.executable, _SEEN, str(plain), str(named)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    if done.returncode == 77:
        pytest.skip("no mounts here")
    one, other = done.stdout.splitlines()
    assert one == other
    assert one.startswith("ramfs")
