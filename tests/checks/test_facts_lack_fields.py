"""A fact that lacks a field, or holds something else in it, is damage: no judge fails, and none passes without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from checks.simulated_hosts import host_fleet, inventory_fleet
from checks.simulated_network import network_evidence
from checks.test_check_memory import ONE, taken
from checks.test_check_memory import fact as memory_fact
from checks.test_check_memory import fleet as memory_fleet
from checks.test_diagnostics_judge import HEALTHY, QUIET
from checks.test_storage_judge import NAMED
from checks.test_storage_judge import fact as storage_fact
from checks.test_storage_judge import fleet as storage_fleet
from fuzz.test_fuzz_judges import Scene, scene_of

from seatrial.checks import registry
from seatrial.checks.storage.forms import FORMS
from seatrial.checks.training.judge_data import is_data
from seatrial.devices.plain_json import to_json
from seatrial.devices.state import NodeState, NodeWindow
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Fact

_OTHERS: tuple[Any, ...] = (None, "x", -1, [], {}, [[1]])
_TOLERATED = (("contention", None), ("host", "has_loopback"))
"""Fact and field, None for all. Without ``contention`` nobody counts as held up by others: that excuses nobody, and
passes nobody. ``has_loopback`` is missing in runs that were recorded before it was measured; without a loopback
interface a later check hangs, which is a finding, too.
"""


def _scene(check: str, evidence: Evidence) -> Scene:
    return Scene(check=check, params=registry.load(check).params(), evidence=evidence)


def _storage() -> Scene:
    evidence = storage_fleet([[1.0, 1.0], [1.0, 1.0]])
    trouble = {"named": True, "folder": "/ckpt", "code": "EIO", "reason": "I/O error", "doing": "append"}
    more = (
        storage_fact("refused", 0, {"named": True, "folders": [["/ckpt", "EACCES", "permission denied"]]}, "token"),
        storage_fact("trouble", 1, trouble),
        storage_fact("cut", 1, {"what": "write", "done": 3, "of": 9}),
        storage_fact("wrong_bytes", 2, {"count": 3, "first_offset": 9}),
    )
    return Scene(check="storage", params=NAMED, evidence=replace(evidence, facts=(*evidence.facts, *more)))


def _memory() -> Scene:
    words = {"pattern": "0x55", "round": 1, "words": 2, "first_byte": 8, "last_byte": 24, "tested_bytes": 88}
    refused = {"what": "patterns", "free_bytes": 3 * 10**9, "refused_bytes": 10**9, "taken_bytes": 5, "reason": "no"}
    facts = [
        taken(0),
        memory_fact("wrong_words", 1, **words, expected="0x55", found="0x57"),
        memory_fact("refused", 1, **refused),
        memory_fact("no_room", 1, copy="device", needed_bytes=9, room_bytes=3),
    ]
    return Scene(check="memory", params=ONE, evidence=memory_fleet([20, 20], wrong={1: 2}, facts=facts))


def _diagnostics() -> Scene:
    state = to_json(NodeState(devices=(HEALTHY,), kernel_events=()))
    window = to_json(NodeWindow(check="compute", seconds=60, devices=(QUIET,), kernel_events=()))
    facts = tuple(
        Fact(check="diagnostics", name=name, value=value, node_rank=0)
        for name, value in (("before", state), ("window", window), ("after", state))
    )
    evidence = Evidence(ranks={}, asked=(), measurements=(), facts=facts, device_type="cuda", nodes={0: "gpu-00"})
    return _scene("diagnostics", evidence)


def _host() -> Scene:
    choice = {"value": "eth0", "taken": ["eth0"], "unknown": [], "has_own": True, "leaves_host": True}

    def choose(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        facts["chosen"] = {"GLOO_SOCKET_IFNAME": choice}

    return _scene("host", host_fleet(2, 2, choose))


_SCENES: Mapping[str, Callable[[], Scene]] = {
    "storage": _storage,
    "memory": _memory,
    "diagnostics": _diagnostics,
    "inventory": lambda: _scene("inventory", inventory_fleet(2, 2)),
    "host": _host,
    "network": lambda: _scene("network", network_evidence(3)),
    **{
        name: lambda name=name: scene_of(name)  # type: ignore[misc]
        for name in ("links, slow", "training, wrong", "training, held", "training, given up", "collectives")
    },
}


@pytest.mark.parametrize(
    "name", sorted(_SCENES.keys() - {"diagnostics"})
)  # there, fields at their defaults are left out
def test_a_fact_without_a_field_is_damage(name: str) -> None:
    made = _SCENES[name]()
    check = registry.load(made.check)
    fine = check.judge(made.evidence, made.params)
    for number, fact in _one_of_each_name(made.evidence):
        for key in fact.value if isinstance(fact.value, dict) else ():
            rest = {other: value for other, value in fact.value.items() if other != key}
            ruling = check.judge(_with(made.evidence, number, rest), made.params)
            is_known = any(finding.severity == "fail" for finding in ruling.findings)
            no_pass = {*ruling.absent, *ruling.unjudged} > {*fine.absent, *fine.unjudged}
            assert is_known or no_pass or {(fact.name, None), (fact.name, key)} & {*_TOLERATED}, (fact.name, key)


@pytest.mark.parametrize("name", _SCENES)
def test_no_judge_fails_over_what_a_field_holds(name: str) -> None:
    made = _SCENES[name]()
    check = registry.load(made.check)
    for number, fact in _one_of_each_name(made.evidence):
        keys = fact.value if isinstance(fact.value, dict) else ()
        for value in (*_OTHERS, *({**fact.value, key: other} for key in keys for other in _OTHERS)):
            evidence = _with(made.evidence, number, value)
            for ask in (check.suspects, check.next_round, check.judge):
                if ask is not None:
                    ask(evidence, made.params)


def _one_of_each_name(evidence: Evidence) -> Iterator[tuple[int, Fact]]:
    names = set[str]()
    for number, fact in enumerate(evidence.facts):
        if fact.name not in names:
            names.add(fact.name)
            yield number, fact


def _with(evidence: Evidence, number: int, value: Any) -> Evidence:
    spoiled = replace(evidence.facts[number], value=value)
    return replace(evidence, facts=(*evidence.facts[:number], spoiled, *evidence.facts[number + 1 :]))


@pytest.mark.parametrize(
    ("places", "readable"), [(["a"] * 100, True), (None, True), (["a"] * 1001, False), ([1], False)]
)
def test_no_more_places_are_read_than_a_way_has(places: object, readable: bool) -> None:
    assert FORMS["way"]({"folder": "/ckpt", "places": places}) is readable
    assert is_data({"fault": "", "digest": "d", "places": places}) is readable
