"""The network interfaces of this host, and the interface that leads to an address."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seatrial.probe.names import is_loopback

_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40
_RTF_UP, _RTF_REJECT, _RTF_LOCAL = 0x1, 0x200, 0x8000_0000
_SIOCGIFADDR, _SIOCGIFFLAGS, _SIOCGIFMTU = 0x8915, 0x8913, 0x8921
_ANY_PORT = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One interface, as the kernel shows it."""

    name: str
    mtu: int | None
    """Bytes; None: not known."""
    state: str
    """``up``, ``down``, ``unknown`` (as for tunnels, which work), ..."""
    loopback: bool

    @property
    def usable(self) -> bool:
        """Whether data can go over it."""
        return self.state in ("up", "unknown")


def interfaces(root: Path = Path("/")) -> tuple[Interface, ...] | None:
    """Return the interfaces of our network namespace, sorted by name; None where /proc/net/dev does not exist
    (macOS)."""
    lines = _text(root / "proc/net/dev").splitlines()[2:]  # two of headings
    names = sorted(line.partition(":")[0].strip() for line in lines if ":" in line)
    return tuple(_from_kernel(name, root) or _from_sysfs(name, root) for name in names) if lines else None


def _from_kernel(name: str, root: Path) -> Interface | None:
    """Read an interface by ioctl. /sys may show the interfaces of another namespace: that of its mount."""
    if root != Path("/") or not sys.platform.startswith("linux"):
        return None
    import fcntl

    request = struct.pack("40s", name.encode()[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            (mtu,) = struct.unpack_from("=i", fcntl.ioctl(probe, _SIOCGIFMTU, request), 16)
            (flags,) = struct.unpack_from("=H", fcntl.ioctl(probe, _SIOCGIFFLAGS, request), 16)
    except OSError:
        return None
    up = flags & _IFF_UP and flags & _IFF_RUNNING
    return Interface(name=name, mtu=mtu, state="up" if up else "down", loopback=bool(flags & _IFF_LOOPBACK))


def _from_sysfs(name: str, root: Path) -> Interface:
    folder = root / "sys/class/net" / name
    mtu, flags = _text(folder / "mtu"), _text(folder / "flags").removeprefix("0x")
    return Interface(
        name=name,
        mtu=int(mtu) if mtu.isdigit() else None,
        state=_text(folder / "operstate") or "unknown",
        loopback=bool(int(flags, 16) & _IFF_LOOPBACK) if flags.isalnum() else name == "lo",
    )


def interface_to(address: str) -> str | None:
    """Return the interface by which packets leave for a numeric address, or that has the address where it is our own.

    The kernel chooses the source address by its rules and tables; no packet is sent. None: there is no route, or it is
    not known.
    """
    plain, _, scope = address.partition("%")
    if scope:
        return scope
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(plain).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((plain, _ANY_PORT))
            source = str(probe.getsockname()[0])
    except (OSError, ValueError):
        return None
    return _owner(source) or interface_by_table(plain)


def address_of(name: str) -> str | None:
    """Return the first address of an interface, IPv4 before IPv6 and never a link-local one; None: it has none."""
    if sys.platform.startswith("linux"):
        import fcntl

        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            return socket.inet_ntoa(answer[20:24])
        except OSError:
            pass  # it has no IPv4 address
    for fields in _rows(Path("/proc/net/if_inet6"), 6):
        address = ipaddress.IPv6Address(bytes.fromhex(fields[0]))
        if fields[5] == name and not address.is_link_local:
            return str(address)
    return None


def interface_by_table(address: str, root: Path = Path("/")) -> str | None:
    """Return the interface by the longest prefix, then the lowest metric, in the kernel's main tables; None: no
    route."""
    try:
        wanted = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    wanted = getattr(wanted, "ipv4_mapped", None) or wanted
    if wanted.is_loopback:
        return next((entry.name for entry in interfaces(root) or () if entry.loopback), None)
    routes = _routes_6(root) if wanted.version == 6 else _routes_4(root)
    fitting = [(-prefix, metric, name) for name, network, prefix, metric in routes if int(wanted) in network]
    return min(fitting)[2] if fitting else None


def _routes_4(root: Path) -> Iterator[tuple[str, range, int, int]]:
    """Yield interface, addresses, length of the prefix, metric."""
    for fields in _rows(root / "proc/net/route", 8):
        try:
            flags, metric = int(fields[3], 16), int(fields[6])
            # The file has addresses in the byte order of the machine.
            first, mask = (struct.unpack("!I", struct.pack("=I", int(fields[at], 16)))[0] for at in (1, 7))
        except (ValueError, struct.error):
            continue  # the headings
        if flags & _RTF_UP and not flags & _RTF_REJECT:
            yield fields[0], range(first, first + (0xFFFF_FFFF ^ mask) + 1), mask.bit_count(), metric


def _routes_6(root: Path) -> Iterator[tuple[str, range, int, int]]:
    for fields in _rows(root / "proc/net/ipv6_route", 10):
        try:
            first, prefix, metric, flags = (int(fields[at], 16) for at in (0, 1, 5, 8))
        except ValueError:
            continue
        # In older kernels, routes to our own addresses lead to the loopback.
        if flags & _RTF_UP and not flags & (_RTF_REJECT | _RTF_LOCAL):
            yield fields[9], range(first, first + (1 << (128 - prefix))), prefix, metric


def _owner(address: str) -> str | None:
    """Return the interface that has one of our addresses. Of several IPv4 addresses of an interface, only the first is
    known."""
    if ":" in address:
        wanted = f"{int(ipaddress.ip_address(address)):032x}"
        return next((fields[5] for fields in _rows(Path("/proc/net/if_inet6"), 6) if fields[0] == wanted), None)
    if not sys.platform.startswith("linux"):
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return next((entry.name for entry in interfaces() or () if entry.loopback), None) if is_loopback(address) else None


def _rows(path: Path, columns: int) -> Iterator[list[str]]:
    for line in _text(path).splitlines():
        fields = line.split()
        if len(fields) >= columns:
            yield fields


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
