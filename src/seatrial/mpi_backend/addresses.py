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
_ONLY_COMPARED = "!"
"""Stands before such an address in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a rank says of the network of its host."""

    stack: str
    """Equal for two ranks only if they have one loopback: the boot of the kernel, and the network namespace."""
    addresses: tuple[str, ...]
    """At which others may reach it, with the length of the prefix, in the order of the kernel: ``10.9.0.5/24``."""
    compared: tuple[str, ...] = ()
    """Others at which it reaches itself, of interfaces that are down and of loopbacks: ``172.17.0.1``."""

    def line(self, longest: int) -> str:
        """Return it as a line of at most ``longest`` characters, without the last addresses where there are more."""
        text = " ".join((self.stack, *self.addresses, *(_ONLY_COMPARED + address for address in self.compared)))
        return text if len(text) <= longest else text[:longest].rpartition(" ")[0]


def place_of(line: str) -> Place:
    """Return what a line says."""
    stack, *words = line.split()
    return Place(
        stack=stack,
        addresses=tuple(word for word in words if not word.startswith(_ONLY_COMPARED)),
        compared=tuple(word[len(_ONLY_COMPARED) :] for word in words if word.startswith(_ONLY_COMPARED)),
    )


def this_place() -> Place:
    """Return that of this process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stack = f"{boot}.{os.readlink('/proc/self/ns/net')}"
    except OSError:
        stack = socket.gethostname()
    found = [*_of_version_4(), *_of_version_6()]
    return Place(
        stack=stack,
        addresses=tuple(address for address, is_offered in found if is_offered),
        compared=tuple(_number(address) for address, is_offered in found if not is_offered),
    )


def addresses_of_first(places: Sequence[Place], master: str) -> tuple[str, ...]:
    """Return the addresses at which the others may find rank 0, which is the first of these; empty without any.

    An address that another host has too is that of a bridge or a translation of addresses, such as docker0's 172.17.0.1
    and Vagrant's 10.0.2.15: whoever asks for it gets the own host, also where the interface there is down. Where
    no other is left, MASTER_ADDR stays one all the same: containers with a boot number each may share a network.

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
    taken = {number for place in strangers for number in _numbers(place)}
    others = [address for address in first.addresses if _number(address) not in named]
    return tuple(address for address in (*named, *others) if _number(address) not in taken) or tuple(named)


def nearest_first(first: Place, place: Place) -> list[str]:
    """Return the addresses without prefix that rank 0 has told, as a rank tries them: the one that is named, then those
    in a network of its host, then others.

    It tries none that its host has as well: that may be one for which its line had no room. Only where no other is left
    does it try the one that is named: a listener there that shows no proof is not rank 0.
    """
    if place.stack == first.stack:
        return ["127.0.0.1"]
    own = [ipaddress.ip_interface(address).ip for address in place.addresses]

    def is_far(address: str) -> bool:
        return "/" in address and not any(number in ipaddress.ip_interface(address).network for number in own)

    mine = _numbers(place)
    found = [number for address in sorted(first.addresses, key=is_far) if (number := _number(address)) not in mine]
    return found or [address for address in first.addresses if "/" not in address]


def _numbers(place: Place) -> set[str]:
    """Return all addresses at which a host reaches itself, but for those that each host has."""
    return {*map(_number, place.addresses), *place.compared}


def _number(address: str) -> str:
    return address.partition("/")[0]


def _of_version_4() -> Iterator[tuple[str, bool]]:
    """Yield all IPv4 addresses of this host, and whether others may reach it there."""
    entries = array("B", bytes(_MOST_ENTRIES * _ENTRY_BYTES))
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as kernel:
        asked = struct.pack("iP", len(entries), entries.buffer_info()[0])
        (size,) = struct.unpack_from("i", fcntl.ioctl(kernel, _SIOCGIFCONF, asked))
        for at in range(0, size, _ENTRY_BYTES):
            entry = entries[at : at + _ENTRY_BYTES].tobytes()
            address = ipaddress.IPv4Address(entry[20:24])
            if not (address.is_loopback or address.is_link_local):
                # The entry asks for the mask of this address, where the interface has several.
                mask = ipaddress.IPv4Address(fcntl.ioctl(kernel, _SIOCGIFNETMASK, entry)[20:24])
                yield f"{address}/{int(mask).bit_count()}", _is_running(kernel, entry)


def _of_version_6() -> Iterator[tuple[str, bool]]:
    """Yield all IPv6 addresses of this host, and whether others may reach it there."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as kernel:
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, prefix, scope, flags, name = line.split()
            address = ipaddress.IPv6Address(bytes.fromhex(digits))
            entry = name.encode().ljust(_ENTRY_BYTES, b"\0")
            if not (address.is_loopback or address.is_link_local):
                is_usable = scope == _GLOBAL and not int(flags, 16) & _UNUSABLE
                yield f"{address}/{int(prefix, 16)}", is_usable and _is_running(kernel, entry)


def _is_running(kernel: socket.socket, entry: bytes) -> bool:
    """Return whether packets leave the host by an interface; its name begins the entry."""
    with contextlib.suppress(OSError):
        (flags,) = struct.unpack_from("H", fcntl.ioctl(kernel, _SIOCGIFFLAGS, entry), 16)
        return flags & _UP_AND_RUNNING == _UP_AND_RUNNING and not flags & _LOOPBACK
    return False
