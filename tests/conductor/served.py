"""A server on real sockets in a thread, with the conductor of a trial."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from collections.abc import Collection, Iterator
from typing import Any

from conductor.stub_agent import RUN, TOKEN

from seatrial.conductor.clock import clock_s
from seatrial.conductor.config import TrialConfig
from seatrial.conductor.server import Server
from seatrial.conductor.steps import StepPlan
from seatrial.conductor.trial_conductor import TrialConductor
from seatrial.protocol.events import Source
from seatrial.protocol.wire import encode
from seatrial.report.program_display import ProgramDisplay

STEPS = (StepPlan(check="compute", scope="alone"), StepPlan(check="training", scope="world"))


class Served:
    """A server in a thread, and what it kept."""

    def __init__(self, nodes: int, steps: tuple[StepPlan, ...]) -> None:
        self.display = ProgramDisplay(io.StringIO(), io.StringIO(), prefix=True)
        self.events: list[dict[str, Any]] = []
        self.news: list[str | tuple[int, str]] = []
        self.server = Server("127.0.0.1", lambda node: TOKEN, self._keep, on_message=self.display.on_message)
        self.config = TrialConfig(
            run=RUN,
            nodes=nodes,
            nproc_per_node=2,
            steps=steps,
            deadline_s=60.0,
            env={},
            device="cpu",
            backend="gloo",
            suspects=lambda check, events: (),
        )
        conductor = TrialConductor(self.config, clock_s())
        arguments = (conductor, nodes, Source(RUN, "conductor"), self._on_idle)
        self.thread = threading.Thread(target=self.server.serve, args=arguments)

    def _on_idle(self, connected: Collection[int]) -> Any:
        return self.news.pop() if self.news else None

    def _keep(self, event: dict[str, Any]) -> None:
        encode(event)  # as a recorder does, which raises for what JSON does not know
        self.events.append(event)

    def over(self) -> None:
        """It has come to its own end."""
        self.thread.join(20.0)
        assert not self.thread.is_alive()
        assert self.own()[-1] == "end"

    def own(self) -> list[str]:
        """The conductor's own events, by kind."""
        return [event["kind"] for event in self.events if event.get("src") == "conductor"]

    def outcomes(self) -> list[str]:
        """How the steps ended."""
        return [event["outcome"] for event in self.events if event.get("kind") == "step_end"]

    def connect(self) -> socket.socket:
        """A stranger's connection."""
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=20.0)


@contextlib.contextmanager
def served(nodes: int = 1, steps: tuple[StepPlan, ...] = STEPS) -> Iterator[Served]:
    server = Served(nodes, steps)
    server.thread.start()
    try:
        yield server
    finally:
        server.news.append("the test is over")
        server.thread.join(20.0)
        server.display.close()
