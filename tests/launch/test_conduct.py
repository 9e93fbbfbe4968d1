"""The processes that we started, and the signals that we are sent."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from launch.jobs import A_JOB

from seatrial.conductor.serve import Server
from seatrial.errors import SeatrialError
from seatrial.launch import conduct as module
from seatrial.launch.agents import Adopt, Agents
from seatrial.launch.command import Command
from seatrial.launch.conduct import caught_signals, conduct


class UnkillableProcessDouble:
    """A process in state D: signals do nothing, and who waits without a deadline waits for ever."""

    pid = 4242

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "would wait for ever"
        raise subprocess.TimeoutExpired("agent", timeout)


def test_an_agent_that_outlives_its_kill_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(agents: Agents, commands: tuple[Command, ...], folder: Path, *others: Any) -> None:
        agents.processes[0] = UnkillableProcessDouble()  # type: ignore[assignment]

    monkeypatch.setattr(Agents, "start", start)
    monkeypatch.setattr(Server, "serve", lambda *arguments: None)
    events: list[dict[str, Any]] = []
    conduct(A_JOB, tmp_path, events.append, [])
    note, end = [event for event in events if event["src"] == "launch"]
    assert (note["severity"], end["kind"]) == ("warn", "end")
    assert "node 0: process 4242" in note["text"]


def test_our_own_failure_closes_the_server_and_ends_the_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Agents] = []

    def ends(agents: Agents) -> list[tuple[int, str]]:
        ended.append(agents)
        return []

    def breaks(agents: Agents, commands: tuple[Command, ...], folder: Path, *others: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(Agents, "start", breaks)
    monkeypatch.setattr(Agents, "end", ends)
    events: list[dict[str, Any]] = []
    with pytest.raises(OSError, match="no more processes"):
        conduct(A_JOB, tmp_path, events.append, [])
    assert len(ended) == 1
    assert [event["kind"] for event in events] == ["run"], "what was asked is known to the report"


def test_without_a_free_port_the_report_still_knows_what_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*arguments: Any) -> Server:
        raise SeatrialError("no free port")

    monkeypatch.setattr(module, "Server", refuses)
    events: list[dict[str, Any]] = []
    with pytest.raises(SeatrialError):
        conduct(A_JOB, tmp_path, events.append, [])
    assert [event["kind"] for event in events] == ["run"]


class DriverDouble:
    """Has started nothing, and counts how often it is told to kill."""

    killed = 0

    def start(self, commands: Sequence[Command], folder: Path, caught: Sequence[int], adopt: Adopt) -> None:
        return None

    def news(self) -> tuple[int, str]:
        return 3, "gone"

    def kill(self) -> None:
        self.killed += 1

    def end(self) -> list[tuple[int, str]]:
        return []


def test_each_signal_is_told_once_and_the_second_kills() -> None:
    driver = DriverDouble()
    caught: list[int] = []
    news = module._between(driver, caught)
    assert news() == (3, "gone")
    caught.append(signal.SIGINT)
    assert (news(), driver.killed) == ("SIGINT", 0)
    assert news() == (3, "gone")
    caught.append(signal.SIGTERM)
    assert (news(), driver.killed) == ("SIGTERM", 1)


def test_after_the_second_signal_a_third_ends_us() -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    try:
        with caught_signals() as caught:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            assert (caught, told) == ([signal.SIGTERM] * 2, [])
            os.kill(os.getpid(), signal.SIGTERM)
            assert (caught, told) == ([signal.SIGTERM] * 2, [signal.SIGTERM])
    finally:
        signal.signal(signal.SIGTERM, before)
