"""The kernel's counters of TCP connections, with a real connection over the loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial.probe import tcp

_BYTES = 1 << 20
_LARGEST = 65_536
"""No segment is larger."""
_CALLED_BY_NOBODY = """
import socket, struct, subprocess, sys
from pathlib import Path
from seatrial.probe import tcp

for words in (
    "link add near type veth peer name far",
    "link set far up",
    "link set near arp off up",
    "link set lo up",
    "addr add 10.9.9.1 dev near",
    "route add default dev near",
):
    subprocess.run(["ip", *words.split()], check=True)
Path("/proc/sys/net/ipv4/tcp_syncookies").write_text(sys.argv[1])
Path("/proc/sys/net/ipv4/tcp_max_syn_backlog").write_text("4")
server = socket.create_server(("10.9.9.1", 0), backlog=100)
before = tcp.drops(server)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
for number in range(1, 21):
    sender, receiver = socket.inet_aton(f"198.18.0.{number}"), socket.inet_aton("10.9.9.1")
    call = struct.pack("!HHIIBBHHH", 5000, server.getsockname()[1], 0, 0, 5 << 4, 2, 64240, 0, 0)
    rest = sum(struct.unpack("!16H", sender + receiver + struct.pack("!HH", 6, len(call)) + call)) % 65535
    call = call[:16] + struct.pack("!H", 65535 - rest) + call[18:]
    raw.sendto(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 0, 0, 64, 6, 0, sender, receiver) + call, ("10.9.9.1", 0))
print(tcp.drops(server).has_grown(before))
"""
"""Twenty calls with false senders to a listener in a network without an exit."""

_ARRIVED_TWICE = """
import json, socket, struct, subprocess, time
from seatrial.probe import tcp

def drops_answers(action):
    rule = ["INPUT", "-p", "tcp", "--sport", str(port), "-j", "DROP"]
    subprocess.run(["iptables", action, *rule], check=True)

def sent_again():
    return struct.unpack_from("I", sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160), 100)[0]

def wait_for(is_so):
    until = time.monotonic() + 20
    while not is_so() and time.monotonic() < until:
        time.sleep(0.01)

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]
for attempt in range(10):
    sender = socket.create_connection(server.getsockname())
    receiver, _ = server.accept()
    before = tcp.sockets()
    drops_answers("-I")
    sender.sendall(bytes(1000))
    drops_answers("-D")
    wait_for(sent_again)
    time.sleep(0.5)
    again = tcp.segments_between(before, tcp.sockets())[1]
    if sent_again() == 1:
        break
print(json.dumps([sent_again(), again]))
"""
"""A segment arrives, its answer does not, so it is sent again; the receiver says then that it has it twice. A slow
machine lets the second answer through too late: then it is tried again."""


@contextmanager
def _connected(server: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    sender = socket.create_connection(server.getsockname())
    receiver, _ = server.accept()
    with sender, receiver:
        yield sender, receiver


def _sent(sender: socket.socket, receiver: socket.socket) -> None:
    thread = threading.Thread(target=sender.sendall, args=(bytes(_BYTES),))
    thread.start()
    left = _BYTES
    while left:
        left -= len(receiver.recv(left))
    thread.join()


def test_an_open_connection_is_counted_and_stays_open() -> None:
    before = tcp.sockets()
    with socket.create_server(("127.0.0.1", 0)) as server, _connected(server) as (sender, receiver):
        _sent(sender, receiver)
        sent, again = tcp.segments_between(before, tcp.sockets(besides=before))
        assert sent >= _BYTES // _LARGEST
        assert 0 <= again <= sent
        receiver.sendall(b"x")
        assert sender.recv(1) == b"x"


@pytest.mark.parametrize("is_open", [True, False], ids=["open before", "called later"])
def test_connections_of_strangers_are_not_counted(is_open: bool) -> None:
    """Whoever connects to a port that was there before, such as that of a store, chooses what is sent there."""
    with socket.create_server(("127.0.0.1", 0)) as store, ExitStack() as stack:
        if is_open:
            caller, called = stack.enter_context(_connected(store))
        others = tcp.sockets()
        assert store.getsockname()[1] in others.ports
        before = tcp.sockets(besides=others)
        if not is_open:
            # The caller is another process.
            caller, called = stack.enter_context(_connected(store))
            others = replace(others, segments={**others.segments, os.fstat(caller.fileno()).st_ino: (0, 0, 0)})
        _sent(called, caller)
        assert tcp.segments_between(before, tcp.sockets(besides=others)) == (0, 0)


def test_repeated_answers_to_a_call_are_no_repeated_segments() -> None:
    """A stranger repeats its call before it takes the answer: then nothing has been sent that could be lost."""
    none, called = tcp.Sockets(frozenset(), {1: (50, 2, 0)}), {1: (150, 5, 0), 2: (0, 2, 0), 3: (1, 40, 0)}
    assert tcp.segments_between(none, tcp.Sockets(frozenset(), called)) == (101, 4)


@pytest.mark.parametrize(("twice", "lost"), [(2, 5), (4, 3), (7, 0), (8, 5), (1, 5)])
def test_another_end_takes_back_no_more_than_was_sent_again(twice: int, lost: int) -> None:
    """The kernel counts what it says, also where it lies, or what it says late of what was sent before."""
    before, after = {1: (50, 9, 2)}, {1: (150, 14, twice)}
    assert tcp.segments_between(tcp.Sockets(frozenset(), before), tcp.Sockets(frozenset(), after)) == (100, lost)


@pytest.mark.root
def test_what_arrived_twice_was_not_lost() -> None:
    """Segments that came late, or in another order, are sent again, too: no cable loses them."""
    program = ["unshare", "--net", sys.executable, "-c", _ARRIVED_TWICE]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[1, 0]\n"


@pytest.mark.root
@pytest.mark.parametrize(("cookies", "is_crowded"), [("0", True), ("1", False)])
def test_a_flood_of_false_calls_is_known_without_cookies(cookies: str, is_crowded: bool) -> None:
    """With SYN cookies the kernel drops none of them."""
    program = ["unshare", "--net", sys.executable, "-c", _CALLED_BY_NOBODY, cookies]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stdout == f"{is_crowded}\n"


@pytest.mark.parametrize(("name", "counted"), [("nf_conntrack", "drop"), ("ndisc_cache", "table_fulls")])
def test_calls_that_a_full_table_dropped_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, counted: str
) -> None:
    """Any user of the machine can fill it, and the listener never hears of these calls."""
    table = tmp_path / name
    real = {Path(path).name: column for path, column in tcp._TABLES}
    monkeypatch.setattr(tcp, "_TABLES", ((str(tmp_path / "none"), "drop"), (str(table), real[name])))
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert tcp.unplaced() == 0
        names = f"entries  clashres insert_failed {counted} early_drop"
        table.write_text(
            f"{names}\n0000ffff  00000000 00000001 0000000a 00000003\n0000ffff  00000000 00000001 00000001 0\n"
        )
        before = tcp.drops(server)
        assert before.unplaced == 11
        assert not tcp.drops(server).has_grown(before)
        table.write_text(
            f"{names}\n0000ffff  00000000 00000001 0000000a 00000003\n0000ffff  00000000 00000001 00000002 0\n"
        )
        assert tcp.drops(server).has_grown(before)
