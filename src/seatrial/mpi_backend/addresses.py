"""The addresses at which the ranks of other hosts find rank 0. MPI carries them, and no name is asked for.

A name may lead to a stranger: in a pod to a Service of any account, or to the owner of a domain of the host.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_SIOCGIFCONF, _SIOCGIFFLAGS, _SIOCGIFNETMASK = 0x8912, 0x8913, 0x891B
_UP_AND_RUNNING, _LOOPBACK = 0x41, 0x8
_ENTRY_BYTES = 40 if struct.calcsize("P") == 8 else 32
"""The size of ``struct ifreq``."""
_MOST_ENTRIES = 1024
_GLOBAL = "00"
"""The scope of an IPv6 address that others can reach."""
_UNUSABLE = 0x48
"""Flags of an IPv6 address that is still tried, or that another host has."""
_TRY_S = 5.0
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a rank says of the network of its host."""

    stack: str
    """Equal for two ranks only if they have one loopback: the boot of the kernel, and the network namespace."""
    addresses: tuple[str, ...]
    """With the length of the prefix, in the order of the kernel, without loopback: ``10.9.0.5/24``."""

    def line(self, longest: int) -> str:
        """Return it as a line of at most ``longest`` characters, without the last addresses where there are more."""
        text = " ".join((self.stack, *self.addresses))
        return text if len(text) <= longest else text[:longest].rpartition(" ")[0]


def place_of(line: str) -> Place:
    """Return what a line says."""
    stack, *addresses = line.split()
    return Place(stack=stack, addresses=tuple(addresses))


def this_place() -> Place:
    """Return that of this process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stack = f"{boot}.{os.readlink('/proc/self/ns/net')}"
    except OSError:
        stack = socket.gethostname()
    return Place(stack=stack, addresses=(*_of_version_4(), *_of_version_6()))


def addresses_of_first(places: Sequence[Place], master: str) -> tuple[str, ...]:
    """Return the addresses at which the others may find rank 0, which is the first of these; empty without any.

    An address that another host has too is that of a bridge or a translation of addresses, such as docker0's 172.17.0.1
    and Vagrant's 10.0.2.15: whoever asks for it gets the own host.

    Args:
        places: that of each rank.
        master: MASTER_ADDR of rank 0. An address there comes first, without the length of a prefix.
    """
    first = places[0]
    strangers = [place for place in places if place.stack != first.stack]
    if not strangers:
        return ("127.0.0.1",)
    named = []
    with contextlib.suppress(ValueError):
        number = ipaddress.ip_address(master)
        if not (number.is_loopback or number.is_unspecified or number.is_link_local):
            named = [str(number)]
    taken = {_number(address) for place in strangers for address in place.addresses}
    others = [address for address in first.addresses if _number(address) not in named]
    return tuple(address for address in (*named, *others) if _number(address) not in taken)


def nearest_first(addresses: Sequence[str], place: Place) -> list[str]:
    """Return the addresses of rank 0 without prefix, as a rank tries them: the one that is named, then those in a
    network of its host, then others."""
    own = [ipaddress.ip_interface(address).ip for address in place.addresses]

    def is_far(address: str) -> bool:
        return "/" in address and not any(number in ipaddress.ip_interface(address).network for number in own)

    return [_number(address) for address in sorted(addresses, key=is_far)]


def first_that_answers(addresses: Sequence[str], port: int, timeout_s: float) -> str:
    """Return the first of these addresses at which something listens; empty if there is none within this time."""
    until = time.monotonic() + timeout_s
    while (left_s := until - time.monotonic()) > 0:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as way:
                way.settimeout(min(_TRY_S, left_s))
                way.connect((address, port))
                return address
        time.sleep(_PAUSE_S)
    return ""


def _number(address: str) -> str:
    return address.partition("/")[0]


def _of_version_4() -> Iterator[str]:
    """Yield all IPv4 addresses of this host that others may reach."""
    entries = array("B", bytes(_MOST_ENTRIES * _ENTRY_BYTES))
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as kernel:
        asked = struct.pack("iP", len(entries), entries.buffer_info()[0])
        (size,) = struct.unpack_from("i", fcntl.ioctl(kernel, _SIOCGIFCONF, asked))
        for at in range(0, size, _ENTRY_BYTES):
            entry = entries[at : at + _ENTRY_BYTES].tobytes()
            address = ipaddress.IPv4Address(entry[20:24])
            if _is_running(kernel, entry) and not (address.is_loopback or address.is_link_local):
                # The entry asks for the mask of this address, where the interface has several.
                mask = ipaddress.IPv4Address(fcntl.ioctl(kernel, _SIOCGIFNETMASK, entry)[20:24])
                yield f"{address}/{int(mask).bit_count()}"


def _of_version_6() -> Iterator[str]:
    """Yield all IPv6 addresses of this host that others may reach."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as kernel:
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            number, _, prefix, scope, flags, name = line.split()
            entry = name.encode().ljust(_ENTRY_BYTES, b"\0")
            if scope == _GLOBAL and not int(flags, 16) & _UNUSABLE and _is_running(kernel, entry):
                yield f"{ipaddress.IPv6Address(bytes.fromhex(number))}/{int(prefix, 16)}"


def _is_running(kernel: socket.socket, entry: bytes) -> bool:
    """Return whether packets leave the host by an interface; its name begins the entry."""
    with contextlib.suppress(OSError):
        (flags,) = struct.unpack_from("H", fcntl.ioctl(kernel, _SIOCGIFFLAGS, entry), 16)
        return flags & _UP_AND_RUNNING == _UP_AND_RUNNING and not flags & _LOOPBACK
    return False
