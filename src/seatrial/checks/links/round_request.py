"""The round that the ranks measure next. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seatrial.checks.links.fabrics import BETWEEN_NODES, Fabric, costs, device_kind, fabrics
from seatrial.checks.links.observations import Answers, FabricObservations, observe, read_answers
from seatrial.checks.links.params import Params
from seatrial.checks.links.solver import Round
from seatrial.checks.links.solver import next_round as solver_round
from seatrial.checks.links.solver.rates import gather
from seatrial.evidence.evidence import Evidence


def next_round(evidence: Evidence, params: Params) -> tuple[tuple[int, ...], dict[str, Any]] | None:
    """Return the ranks that measure next and their request, ``given["round"]``; None if no round is left.

    The devices of all nodes measure side by side, because within a node they do not disturb other nodes. Between nodes
    one fabric measures at a time, after the devices.
    """
    if not_checked(evidence):
        return None
    answers = read_answers(evidence)
    inside, between = list[dict[str, Any]](), list[dict[str, Any]]()
    for fabric in fabrics(answers.evidence, params):
        observations = observe(answers, fabric)
        wanted = wanted_round(observations, fabric, answers)
        if wanted is not None:
            parts = between if fabric.name.startswith(BETWEEN_NODES) else inside
            parts.append(_part(wanted, fabric, observations))
    parts = inside or between[:1]
    if not parts:
        return None
    ranks = sorted({rank for part in parts for group in (part["pairs"] or part["groups"]) for rank in group})
    addresses = {str(rank): list(answers.pages[rank]) for rank in ranks if rank in answers.pages}
    return tuple(ranks), {"parts": parts, "addresses": addresses}


def not_checked(evidence: Evidence) -> str:
    """Return the reason why the ranks measured nothing; empty if they did."""
    # All ranks say their backend, so that none of them alone can keep the others from measuring.
    is_mpi = evidence.backend == "mpi" and any(fact.name == "not_checked" for fact in evidence.facts)
    return "MPI has no group before the world" if is_mpi else ""


def wanted_round(observations: FabricObservations, fabric: Fabric, answers: Answers) -> Round | None:
    """Return what the solver wants to measure next on a fabric: rates first, then each cost; None if nothing.

    It leaves out the ranks whose page nobody can read: no other one could meet them.
    """
    left_out = set(without_page(observations, fabric, answers))
    members = tuple(member for member in fabric.topology.members if member not in left_out)
    rounds = (
        solver_round(observations.with_cost(cost), replace(fabric.topology, members=members), fabric.limits)
        for cost in costs(device_kind(answers.evidence))
    )
    return next((wanted for wanted in rounds if wanted is not None), None)


def without_page(observations: FabricObservations, fabric: Fabric, answers: Answers) -> list[int]:
    """Return the members of a fabric that reported no address of a page, and that nobody has met."""
    lost = [member for member in fabric.topology.members if member not in answers.pages]
    met = observations.members if lost else frozenset()
    return [member for member in lost if member not in met]


def _part(wanted: Round, fabric: Fabric, observations: FabricObservations) -> dict[str, Any]:
    reference = gather(observations.rates, fabric.topology, fabric.limits).reference
    return {
        "fabric": fabric.name,
        "pairs": [list(pair) for pair in wanted.pairs],
        "groups": [sorted(group) for group in wanted.groups],
        "turns": wanted.turns,
        "at_once": wanted.at_once,
        "repeats": wanted.repeats,
        # The conductor does not ask the same twice.
        "unmet": len(observations.rates.unmet),
        # Above this rate a rank does not list its exchanges in a group; None: it lists all of them.
        "list_below_gbps": wanted.listed_below * reference if wanted.groups and reference else None,
    }
