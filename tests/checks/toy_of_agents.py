"""A check of agents in one file, as somebody adds it; ``test_new_check.py`` copies it into a copy of the package."""

from __future__ import annotations

import os
from dataclasses import dataclass

from seatrial.checks.check import Check, Stage
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Ruling
from seatrial.rank.node_context import NodeContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Limit of the check."""

    max_nodes: int = 100
    """Largest number of nodes."""
    timeout_s: float = 30.0
    """Deadline of each step, seconds."""


def measure(context: NodeContext, params: Params) -> None:
    """Share the process id, then report which nodes shared one with this node, and what was kept."""
    if context.stage == "share":
        context.kept["pid"] = os.getpid()
        context.share(context.node_rank, "x")
        return
    nodes = sorted(filter(str.isdecimal, context.given))
    context.fact("shared", {"nodes": nodes, "same_process": context.kept.get("pid") == os.getpid()})


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Fail each node that shared with too many nodes, or lost what it kept."""
    facts = {fact.node_rank: fact.value for fact in evidence.facts}
    findings = tuple(
        Finding(
            severity="fail",
            check="toy_of_agents",
            what=f"node {node} knows too many nodes",
            culprit=Culprit(kind="node", name=f"node {name}", nodes=(name,)),
        )
        for node, name in evidence.nodes.items()
        if node in facts and len(facts[node]["nodes"]) > params.max_nodes
    )
    absent = tuple(f"what node {node} knows" for node in evidence.nodes if not facts.get(node, {}).get("same_process"))
    return Ruling(findings=findings, absent=absent)


CHECK = Check(
    name="toy_of_agents",
    scope="agents",
    params=Params,
    measure=measure,
    judge=judge,
    stages=(Stage(name="share"), Stage(name="look")),
)
