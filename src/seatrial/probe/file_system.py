"""The kind of file system that a folder is on, its free space, and whether other machines may have it, too."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from seatrial.probe.host import boot_id
from seatrial.probe.mounts import Mount, mounts
from seatrial.start import mount_of, way_to

_IN_MEMORY = {"devtmpfs", "ramfs", "rootfs", "tmpfs"}
_ON_DEVICES = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "xfs", "zfs"}
"""File systems that no two machines have at once, if none has their device."""
_MADE_OF_OTHERS = re.compile(r"(?:bcache|dm-|md)\d")
"""Names of virtual devices whose blocks are those of other devices. ``zram0`` is memory; all others lie in files, which
may be anywhere (loop, ublk), or on other machines (nbd, rbd, drbd, pxd, rnbd, scini)."""
_ON_NETWORK = re.compile(r"(?:drbd|nbd|rbd|rnbd)\d")
_BY_NETWORK = re.compile(r"/session\d+/|/rport-\d|/vhci_hcd\b")
"""Parts of the paths of disks by iSCSI, Fibre Channel and USB over IP in sysfs."""
_MOST_LAYERS = 8
_MOST_PLACES = 100
"""Others may have put any number of links on a way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """The file system of one folder."""

    kind: str
    """Type in the mount table: ``ext4``, ``nfs4``, ``tmpfs``; empty where there is no table (macOS)."""
    mount_point: str
    free_bytes: int
    """Free space for users other than root. A quota may allow less and is not visible here."""
    free_inodes: int | None
    """Inodes for users other than root; None: this file system does not count them."""

    @property
    def in_memory(self) -> bool:
        """Whether it is in memory, not on storage."""
        return self.kind in ("tmpfs", "ramfs", "devtmpfs")


def file_system(folder: int, proc_root: Path = Path("/proc")) -> FileSystem:
    """Return the file system of an open folder. Raises OSError; blocks for as long as that file system does.

    No name is asked for: what another user has mounted there since then may keep a process waiting for ever.
    """
    status = os.fstatvfs(folder)
    number = mount_of(folder)
    mount = next((each for each in mounts(proc_root) if each.number == number), None)
    return FileSystem(
        kind=mount.kind if mount else "",
        mount_point=mount.point if mount else "",
        free_bytes=status.f_bavail * status.f_frsize,
        free_inodes=status.f_favail if status.f_files else None,
    )


def own_places(paths: Iterable[Path], root: Path = Path("/")) -> list[str] | None:
    """Return the folders and files on the ways to paths that others than root may change, each with the boot of this
    machine; None where another machine may have one of their file systems, too.

    The ways lead from ``/`` on, links included, and end where a name is missing. No file system is asked that another
    machine or another user may keep waiting.
    """
    boot, table = boot_id(root), {mount.number: mount for mount in mounts(root / "proc")}
    places: set[str] = set()
    for path in paths:
        is_begun = False
        try:
            # Not as abspath has it: after a link ``..`` is the folder above the place to which it leads.
            way = path if path.is_absolute() else os.path.join(os.getcwd(), path)
            for _, fd, _, _, _ in way_to(os.fspath(way)):
                is_begun = True
                mount = table.get(mount_of(fd))
                if boot is None or mount is None or not _is_of_one_machine(mount, root / "sys"):
                    return None
                status = os.fstat(fd)
                if status.st_uid != 0 or status.st_mode & 0o022:
                    places.add(f"{boot} {mount.device} {status.st_ino}")
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            if is_begun:  # else there was no working folder any more, and nothing is known
                continue
            return None
        except OSError:
            return None
    return sorted(places) if len(places) <= _MOST_PLACES else None


def _is_of_one_machine(mount: Mount, sysfs: Path) -> bool:
    """Return whether no other machine has a file system, as far as the kernel tells.

    An overlay shows folders that may lie anywhere. At ``/`` it is that of a container: who can change those folders can
    change this program, too.
    """
    if mount.kind in _IN_MEMORY or (mount.kind == "overlay" and mount.point == "/"):
        return True
    if mount.kind == "zfs":
        return True  # its source is the name of a pool
    numbered = sysfs / "dev/block" / mount.device  # btrfs has no number of a device there
    if mount.kind in _ON_DEVICES and not os.path.exists(numbered) and mount.source.startswith("/dev/"):
        numbered = sysfs / "class/block" / os.path.basename(os.path.realpath(mount.source))
    return mount.kind in _ON_DEVICES and _has_own_blocks(os.path.realpath(numbered), sysfs, _MOST_LAYERS)


def _has_own_blocks(device: str, sysfs: Path, layers: int) -> bool:
    """Return whether a block device, by its path in sysfs, and those that it is made of have their blocks in this
    machine, as far as the kernel tells."""
    if layers == 0 or not os.path.exists(device):
        return False
    if os.path.exists(f"{device}/partition"):
        return _has_own_blocks(os.path.dirname(device), sysfs, layers - 1)
    name = os.path.basename(device)
    if name.startswith("nvme"):
        # Several controllers may lead to one disk, which then is a virtual device.
        controllers = [*Path(device).glob("device/nvme*/transport"), *Path(device).glob("device/transport")]
        return bool(controllers) and all(_first_word(controller) == "pcie" for controller in controllers)
    if "/devices/virtual/" not in device:
        return not _BY_NETWORK.search(device) and not _ON_NETWORK.match(name)
    below = sorted(Path(device).glob("slaves/*"))
    made = bool(_MADE_OF_OTHERS.match(name) and below)
    return name.startswith("zram") or (
        made and all(_has_own_blocks(os.path.realpath(part), sysfs, layers - 1) for part in below)
    )


def _first_word(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""
