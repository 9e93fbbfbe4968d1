"""Whose bytes are read next, and until when all that had arrived was read."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from seatrial.conductor.peer import Peer
from seatrial.conductor.reading_turns import ReadingTurns


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    """Two agents of host a, and one of each of the hosts b and c."""
    with contextlib.ExitStack() as stack:
        found = [Peer(stack.enter_context(socket.socket())) for _ in range(4)]
        for node, (peer, place) in enumerate(zip(found, "aabc", strict=True)):
            peer.node, peer.place = node, place
        yield found


def test_hosts_take_turns_however_many_agents_they_have(peers: list[Peer]) -> None:
    turns = ReadingTurns(0.0)
    order = []
    for now in range(1, 10):
        peer = turns.in_turn(peers)[0]
        turns.end(peer, now, now)
        order.append(peer)
    assert [peer.place for peer in order] == list("abcabcabc")
    assert order[0] is not order[3], "the agents of a host take turns, too"
    assert {peer.place for peer in turns.in_turn(peers)[:3]} == set("abc"), "and each host comes before all second ones"


def test_a_host_that_begins_to_send_is_first(peers: list[Peer]) -> None:
    turns = ReadingTurns(0.0)
    for now in range(1, 100):
        turns.end(turns.in_turn(peers[:3])[0], now, now)
    assert turns.in_turn(peers)[0] is peers[3]


def test_all_is_read_once_what_lay_there_was_taken_in(peers: list[Peer]) -> None:
    turns = ReadingTurns(0.0)
    one, other = peers[:2]
    turns.begin_round(1.0, {})
    assert turns.read_until == 1.0
    turns.begin_round(2.0, {one: 100, other: 100})
    turns.took(one, 60, is_empty=True)
    turns.end(one, 2.1, 2.1)
    other.lines.append(b"x")
    turns.took(other, 60, is_empty=True)
    turns.end(other, 2.2, 2.2)
    assert turns.read_until == 1.0, "a line waits"
    turns.begin_round(3.0, {one: 100, other: 100})
    other.lines.clear()
    turns.end(other, 3.1, 3.1)
    assert turns.read_until == 2.0, "what came to the first one since then is not waited for"
    turns.begin_round(4.0, {one: 100})
    assert turns.read_until == 2.0
    turns.forget(one)
    assert turns.read_until == 4.0


def test_a_peer_that_sends_without_end_keeps_nobody_waiting(peers: list[Peer]) -> None:
    turns = ReadingTurns(0.0)
    turns.begin_round(1.0, {peers[0]: 100})
    for at in (2.0, 3.0):
        turns.took(peers[0], 60, is_empty=False)
        turns.end(peers[0], at, at)
        turns.begin_round(at, {peers[0]: 100})
    assert turns.read_until == 1.0
    turns.took(peers[0], 60, is_empty=False)
    turns.end(peers[0], 3.5, 3.5)
    turns.begin_round(4.0, {})
    assert turns.read_until == 4.0


def test_newcomers_count_while_the_door_does(peers: list[Peer]) -> None:
    turns = ReadingTurns(0.0)
    door, first, second, _ = peers
    turns.begin_round(1.0, {door: 1})
    turns.add(first, door, 100)
    turns.took(door, 1, is_empty=False)
    turns.end(door, 1.1, 1.1)
    turns.add(second, door, 100)
    assert turns.read_until == 0.0
    turns.begin_round(2.0, {first: 100, door: 1, second: 100})
    turns.took(first, 10, is_empty=True)
    turns.end(first, 2.1, 2.1)
    assert turns.read_until == 1.0


def test_a_host_that_takes_long_keeps_nobody_waiting(peers: list[Peer]) -> None:
    turns = ReadingTurns(0.0)
    slow, slow_too, other, _ = peers
    turns.begin_round(1.0, {slow: 1 << 20, slow_too: 1 << 20, other: 100})
    turns.end(slow, 1.0, 1.6)
    turns.end(slow_too, 1.6, 2.2)
    assert turns.read_until == 0.0, "of another host something lies unread"
    assert set(turns.in_turn(peers)[:2]) == {peers[3], other}, "hosts that took less time come first"
    turns.took(other, 10, is_empty=True)
    turns.end(other, 2.2, 2.2)
    assert turns.read_until == 1.0
    turns.begin_round(3.0, {slow: 1 << 20})
    turns.end(slow, 3.0, 3.5)
    assert turns.read_until == 1.0, "each look has its own time"


def test_strangers_that_take_long_keep_nobody_waiting(peers: list[Peer]) -> None:
    turns = ReadingTurns(0.0)
    door, stranger, agent, _ = peers
    door.node = stranger.node = None
    door.place = stranger.place = ""
    turns.begin_round(1.0, {door: 1, agent: 100})
    turns.add(stranger, door, 100)
    turns.end(door, 1.0, 2.2)
    turns.took(agent, 10, is_empty=True)
    turns.end(agent, 2.2, 2.2)
    assert turns.read_until == 1.0
