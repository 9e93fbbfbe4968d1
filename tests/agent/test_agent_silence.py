"""How an agent finds that its controller is silent."""

from __future__ import annotations

import os
import selectors
import socket
import time

import pytest

from seatrial.agent import supervisor
from seatrial.agent.supervisor import Agent, ControlConnection


def test_slow_work_of_its_own_hides_no_silent_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody in the path who takes a line now and then makes each round of its loop that slow."""
    monkeypatch.setattr(supervisor, "_PAUSED_S", 0.1)
    monkeypatch.setattr(supervisor, "CONDUCTOR_SILENT_S", 0.5)
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    os.write(write, b"work")
    control = ControlConnection(connection=ours, received=b"", tags_sent=None, tags_received=None)
    agent = Agent(control=control, address="127.0.0.1", node_rank=0, cores=1, folder=None)
    agent._selector.register(read, selectors.EVENT_READ, lambda: time.sleep(0.2))
    with theirs:
        assert agent.serve([]) == 3
    os.close(read)
    os.close(write)
