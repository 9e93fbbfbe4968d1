"""Hostile facts of a rank: a judge does not fail, or all other evidence would be lost with it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
from checks.simulated_links import SimulatedCluster
from checks.simulated_training import SMOKE, a_batch, a_measurement, trained
from checks.test_collectives_judge import SMALL, corrupted
from checks.test_judge_held_up import counted
from fuzz.harness import Target, count, explore
from fuzz.hostile_values import HOSTILE_TEXTS, VALUES
from hypothesis import strategies as st

from seatrial.checks import registry
from seatrial.checks.links.params import Params
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Fact, Measurement

_NUMBERS = [0.0, -1.0, 1e-300, 1e308, -1e308, float("nan"), float("inf"), float("-inf")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The evidence that a check judges."""

    check: str
    params: Any
    evidence: Evidence = field(repr=False)
    spoiled: tuple[Fact | Measurement, ...] = ()


def _links(cluster: SimulatedCluster) -> Scene:
    evidence, params = cluster.evidence(), Params()
    next_round = registry.load("links").next_round
    assert next_round is not None
    while (asked := next_round(evidence, params)) is not None:
        evidence = cluster.answer(evidence, asked[1])
    return Scene(check="links", params=params, evidence=evidence)


def _training(evidence: Evidence, *more: Fact) -> Scene:
    return Scene(check="training", params=SMOKE, evidence=replace(evidence, facts=(*evidence.facts, *more)))


def _known_answer() -> Scene:
    evidence = trained(2, batches={1: ("other", "other")}, compute_s={1: 0.05}, alone_s={0: 0.01, 1: 0.04})
    wrong = replace(a_measurement("wrong_elements", 3, 1, stage="repeat"), variant="convolution")
    places = Fact(check="training", name="wrong_values", value={"count": 3}, rank=1, stage="repeat")
    return _training(
        replace(evidence, measurements=(*evidence.measurements, wrong)), a_batch(0, "bits", stage="repeat"), places
    )


_WHERE = {"what": "loss", "step": 7, "seed": 1}

_SCENES: Mapping[str, Callable[[], Scene]] = {
    "links, slow": lambda: _links(SimulatedCluster(nodes=4, slow={(2, None): 0.1}, late_us={1: 9e3})),
    "links, groups": lambda: _links(SimulatedCluster(nodes=18, slow={(3, 1): 0.2}, resent={(5, 7): 0.05})),
    "links, dead": lambda: _links(SimulatedCluster(nodes=17, slow={(3, 1): 0.0, (1, 3): 0.0})),
    "links, late": lambda: _links(SimulatedCluster(nodes=17, largest_in_time=16)),
    "links, devices": lambda: _links(
        SimulatedCluster(nodes=2, nproc_per_node=3, device_type="cuda", slow={(0, 2): 0.5, (2, 0): 0.0})
    ),
    "training, held": lambda: _training(counted({}, {}, {"throttled_s": 6.0}, {"waited_s": 9.0})),
    "training, wrong": _known_answer,
    "training, given up": lambda: _training(
        trained(4),
        *(Fact(check="training", name="nonfinite", value={**_WHERE, "ranks": [2]}, rank=rank) for rank in range(4)),
    ),
    "collectives": lambda: Scene(
        check="collectives",
        params=SMALL,
        evidence=corrupted(4, {("all_gather", 1): [0, 1], ("broadcast", 2): [0], ("all_reduce", 3): []}),
    ),
    "collectives, lacking": lambda: Scene(
        check="collectives",
        params=SMALL,
        evidence=replace(
            corrupted(2, {}),
            facts=tuple(
                Fact(check="collectives", name="unsupported", value={"operation": "barrier", "reason": "no"}, rank=rank)
                for rank in (0, 1)
            ),
        ),
    ),
}
scene_of = cache(lambda name: _SCENES[name]())


@st.composite
def _hostile(draw: st.DrawFn) -> Scene:
    """Facts and measurements with something else in them than anybody tells, at any depth; some are gone."""
    scene: Scene = scene_of(draw(st.sampled_from(sorted(_SCENES))))
    facts, measurements = list(scene.evidence.facts), list(scene.evidence.measurements)
    names, spoiled = sorted({fact.name for fact in facts}), list[Fact | Measurement]()
    for _ in range(draw(st.integers(1, 4)) if facts else 0):
        # Of each kind of fact as often, however many there are.
        name = draw(st.sampled_from(names))
        at = draw(st.sampled_from([index for index, fact in enumerate(facts) if fact.name == name] or [0]))
        facts[at] = _spoiled(draw, facts[at])
        spoiled.append(facts[at])
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(measurements) - 1))
        measurements[at] = _changed(draw, measurements[at])
        spoiled.append(measurements[at])
    if draw(st.booleans()):
        first = draw(st.integers(0, len(measurements) - 1))
        del measurements[first : first + draw(st.sampled_from([1, 5, 50]))]
    evidence = replace(scene.evidence, facts=tuple(facts), measurements=tuple(measurements))
    evidence = replace(evidence, device_type=draw(st.sampled_from(["cpu", "cuda", "", "tpu"])))
    return replace(scene, evidence=evidence, spoiled=tuple(spoiled))


def _spoiled(draw: st.DrawFn, fact: Fact) -> Fact:
    value = copy.deepcopy(fact.value)
    place, how = value, draw(st.sampled_from(["all", "entry", "entry", "entry", "gone", "rank"]))
    if how == "rank":
        return replace(fact, rank=draw(st.sampled_from([None, 0, 1, 99, -1])))
    if how == "all" or not isinstance(value, dict) or not value:
        return replace(fact, value=draw(VALUES))
    assert isinstance(value, dict)
    key: Any = draw(st.sampled_from(sorted(value)))
    while isinstance(place[key], list) and place[key] and draw(st.booleans()):
        place = place[key]
        key = draw(st.integers(0, len(place) - 1))
    if how == "gone":
        del place[key]
    else:
        place[key] = draw(VALUES | st.sampled_from(HOSTILE_TEXTS) | st.sampled_from([0, -1, 1e-300, 1e308, 2**62]))
    return replace(fact, value=value)


def _changed(draw: st.DrawFn, measurement: Measurement) -> Measurement:
    where = draw(st.sampled_from(["value", "value", "value", "rank", "peer", "stage", "step"]))
    if where == "value":
        return replace(measurement, value=draw(st.sampled_from(_NUMBERS)))
    if where == "stage":
        return replace(measurement, stage=draw(st.sampled_from(["measure", "repeat", "round 1", "round 2", "x"])))
    number: Any = draw(st.sampled_from([None, 0, 1, 99, -1]))
    return replace(measurement, **{where: number})


def _judge(scene: Scene) -> None:
    count("judges")
    check = registry.load(scene.check)
    for ask in (check.suspects, check.next_round):
        if ask is not None:
            ask(scene.evidence, scene.params)
    ruling = check.judge(scene.evidence, scene.params)
    assert {rank for finding in ruling.findings for rank in finding.culprit.ranks} <= scene.evidence.ranks.keys()


JUDGES = Target(name="judges", inputs=_hostile(), check=_judge)


def test_some_hostile_facts_are_judged() -> None:
    explore(JUDGES, 200)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_many_hostile_facts_are_judged() -> None:
    explore(JUDGES, 2_500)
