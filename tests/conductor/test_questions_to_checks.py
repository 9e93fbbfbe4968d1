"""The events by which the conductor asks a check how it goes on: while the check thinks, nobody is heard."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from seatrial.conductor.config import TrialConfig
from seatrial.conductor.steps import StepPlan
from seatrial.conductor.trial_conductor import TrialConductor

_LARGE = ([1] * 2_400_000, {"a": [{"b": [1] * 30}] * 4_000}, "x" * 30_000_000)


@pytest.mark.parametrize("value", _LARGE, ids=["a list", "nested", "a text"])
def test_one_large_entry_counts_as_what_is_in_it(value: object) -> None:
    """A check thought 17 s about one of eight ranks."""
    asked = _facts_that_a_check_is_asked_by([[{"value": 1}], [{"value": value}], [{"value": 2}]])
    assert asked == [{"value": 2}]


def test_the_newest_entries_of_any_size_are_kept() -> None:
    entries = [[{"value": [number] * 9_000}] for number in range(100)]
    asked = _facts_that_a_check_is_asked_by(entries)
    assert asked == [fact for facts in entries[-11:] for fact in facts]


def test_entries_of_another_step_are_not_kept() -> None:
    """By those of a step that has ended a rank would choose with whom others are compared."""
    for late in ({"step": 1}, {"step": -1}):
        assert _facts_that_a_check_is_asked_by([[{"value": 1}], [{"value": 2}]], late=late) == [{"value": 1}]


def _config(
    nodes: int,
    nproc_per_node: int,
    suspects: Callable[[str, list[dict[str, Any]]], tuple[int, ...]],
    checks: Sequence[str] = ("compute",),
) -> TrialConfig:
    return TrialConfig(
        run="r",
        nodes=nodes,
        nproc_per_node=nproc_per_node,
        env={},
        steps=tuple(StepPlan(check=check, scope="alone") for check in checks),
        deadline_s=600.0,
        device="cpu",
        backend="gloo",
        suspects=suspects,
    )


def _facts_that_a_check_is_asked_by(
    sent: list[list[dict[str, Any]]], *, late: dict[str, Any] | None = None
) -> list[Any]:
    """``late``: fields of the last facts that differ."""
    asked: list[Any] = []

    def suspects(check: str, events: list[dict[str, Any]]) -> tuple[int, ...]:
        asked.extend(fact for event in events for fact in event.get("facts", ()))
        return ()

    conductor = TrialConductor(
        _config(1, 1, suspects),
        0.0,
    )
    conductor.join(0, 0.1)
    header = {"run": "r", "src": "rank0.0", "t": 1.0, "gen": 0, "rank": 0, "step": 0}
    facts: list[dict[str, Any]] = [{"kind": "facts", "facts": facts} for facts in sent]
    facts[-1] |= late or {}
    done: dict[str, Any] = {"kind": "done", "seconds": 0.1, "share": {}}
    begin: dict[str, Any] = {"kind": "rank", "node_rank": 0, "local_rank": 0}
    for number, message in enumerate([begin, *facts, done]):
        conductor.message(0, {**header, **message, "seq": number}, 1.0)
    return asked


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

    conductor = TrialConductor(
        _config(2, 1, suspects, ("compute", "memory")),
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
            say(0, "facts", step=step, facts=[{"name": "x", "value": number} for number in range(333)])
        last.append(next(numbers) - 1)
        say(1, "facts", step=step, facts=[{}] * 100)
        with pytest.raises(TypeError):
            say(1, "facts", step=step, facts=5)
        for rank in range(2):
            say(rank, "done", step=step, seconds=0.1, share={})
    honest = {("rank0.0", "rank"): 1, ("rank1.0", "rank"): 1, ("rank1.0", "facts"): 100}
    assert asked == [{**honest, ("rank0.0", "facts"): 100 * 333}] * 2
    assert newest == last


def test_the_ranks_of_one_host_share_the_values_that_a_check_thinks_about() -> None:
    """By 100,000 values of each of 8 ranks a check thought for 5 s."""
    asked: list[Counter[str]] = []

    def suspects(check: str, events: list[dict[str, Any]]) -> tuple[int, ...]:
        asked.append(Counter(event["src"] for event in events for _ in event.get("facts", ())))
        return ()

    conductor = TrialConductor(_config(3, 4, suspects), 0.0)
    for node, place in enumerate(("10.0.0.1", "10.0.0.1", "10.0.0.2")):
        conductor.join(node, 0.1, place)
    numbers = itertools.count()

    def say(rank: int, kind: str, **values: Any) -> None:
        header = {"kind": kind, "run": "r", "src": f"rank{rank}.0", "seq": next(numbers), "t": 1.0}
        conductor.message(rank // 4, {**header, "gen": 0, "rank": rank, **values}, 1.0)

    for rank in range(12):
        say(rank, "rank", node_rank=rank // 4, local_rank=rank % 4)
    for rank in range(12):
        for _ in range(60):
            say(rank, "facts", step=0, facts=[{"name": "x", "value": 1}] * 200)
    for rank in range(12):
        say(rank, "done", step=0, seconds=0.1, share={})
    (num_facts,) = asked
    one, other = (sum(num_facts[f"rank{rank}.0"] for rank in ranks) for ranks in (range(8), range(8, 12)))
    assert 24_000 < one <= 34_000, "three values each"
    assert 24_000 < other <= 34_000
