"""The events by which the conductor asks a check how it goes on: while the check thinks, nobody is heard."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from seatrial.conductor.config import TrialConfig
from seatrial.conductor.steps import StepPlan
from seatrial.conductor.trial_conductor import TrialConductor


def test_a_check_is_asked_by_a_bounded_number_of_entries_of_each_rank() -> None:
    asked: list[Counter[tuple[str, str]]] = []
    newest = []

    def suspects(check: str, events: list[dict[str, Any]]) -> tuple[int, ...]:
        seen: Counter[tuple[str, str]] = Counter()
        for event in events:
            if "src" in event:
                seen[event["src"], event["kind"]] += len(event.get("facts", "1"))
        asked.append(seen)
        newest.append(max(event["seq"] for event in events if event["kind"] == "facts" and event["src"] == "rank0.0"))
        return ()

    steps = (StepPlan(check="compute", scope="alone"), StepPlan(check="memory", scope="alone"))
    conductor = TrialConductor(
        TrialConfig(
            run="r",
            nodes=2,
            nproc_per_node=1,
            env={},
            steps=steps,
            deadline_s=600.0,
            device="cpu",
            backend="gloo",
            suspects=suspects,
        ),
        0.0,
    )
    numbers = itertools.count()

    def say(rank: int, kind: str, **values: Any) -> None:
        header = {"kind": kind, "run": "r", "src": f"rank{rank}.0", "seq": next(numbers), "t": 1.0}
        conductor.message(rank, {**header, "gen": 0, "rank": rank, **values}, 1.0)

    for node in range(2):
        conductor.join(node, 0.1)
    for rank in (0, 0, 0, 1):
        say(rank, "rank", node_rank=rank, local_rank=0)
    last = []
    for step in range(2):
        for _ in range(300):
            say(0, "facts", step=step, facts=[{}] * 100)
        last.append(next(numbers) - 1)
        say(1, "facts", step=step, facts=[{}] * 100)
        with pytest.raises(TypeError):
            say(1, "facts", step=step, facts=5)
        for rank in range(2):
            say(rank, "done", step=step, seconds=0.1, share={})
    honest = {("rank0.0", "rank"): 1, ("rank1.0", "rank"): 1, ("rank1.0", "facts"): 100}
    assert asked == [{**honest, ("rank0.0", "facts"): 10_000}] * 2
    assert newest == last
