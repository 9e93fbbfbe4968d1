"""As many device models, values or slow ranks as there are ranks: each judge ends in bounded time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from checks.simulated_hosts import host_fleet, inventory_fleet
from checks.simulated_training import SMOKE, trained
from checks.test_check_compute import evidence as computed
from checks.test_check_memory import ONE
from checks.test_check_memory import fleet as copied
from checks.test_collectives_judge import SMALL, healthy
from checks.test_judge_held_up import counted
from checks.test_storage_judge import NAMED
from checks.test_storage_judge import fleet as stored
from fuzz.harness import watched

from seatrial.checks import registry
from seatrial.evidence.evidence import Evidence

_MANY = 8_000
_SLOW_ALONE = {rank: 2.0 if rank % 2 else 20.0 for rank in range(_MANY)}
_ALL_ALONE = dict.fromkeys(range(_MANY), 0.5)


def _each_its_device(evidence: Evidence) -> Evidence:
    ranks = {rank: replace(record, device=f"model {rank}") for rank, record in evidence.ranks.items()}
    return replace(evidence, ranks=ranks)


def _on_one_node(evidence: Evidence) -> Evidence:
    ranks = {rank: replace(record, node="one", node_rank=0) for rank, record in evidence.ranks.items()}
    return replace(evidence, ranks=ranks)


def _inventory(key: str, value: Callable[[int], Any]) -> Evidence:
    return inventory_fleet(_MANY, 1, lambda node, local_rank, facts: facts.update({key: value(node)}))


def _hosts(key: str, value: Callable[[int], Any]) -> Evidence:
    return host_fleet(_MANY, 1, lambda node, local_rank, facts: facts.update({key: value(node)}))


def _slow() -> Evidence:
    """A sixth of the ranks is slow, alone too, and each has counters of its kernel."""
    slow = dict.fromkeys(range(_MANY // 6), 0.05)
    evidence = trained(_MANY, compute_s=slow, alone_s=dict.fromkeys(range(_MANY), 0.01) | slow)
    return replace(evidence, facts=(*evidence.facts, *counted(*({},) * _MANY).facts[-_MANY:]))


def _wrong() -> Evidence:
    """Each rank read something else back than it wrote to its own folder."""
    evidence = stored([[1.0]] * _MANY, own=range(_MANY))
    measurements = (replace(each, value=1) if each.name == "wrong_bytes" else each for each in evidence.measurements)
    return replace(evidence, measurements=tuple(measurements))


def _views() -> Evidence:
    """Each rank sees those before it: one range each, and together a square of ranks."""
    return stored([[1.0]] * _MANY, views={rank: [[0, rank]] for rank in range(_MANY)})


def _slow_again() -> Evidence:
    """A third of the ranks is slow with all ranks and alone, and each other one measured again, too."""
    slow = dict.fromkeys(range(0, _MANY, 3), 0.05)
    return trained(_MANY, compute_s=slow, alone_s=dict.fromkeys(range(_MANY), 0.01) | slow)


_STREAMS: Mapping[str, tuple[str, Any, Callable[[], Evidence]]] = {
    "training, models": ("training", SMOKE, lambda: _each_its_device(trained(_MANY))),
    "training, slow": ("training", SMOKE, _slow),
    "training, quotas": (
        "training",
        SMOKE,
        lambda: _on_one_node(counted(*({"throttled_s": 6.0 + rank / _MANY} for rank in range(_MANY)))),
    ),
    "training, bits": (
        "training",
        SMOKE,
        lambda: trained(_MANY, batches={rank: (f"{rank}", f"{rank + rank % 3 // 2}") for rank in range(_MANY)}),
    ),
    "training, groups": ("training", SMOKE, lambda: trained(_MANY, alike={rank: f"{rank}" for rank in range(_MANY)})),
    "inventory, models": ("inventory", None, lambda: _inventory("device", lambda rank: f"model {rank}")),
    "inventory, drivers": ("inventory", None, lambda: _inventory("driver", lambda rank: f"{rank}")),
    "inventory, devices": ("inventory", None, lambda: _inventory("visible", lambda rank: rank % 128)),
    "memory, models": ("memory", ONE, lambda: _each_its_device(copied([20.0] * _MANY, _ALL_ALONE, shares=_ALL_ALONE))),
    "memory, wrong": ("memory", ONE, lambda: copied([20.0] * _MANY, wrong=dict.fromkeys(range(_MANY), 1))),
    "compute, models": ("compute", None, lambda: _each_its_device(computed([700.0] * _MANY))),
    "collectives, silent": ("collectives", SMALL, lambda: replace(healthy(_MANY), measurements=())),
    "host, mtus": ("host", None, lambda: _hosts("mtu", lambda rank: rank if rank % 3 else 9000)),
    "host, names": ("host", None, lambda: _hosts("name", lambda rank: {"addresses": [f"a{rank}"], "own": None})),
    "storage, kinds": (
        "storage",
        NAMED,
        lambda: stored([[1.0]] * _MANY, kinds={node: f"kind {node}" for node in range(_MANY)}),
    ),
    "storage, wrong": ("storage", NAMED, _wrong),
    "storage, views": ("storage", replace(NAMED, shared="yes"), _views),
    "storage, views of own folders": ("storage", replace(NAMED, shared="no"), _views),
    "training, slow again": ("training", SMOKE, _slow_again),
    "memory, slow again": ("memory", ONE, lambda: copied([20.0, 2.0] * (_MANY // 2), _SLOW_ALONE, shares={})),
}


@pytest.mark.parametrize("name", _STREAMS)
def test_many_kinds_are_judged_in_bounded_time(name: str) -> None:
    check, params, make = _STREAMS[name]
    evidence, loaded = make(), registry.load(check)
    with watched(name):
        ruling = loaded.judge(evidence, params or loaded.params())
    assert ruling.findings or ruling.judged or ruling.absent or ruling.unjudged
