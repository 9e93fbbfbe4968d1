"""What ranks share with later steps: no rank writes for another one, fills the values or holds up a step."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.checks import registry
from seatrial.conductor.actions import Actions
from seatrial.conductor.config import State, TrialConfig
from seatrial.conductor.steps import StepPlan
from seatrial.conductor.trial_conductor import TrialConductor
from seatrial.rank.groups import is_of_store

_STORE = {"store": {"host": "10.0.0.1", "port": 12345}}


class _Trial:
    """A conductor with three nodes of one rank each, in its first step."""

    def __init__(self) -> None:
        steps = (
            StepPlan(check="inventory", scope="alone"),
            StepPlan(check="bootstrap", scope="bootstrap", stage="store", shares=is_of_store, last_stage=False),
            StepPlan(check="bootstrap", scope="bootstrap", stage="world"),
        )
        config = TrialConfig(
            run="r",
            nodes=3,
            nproc_per_node=1,
            env={},
            steps=steps,
            deadline_s=600.0,
            device="cpu",
            backend="gloo",
            suspects=lambda check, events: (),
        )
        self.conductor = TrialConductor(config, 0.0)
        self.events: list[Any] = []
        self.commands: list[Any] = []
        for node in range(3):
            self._perform(self.conductor.join(node, 0.1))
        for rank in range(3):
            self.say(rank, "rank", node_rank=rank, local_rank=0)

    def _perform(self, actions: Actions) -> None:
        self.events += actions.events
        self.commands += [command for _, command in actions.send]

    def say(self, rank: int, kind: str, **values: Any) -> None:
        header = {"kind": kind, "run": "r", "src": f"rank{rank}.0", "seq": len(self.events), "t": 1.0}
        self._perform(self.conductor.message(rank, {**header, "gen": 0, "rank": rank, **values}, 1.0))

    def done(self, rank: int, step: int, share: Any = None) -> None:
        self.say(rank, "done", step=step, seconds=0.1, share=share or {})

    def step(self) -> Any:
        """The last step, as a node gets it."""
        return [command for command in self.commands if command["kind"] == "step"][-1]

    def errors(self) -> list[str]:
        return [event["text"] for event in self.events if event["kind"] == "note" and event["severity"] == "error"]


def test_only_the_rank_that_is_asked_shares() -> None:
    trial = _Trial()
    for rank in range(3):
        trial.done(rank, 0)
    trial.done(2, 1, {"store": "elsewhere"})
    assert trial.conductor.state is State.STEP
    trial.done(0, 1, _STORE)
    trial.done(0, 1, {"store": "once more"})
    assert trial.step()["given"] == _STORE


_FALSE: dict[str, Any] = {
    "nothing": {},
    "no dictionary": ["x"],
    "too much": {**_STORE, "x": "a" * 2_000},
    "more": {**_STORE, "storage/key": "0" * 16},
    "another name": {"storage/key": "0" * 16},
    "no address": {"store": "elsewhere"},
    "a name": {"store": {"host": "node-1", "port": 1}},
    "an address and more": {"store": {**_STORE["store"], "x": [[[]]]}},
}


@pytest.mark.parametrize("share", _FALSE.values(), ids=_FALSE)
def test_a_false_share_of_the_first_rank_is_its_own_fault(share: Any) -> None:
    """All others would fail for it, over a network that never carried it."""
    trial = _Trial()
    for rank in range(3):
        trial.done(rank, 0)
    asked = trial.step()
    trial.done(0, 1, share)
    trial.done(0, 1, _STORE)
    assert trial.step() == asked
    (text,) = trial.errors()
    assert text.startswith("rank 0 on node 0 shares other values than bootstrap/store does, so the others cannot go on")


def test_each_stage_of_the_first_rank_says_what_it_shares() -> None:
    stages = {(name, stage.name): stage.shares for name in registry.names() for stage in registry.load(name).stages}
    forms = {key: form for key, form in stages.items() if form}
    key = {"storage/key": "0123456789abcdef"}
    assert {place: (form(_STORE), form(key)) for place, form in forms.items()} == {
        ("storage", "key"): (False, True),
        ("links", "store"): (True, False),
        ("bootstrap", "store"): (True, False),
    }
    for false in ("../../x", "0" * 15, "0" * 17, "0" * 16 + "\n", "\u0661" * 16, 7, None, ["0"] * 16):
        assert not any(form({"storage/key": false}) for form in forms.values())
    for port in (0, 65_536, True, "1", None):
        assert not any(form({"store": {"host": "10.0.0.1", "port": port}}) for form in forms.values())
