"""What ranks share with later steps: no rank writes for another one, fills the values or holds up a step."""

from __future__ import annotations

from typing import Any

from seatrial.conductor.actions import Actions
from seatrial.conductor.config import State, TrialConfig
from seatrial.conductor.steps import StepPlan
from seatrial.conductor.trial_conductor import TrialConductor

_STORE = {"store": {"host": "10.0.0.1", "port": 12345}}


class _Trial:
    """A conductor with three nodes of one rank each, in its first step."""

    def __init__(self) -> None:
        steps = (
            StepPlan(check="inventory", scope="alone"),
            StepPlan(check="bootstrap", scope="bootstrap", stage="store", first_only=True, last_stage=False),
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


def test_the_first_rank_shares_little() -> None:
    trial = _Trial()
    for rank in range(3):
        trial.done(rank, 0)
    trial.done(0, 1, {**_STORE, "x": "a" * 2_000})
    assert trial.step()["given"] == {}
    assert len(trial.errors()) == 1
