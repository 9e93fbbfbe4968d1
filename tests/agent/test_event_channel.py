"""The agent's end of the control connection, while the conductor does not read."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from seatrial.agent import event_channel
from seatrial.agent.event_channel import EventChannel
from seatrial.agent.output_spool import OutputSpools
from seatrial.protocol.line_tags import LineTags
from seatrial.protocol.wire import Decoder
from seatrial.util.disk_writer import DiskWriter

_LINES = [b"%05d %s\n" % (number, b"x" * 3_000) for number in range(2_000)]


@pytest.fixture(params=["socket pair, as over ssh", "TCP"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The connection of an agent, and that of its conductor."""
    if request.param == "TCP":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
    else:
        ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    with ours, theirs:
        yield ours, theirs


def _tags() -> LineTags:
    return LineTags("token", "agent", "nonce", "challenge", 0)


def _read_all(channel: EventChannel, theirs: socket.socket) -> list[bytes]:
    """All lines that the channel sends until nothing waits there."""
    received: list[bytes] = []

    def read() -> None:
        while piece := theirs.recv(1 << 16):
            received.append(piece)
        theirs.shutdown(socket.SHUT_WR)

    reader = threading.Thread(target=read)
    reader.start()
    until = time.monotonic() + 10
    while not channel.is_free() and time.monotonic() < until:
        channel.wait(0.1)
    channel.close()
    reader.join()
    return b"".join(received).splitlines()


@pytest.mark.parametrize("has_tags", [False, True])
def test_what_nobody_reads_waits_in_its_order(ends: tuple[socket.socket, socket.socket], has_tags: bool) -> None:
    channel = EventChannel(ends[0], _tags() if has_tags else None, DiskWriter())
    for line in _LINES:
        channel.write(line)
    assert not channel.is_free()
    assert not channel.lost
    received, tags = _read_all(channel, ends[1]), _tags()
    lines = [tags.remove(line) for line in received] if has_tags else received
    assert lines == [line.rstrip(b"\n") for line in _LINES]
    assert not channel.lost


def test_output_waits_in_its_spool_and_events_go_on(ends: tuple[socket.socket, socket.socket]) -> None:
    channel, spools = EventChannel(ends[0], None, DiskWriter()), OutputSpools(in_pod=False)
    spool = spools.open(0, 0)
    spool.write(b"output")
    spool.close()
    for line in _LINES:
        channel.write(line)
    assert list(spools.pieces(channel.is_free)) == []
    channel.write(b"a sign of life\n")
    assert _read_all(channel, ends[1])[-1] == b"a sign of life"
    spool.free()


def test_one_piece_of_output_waits_at_most(ends: tuple[socket.socket, socket.socket]) -> None:
    channel, spools = EventChannel(ends[0], None, DiskWriter()), OutputSpools(in_pod=False)
    output = b"".join(b"%x" % (number * 2_654_435_761 % 2**32) for number in range(2_000_000))
    spool = spools.open(0, 0)
    spool.write(output)
    for piece in spools.pieces(channel.is_free):
        channel.send(piece)
    assert 0 < len(channel._unsent) < 2 * (1 << 16)
    decoder = Decoder()
    messages = [message for line in _read_all(channel, ends[1]) if (message := decoder.line(line))]
    assert messages[0]["at"] == 0
    assert messages[-1]["at"] + (1 << 16) == spool._taken < len(output)
    spool.free()


def test_a_conductor_that_takes_nothing_costs_bounded_memory(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_channel, "_FULL_BYTES", 1 << 20)
    monkeypatch.setattr(event_channel, "_MOST_BYTES", 1 << 23)
    channel = EventChannel(ends[0], None, DiskWriter())
    states = set()
    for line in _LINES * 10:
        channel.write(line)
        states.add((channel.is_full(), channel.lost))
    assert states == {(False, False), (True, False), (True, True)}
    assert len(channel._unsent) < (1 << 23) + 4_000


def test_it_waits_since_the_conductor_took_something(ends: tuple[socket.socket, socket.socket]) -> None:
    channel = EventChannel(ends[0], None, DiskWriter())
    channel.write(b"short\n")
    assert channel.waits_since() > time.monotonic()
    for line in _LINES:
        channel.write(line)
    theirs, began = ends[1], 0.0
    while channel.waits_since() != began:  # the kernel takes the last of it some time later
        began = channel.waits_since()
        channel.wait(0.2)
    assert began < time.monotonic()
    while channel.waits_since() == began:
        theirs.recv(1 << 16)
        channel.flush()
    assert began < channel.waits_since() < time.monotonic()
