"""A joined agent that lies, in a simulated fleet: nobody else is named for it, and nothing that is missing PASSes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from conductor.simulated_agents import SimulatedFleet
from conductor.simulated_records import STEPS, Planted
from event_streams import event_of
from foreign_lines import line_of
from fuzz.harness import Target, count, explore
from fuzz.hostile_values import HOSTILE_TEXTS, RAW_NUMBERS, VALUES
from fuzz.oracle import may_pass
from hypothesis import strategies as st

from seatrial.checks.check import Check, Stage
from seatrial.conductor.actions import Actions
from seatrial.conductor.origin import OriginError
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Ruling
from seatrial.judge.conclude import conclude
from seatrial.protocol.wire import Decoder, encode

_NODES, _LIAR = 3, 1
_RUN = "simulated"
_NEXT = 777
"""A number that stands for the one that is due."""
_MOST_MESSAGE_BYTES = 1 << 19
"""The most that a conductor says because of a few lines of somebody else."""


@dataclass(frozen=True)
class _FakeParams:
    """A check of the fleet has none."""


class _Line(bytes):
    """A line that shows its beginning where it is shown."""

    def __repr__(self) -> str:
        return f"{bytes(self[:300])!r}, {len(self)} bytes"


def _fake_judge(evidence: Evidence, params: Any) -> Ruling:
    """Require a measurement of each rank that finished."""
    reported = {measurement.rank for measurement in evidence.measurements}
    return Ruling(absent=tuple(f"x of rank {rank}" for rank in evidence.asked if rank not in reported))


def _fake_load(name: str) -> Check:
    if name not in {step.check for step in STEPS}:
        raise KeyError(name)
    stages = tuple(Stage(name=step.stage, shares=step.shares) for step in STEPS if step.check == name)
    return Check(
        name=name,
        scope="world",
        params=_FakeParams,
        measure=lambda context, params: None,
        judge=_fake_judge,
        stages=stages,
    )


class _Fleet(SimulatedFleet):
    """One of its agents lies; all that the conductor says must be fit to be sent."""

    def lie(self, line: bytes) -> None:
        """Hand a line to the conductor and to the record, as a server would."""
        message = Decoder().line(line)
        count("control messages")
        if message is None:
            return
        if message.get("seq") == _NEXT:
            self._number(message)
        if message.get("step") == _NEXT:
            message["step"] = self.conductor._number
        before = len(self.record.refused)
        self.say(_LIAR, message)
        refused = self.record.refused[before:]
        is_member = _LIAR in self._members
        if is_member and "seq" in message and not any(isinstance(error, OriginError) for error in refused):
            self.record.events.append(message)

    def _number(self, message: dict[str, Any]) -> None:
        """Number the events as the liar's sources do, so that none seems lost."""
        agent = self._agents.get(_LIAR)
        sources = [agent.source, *(rank.source for rank in agent.ranks.values())] if agent else []
        for source in sources:
            if source._src == message.get("src"):
                message["seq"] = event_of(source, "any")["seq"]

    def _carry_out(self, actions: Actions) -> None:
        for event in actions.events:
            assert sum(map(len, encode(event))) < _MOST_MESSAGE_BYTES
        for _, message in actions.send:
            assert sum(map(len, encode(message))) < _MOST_MESSAGE_BYTES
        super()._carry_out(actions)


