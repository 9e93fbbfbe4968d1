"""The time to join holds, however many addresses the name of the controller has."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Sequence

import pytest

from seatrial.agent import agent_main
from seatrial.errors import SeatrialError
from seatrial.probe import address_search
from seatrial.targets.launcher_messages import reason_of_agent


class FoundError(Exception):
    """The agent has come to the port of its controller."""


class SilentAddresses:
    """Each attempt to connect takes its whole timeout, by this clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> None:
        self.vacant_port, self.controller_at_s = 0, 0.0
        """Nobody listens at this port until the controller comes."""
        self.answer: bytes | None = None
        """What all of them say, then they close the connection; None: nothing, as above."""
        self.silent_from_s = math.inf
        self.now, self.attempts, self.hosts = 1_000.0, list[float](), list[str]()
        self._kept: list[socket.socket] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self._pass)
        monkeypatch.setattr(socket, "create_connection", self._connect)
        monkeypatch.setattr(address_search, "resolve_in_thread", lambda name: names)

    def close(self) -> None:
        for connection in self._kept:
            connection.close()

    def _pass(self, duration_s: float) -> None:
        self.now += duration_s

    def _connect(self, place: tuple[str, int], timeout: float) -> socket.socket:
        self.attempts.append(self.now - 1_000.0)
        self.hosts.append(place[0])
        if place[1] == self.vacant_port:
            if self.attempts[-1] >= self.controller_at_s:
                raise FoundError
            raise ConnectionRefusedError
        if self.answer is not None and self.attempts[-1] < self.silent_from_s:
            ours, theirs = socket.socketpair()
            theirs.sendall(self.answer)
            theirs.shutdown(socket.SHUT_WR)
            self._kept.append(theirs)
            return ours
        self.now += timeout
        raise TimeoutError("timed out")


def test_no_address_is_tried_after_the_time_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEATRIAL_JOIN_TIMEOUT_S", "5")
    silent = SilentAddresses(monkeypatch, [f"10.9.0.{number}" for number in range(200)])
    with pytest.raises(SeatrialError, match=r"found no controller of its job at node0:20001 \(timed out\)"):
        agent_main._connect("node0", list(range(20_001, 20_009)), "x" * 20, 1)
    assert silent.attempts == [0.0, 2.0, 4.0]


@pytest.mark.parametrize("comes_at_s", [0.0, 17.0, 33.0, 50.0])
@pytest.mark.parametrize("place", [0, 3, 7])
def test_silent_neighbors_hide_no_controller_that_comes_late(
    place: int, comes_at_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They know the ports, and each visit of them takes up to ten seconds of the minute."""
    ports = list(range(20_001, 20_009))
    silent = SilentAddresses(monkeypatch, ["10.9.0.1"])
    silent.vacant_port, silent.controller_at_s = ports[place], comes_at_s
    with pytest.raises(FoundError):
        agent_main._connect("node0", ports, "x" * 20, 1)
    assert silent.now - 1_000.0 <= max(14.0, comes_at_s + 10.0)


def test_with_one_port_each_address_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = SilentAddresses(monkeypatch, ["10.9.0.1", "10.9.0.2", "fd00::1"])
    with pytest.raises(SeatrialError, match=r"found no controller of its job at node0:20001 \(timed out\)"):
        agent_main._connect("node0", [20_001], "x" * 20, 1)
    assert silent.attempts == [0.0, 10.0, 20.0]


@pytest.mark.parametrize(
    ("answer", "tried_s", "why"),
    [
        (b"", 60.0, "who listens there closed the connection before it answered"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", 10.0, "who answers there does not know the secret of this job"),
        (b"SSH-2.0", 10.0, "who answers there does not know the secret of this job"),
    ],
)
def test_an_agent_that_a_crowd_keeps_out_tries_on(
    answer: bytes, tried_s: float, why: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A crowd of strangers has its controller close it, and makes nobody answer wrongly. What it waits for is told
    before the time to join is over."""
    silent = SilentAddresses(monkeypatch, ["10.9.0.1"])
    silent.answer = answer
    with pytest.raises(SeatrialError, match=rf"found no controller of its job at node0:20001 \({why}"):
        agent_main._connect("node0", [20_001], "x" * 20, 1)
    assert silent.attempts[-1] == pytest.approx(tried_s, abs=0.3)
    waits = [] if answer else [10, 20, 40]
    said = [reason_of_agent(line) for line in capfd.readouterr().err.splitlines()]
    assert said == [f"node 1 waits for node0:20001 for {waited_s} s ({why})" for waited_s in waits]
    silent.close()


def test_a_closed_place_that_is_silent_then_is_tried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd fills the queue of connections that the controller has not accepted."""
    silent = SilentAddresses(monkeypatch, ["10.9.0.1"])
    silent.answer, silent.silent_from_s = b"", 5.0
    with pytest.raises(SeatrialError, match="closed the connection before it answered"):
        agent_main._connect("node0", [20_001], "x" * 20, 1)
    assert silent.attempts[-1] > 50.0
    silent.close()


def test_after_the_time_a_controller_is_asked_only_where_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = SilentAddresses(monkeypatch, [])
    earlier = [f"10.9.0.{number}" for number in range(8)]
    assert agent_main._connect_again(earlier, "10.9.1.1", 20_001, "x" * 20, 1, 4.0, 1_005.0, "a") is None
    assert silent.hosts == ["10.9.0.0", "10.9.0.1", "10.9.1.1"]
