"""Trials of a whole level on GPUs: evidence of each of its checks, made up by the tests of their judges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from checks.simulated_hosts import host_fleet, inventory_fleet
from checks.simulated_network import network_evidence
from checks.simulated_training import trained
from checks.test_check_memory import fleet, reading, taken
from checks.test_collectives_judge import SMALL, healthy
from event_streams import Stream, on_gpus
from report.check_scenes import TWO, add_check, diagnosed, formed

from seatrial.checks import registry
from seatrial.checks.training.params import recipe_for
from seatrial.devices.state import NodeWindow
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Measurement
from seatrial.plan.model import Plan
from seatrial.plan.plan_reader import read_plan

_RANKS = range(4)
_SPEEDS = {"bf16": 690.0, "fp16": 700.0, "fp32": 51.0}


def trial_of_level(*, skip: Collection[str] = (), slow: Collection[int] = (), seen: NodeWindow | None = None) -> Stream:
    """Return a trial of the level quick: two nodes with two GPUs each, healthy but for the ranks that compute slowly.

    ``skip``: checks that the person took out; ``seen``: what the devices of the second node counted in training.
    """
    plan = read_plan("quick", schemas=registry.schemas(), scopes=registry.scopes(), skip=tuple(skip))
    typed = ("--on", "ssh", "--hosts", ",".join(TWO), *(word for check in skip for word in ("--skip", check)))
    stream = on_gpus(Stream(len(_RANKS), nodes=2, plan=plan), *typed)
    for check in plan.checks:
        add_check(stream, check, _evidence(plan, check, slow, seen))
    return stream.close()


def _evidence(plan: Plan, check: str, slow: Collection[int], seen: NodeWindow | None) -> Evidence:
    made: Mapping[str, Callable[[], Evidence]] = {
        "network": partial(network_evidence, 2, hostnames=TWO),
        "diagnostics": partial(diagnosed, seen),
        "inventory": partial(inventory_fleet, 2, 2),
        "host": partial(host_fleet, 2, 2),
        "compute": partial(_computed, slow),
        "memory": partial(_copied, plan),
        "bootstrap": partial(formed, len(_RANKS)),
        "collectives": partial(_communicated, plan),
        "training": partial(_trained, plan),
    }
    return made[check]()


def _computed(slow: Collection[int]) -> Evidence:
    """Ranks in ``slow`` reach too little with all ranks, and again alone."""
    entries = list[Measurement]()
    for stage in ("measure", "repeat") if slow else ("measure",):
        for rank in _RANKS:
            entry = partial(Measurement, check="compute", rank=rank, stage=stage)
            for dtype, tflops in _SPEEDS.items():
                share = 0.62 if rank in slow and dtype == "bf16" else 1 + rank / 100
                entries.append(entry(name="tflops", variant=dtype, unit="TFLOP/s", value=tflops * share))
            for variant in (*_SPEEDS, "convolution"):
                entries.append(entry(name="wrong_elements", variant=variant, unit="1", better="low", value=0.0))
    return Evidence(ranks={}, asked=(), measurements=tuple(entries), facts=())


def _copied(plan: Plan) -> Evidence:
    patterns = plan.params("memory", registry.load("memory").params).patterns
    evidence = fleet([3000.0, 3010.0, 2990.0, 3005.0], device_type="cuda", facts=[taken(rank) for rank in _RANKS])
    speeds = [entry for entry in evidence.measurements if entry.name != "wrong_words"]
    exact = [reading("wrong_words", 0, rank, pattern) for rank in _RANKS for pattern in patterns]
    return replace(evidence, measurements=(*speeds, *exact))


def _communicated(plan: Plan) -> Evidence:
    params = plan.params("collectives", registry.load("collectives").params)
    return healthy(len(_RANKS), replace(SMALL, cpu_sizes=params.gpu_sizes))


def _trained(plan: Plan) -> Evidence:
    params = plan.params("training", registry.load("training").params)
    losses = tuple(2.3 * 0.95**step for step in range(params.max_steps))
    return trained(len(_RANKS), key=recipe_for(params, len(_RANKS))[1], losses=losses, accuracy=0.97)
