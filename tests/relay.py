"""A cable that takes its time, for hosts made from network namespaces: what netem would do, on kernels without it.

The host's cable is replaced by two taps, one at its end and one at the switch; a separate process reads the frames
of each and writes them to the other when they are due.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hosts import Host

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x2, 0x1000
_MOST_BYTES = 1 << 16
_ETHERTYPE, _IPV4 = slice(12, 14), b"\x08\x00"
_SOURCE, _TARGET = slice(26, 30), slice(30, 34)
_READY_S = 10.0


@contextlib.contextmanager
def slow_cable(host: Host, delay_ms: float, *, only_with: Host | None = None) -> Iterator[None]:
    """Delay each frame of the host, each way; with ``only_with`` only frames between the two."""
    host.ip("link", "del", "eth0")
    enter = ["nsenter", f"--net=/run/netns/{host.namespace}"]
    peer = only_with.address if only_with else ""
    relay = subprocess.Popen(
        [*enter, sys.executable, __file__, host.cable, str(delay_ms / 1e3), peer],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert relay.stdout is not None
    try:
        ready, _, _ = select.select([relay.stdout], [], [], _READY_S)
        assert ready, "the relay did not begin"
        assert relay.stdout.readline() == b"ready\n"
        # The tap for the switch stays attached to the relay when it moves there.
        host.ip("link", "set", host.cable, "netns", host.switch)
        for words in (f"link set {host.cable} txqueuelen 10000", f"link set {host.cable} master br0 up"):
            subprocess.run(["ip", "-n", host.switch, *words.split()], check=True, capture_output=True)
        host.ip("addr", "add", f"{host.address}/24", "dev", "eth0")
        host.ip("link", "set", "eth0", "txqueuelen", "10000", "up")
        yield
    finally:
        relay.kill()
        relay.wait()
        relay.stdout.close()


def _open_tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return tap


def _relay(ends: tuple[int, int], delay_s: float, peer: bytes) -> None:
    """Until it is killed. All that is delayed is delayed alike, so what came first is due first."""
    other = dict(zip(ends, reversed(ends), strict=True))
    due: deque[tuple[float, int, bytes]] = deque()
    while True:
        wait_s = max(0.0, due[0][0] - time.monotonic()) if due else None
        for end in select.select(ends, [], [], wait_s)[0]:
            frame = os.read(end, _MOST_BYTES)
            is_late = not peer or (frame[_ETHERTYPE] == _IPV4 and peer in (frame[_SOURCE], frame[_TARGET]))
            if is_late:
                due.append((time.monotonic() + delay_s, other[end], frame))
            else:
                _put(other[end], frame)
        while due and due[0][0] <= time.monotonic():
            _, end, frame = due.popleft()
            _put(end, frame)


def _put(end: int, frame: bytes) -> None:
    # An end that is down, or full, loses frames, as any cable does.
    with contextlib.suppress(OSError):
        os.write(end, frame)


if __name__ == "__main__":
    taps = (_open_tap("eth0"), _open_tap(sys.argv[1]))
    print("ready", flush=True)
    _relay(taps, float(sys.argv[2]), socket.inet_aton(sys.argv[3]) if sys.argv[3] else b"")