def _shapes(rng: random.Random) -> dict[str, Any]:
    """A message that an agent may send, about itself, its rank, or somebody else."""
    generation, step = rng.choice([0, 0, 0, 1]), rng.choice([_NEXT, _NEXT, 0, 3])
    rank = rng.choice([_LIAR, _LIAR, 0, 2, 7])
    src = rng.choice(
        [f"rank{rank}.{generation}", f"node{rank}", f"node{_LIAR}", f"rank{_LIAR}.{generation}", "conductor"]
    )
    event = {
        "run": _RUN,
        "src": src,
        "seq": rng.choice([_NEXT, _NEXT, _NEXT, 0, 1, 3, 40]),
        "t": 1_000.0,
        "gen": generation,
    }
    where = {**event, "step": step, "rank": rank}
    check = rng.choice(STEPS).check
    place = {"rank": rank, "check": check, "name": "x", "stage": "measure", "generation": generation}
    numbers = rng.choice([0.0, 5.0, 1e9]), rng.choice([0, 1, 10**9, 10**12])
    status = [rng.choice("RSTDZX"), *numbers, "collectives/meet", rng.choice([0.0, 5.0, 1e8])]
    shapes: list[dict[str, Any]] = [
        {"kind": "status", "ranks": {str(rank): status}},
        {"kind": "status", "ranks": {str(rank): status, str(_LIAR): status}},
        {"kind": "killed", "gen": generation},
        {**where, "kind": "done", "seconds": 0.1, "share": {}},
        {**where, "kind": "done", "seconds": 0.1, "share": {"store": {"host": "evil", "port": 1}}},
        {
            **where,
            "kind": "done",
            "seconds": 0.1,
            "share": {"x" * rng.choice([1, 1_000]): "y" * rng.choice([1, 700_000])},
        },
        {**where, "kind": "measurements", "measurements": [{**place, "value": 1.0, "unit": "1"}]},
        {**where, "kind": "facts", "facts": [{**place, "value": "00"}]},
        {
            **where,
            "kind": "error",
            "cause": rng.choice(["memory", "device", "fabric", "own", "request", "x" * 9_000]),
            "type": "RuntimeError",
            "message": "planted",
            "stack": "",
            "phase": rng.choice(["collectives/meet", "x" * 900_000]),
        },
        {
            **where,
            "kind": "exit",
            "code": rng.choice([0, 1, -9, -11, -6]),
            "ours": rng.random() < 0.5,
            "phase": "p" * rng.choice([1, 900_000]),
            "last_lines": [],
        },
        {
            **where,
            "kind": "stack",
            "state": "T",
            "wchan": "",
            "text": 'File "x", line 1 in y\n' * rng.choice([1, 20_000]),
        },
        {**where, "kind": "left", "pid": 1, "state": "D"},
        {**event, "kind": "node", "node": rank, "hostname": "n0", "address": "", "pid": 1, "cores": 1},
        {
            **where,
            "kind": "rank",
            "node": "n0",
            "node_rank": rank,
            "hostname": "n0",
            "local_rank": 0,
            "device": "d",
            "libraries": "",
        },
        {**event, "kind": "note", "severity": rng.choice(["info", "warn", "error"]), "text": "words"},
        {**event, "kind": "end"},
        {"kind": "signal", "number": rng.choice([15, None, "15"])},
        {**event, "kind": "step_end", "step": step, "outcome": "done", "seconds": 1.0},
        {
            **event,
            "kind": "trouble",
            "step": step,
            "seen": [{"rank": rank, "how": "dead", "phase": "", "waited_s": 0.0, "detail": ""}],
            "waiting": [],
        },
        {**event, "kind": "interrupted", "by": "nobody"},
        {"kind": "hello", "node_rank": rank, "nonce": "n"},
        {"kind": "welcome", "run": _RUN},
        {"kind": "heartbeat"},
    ]
    return rng.choice(shapes)


@st.composite
def _lies(draw: st.DrawFn) -> _Line:
    """One of those shapes, often with a field that is gone or as nobody expects it."""
    message = _shapes(random.Random(draw(st.integers(0, 2**32 - 1))))
    if draw(st.booleans()):
        key = draw(st.sampled_from(sorted(message)))
        how = draw(st.sampled_from(["value", "text", "number", "gone"]))
        if how == "gone":
            del message[key]
        elif how == "number":
            body = line_of({**message, key: "@@"}).split(b" ", 2)[2].rstrip(b"\n").decode()
            return _Line(line_of(body.replace('"@@"', draw(st.sampled_from(RAW_NUMBERS)))))
        else:
            message[key] = draw(VALUES) if how == "value" else draw(st.sampled_from(HOSTILE_TEXTS))
    return _Line(line_of(message))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    lies: list[tuple[float, _Line]]
    """Each at its second."""
    silent_rank: bool
    """The liar's own rank does nothing: its work is missing, whatever is said of it."""
    seed: int


_TRIALS = st.builds(
    _Trial,
    lies=st.lists(st.tuples(st.integers(4, 38).map(lambda tenths: tenths / 10), _lies()), max_size=14),
    silent_rank=st.sampled_from([False, False, False, True]),
    seed=st.integers(0, 9),
)


def _check(trial: _Trial) -> None:
    planted = (Planted(kind="absent", rank=_LIAR, at=3),) if trial.silent_rank else ()
    at_s = [(second, partial(_Fleet.lie, line=line)) for second, line in trial.lies]
    fleet = _Fleet(nodes=_NODES, seed=trial.seed, planted=planted, deadline_s=90.0, at_s=at_s)
    record = fleet.run()
    assert record.seconds < 90.0 + 3 * 45.0
    conclusion = conclude(record.events, load=_fake_load)
    if conclusion.verdict.status == "PASS":
        assert may_pass(record.events)
        assert not trial.silent_rank
    for finding in conclusion.findings:
        if finding.severity == "fail":
            assert _may_be_named(finding.culprit), finding


def _may_be_named(culprit: Culprit) -> bool:
    """The liar, or nobody: that all wait for one another (the fabric) is what a lie can make of it at worst."""
    return culprit.kind in ("fabric", "none") or set(culprit.ranks) <= {_LIAR} or "n1" in culprit.nodes


LIES = Target(name="control messages", inputs=_TRIALS, check=_check)


def test_without_a_lie_the_simulated_trial_passes() -> None:
    record = _Fleet(nodes=_NODES).run()
    assert conclude(record.events, load=_fake_load).verdict.status == "PASS"
    assert may_pass(record.events)


def test_some_lies_of_an_agent_harm_nobody_else() -> None:
    explore(LIES, 60)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_many_lies_of_an_agent_harm_nobody_else() -> None:
    explore(LIES, 3_500)
