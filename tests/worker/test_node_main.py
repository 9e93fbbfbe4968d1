"""The process of a node's steps: which checks it keeps, and which of them watch."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from seatrial.checks import registry
from seatrial.rank.node_context import NodeContext
from seatrial.worker.node_main import NodeSteps


@dataclass
class RecordingWatcher:
    """What it was asked to do."""

    name: str
    calls: list[str] = field(default_factory=list)

    def tick(self) -> None:
        self.calls.append(f"{self.name} tick")

    def begin(self, check: str, stage: str) -> None:
        self.calls.append(f"{self.name} begin {check}")

    def end(self) -> None:
        self.calls.append(f"{self.name} end")


def step(check: str, stage: str = "") -> dict[str, Any]:
    return {"check": check, "stage": stage, "params": {}, "gen": 0, "step": 0, "node": 0, "given": {}}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> NodeSteps:
    """Checks whose name begins with ``watch`` leave a watcher behind; all count their stages."""
    calls: list[str] = []

    def measure(context: NodeContext, params: Any) -> None:
        context.kept["stages"] = context.kept.get("stages", 0) + 1
        context.share(context.kept["stages"])
        name = context.step["check"]
        if name.startswith("watch") and context.watcher is None:
            context.watcher = RecordingWatcher(name, calls)

    monkeypatch.setattr(registry, "load", lambda name: SimpleNamespace(measure=measure, params=SimpleNamespace))
    events: list[Any] = []
    made = NodeSteps(events.append)
    made.calls, made.events = calls, events  # type: ignore[attr-defined]
    return made


def test_two_checks_watch_beside_one_another(steps: NodeSteps) -> None:
    for check in ("watch_a", "watch_b", "other", "watch_a"):
        steps.carry_out(step(check))  # type: ignore[arg-type]
    for watcher in steps.watchers:
        watcher.begin("compute", "")
        watcher.end()
    expected = ["watch_a begin compute", "watch_a end", "watch_b begin compute", "watch_b end"]
    assert steps.calls == expected  # type: ignore[attr-defined]


def test_a_check_keeps_its_context_for_its_own_stages_only(steps: NodeSteps) -> None:
    for check, stage in (("network", "listen"), ("network", "connect"), ("other", ""), ("network", "listen")):
        steps.carry_out(step(check, stage))  # type: ignore[arg-type]
    shared = [event["share"] for event in steps.events]  # type: ignore[attr-defined]
    assert shared == [[1], [2], [1], [1]], "sockets of a check that is over are closed"
