"""How much swap does each node use, and did it swap during the trial? Agents read /proc, before any rank starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.checks.check import Check, Rule
from seatrial.checks.shared.facts import has_fields
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Ruling
from seatrial.evidence.measurement import Measurement
from seatrial.rank.node_context import NodeContext

BEFORE, AFTER, OTHER = "before", "after", "another agent of this machine reports"
"""Names of the facts: two readings, and what the other agents of a machine say in place of them."""
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Deadline and limit of the check."""

    timeout_s: float = 10.0
    """Deadline of the first reading, in seconds."""
    max_used_gib: float = 1.0
    """Swap in use above which a node fails, GiB (2**30 bytes)."""

    def __post_init__(self) -> None:
        if self.max_used_gib < 0:
            raise ValueError("max_used_gib must be at least 0")


def rules(params: Params) -> tuple[Rule, ...]:
    """Return the limit on swap in use, and the one on pages that moved meanwhile."""
    return (
        Rule(
            measurement="swap_used",
            comparison="at most",
            value=params.max_used_gib,
            unit="GiB",
            origin="swap.max_used_gib",
        ),
        Rule(
            measurement="pages_swapped",
            condition="during the trial",
            comparison="exactly",
            value=0,
            unit="pages",
            origin="exact",
            severity="warn",
        ),
    )


def read_swap(root: Path = Path("/")) -> dict[str, int] | None:
    """Return bytes in use, and pages swapped in and out since boot; None where /proc does not say it."""
    sizes, counts = _numbers(root / "proc/meminfo"), _numbers(root / "proc/vmstat")
    try:
        used_bytes = (sizes["SwapTotal"] - sizes["SwapFree"]) * 1024
        return {"used_bytes": used_bytes, "pages_in": counts["pswpin"], "pages_out": counts["pswpout"]}
    except KeyError:
        return None


def _numbers(path: Path) -> dict[str, int]:
    try:
        lines = [line.replace(":", " ").split() for line in path.read_text(errors="replace").splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def measure(context: NodeContext, params: Params) -> None:
    """Report the first reading, and leave a watcher for the last one. Only one agent of each machine does that."""
    if not context.is_first_on_machine:
        context.fact(OTHER, True)
        return
    context.fact(BEFORE, read_swap())
    context.watcher = SwapWatch(context=context)


@dataclass(slots=True, kw_only=True)
class SwapWatch:
    """Reads once more at the end of the trial."""

    context: NodeContext

    def tick(self) -> None:
        """Do nothing: the kernel counts."""

    def begin(self, check: str, stage: str) -> None:
        """Do nothing: the steps are not told apart."""

    def end(self) -> None:
        """Report the last reading."""
        self.context.fact(AFTER, read_swap())


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Hold the larger reading of each node against the limit, and warn of pages that moved between the two."""
    return Ruling.merge(_of_node(evidence, params, node_rank) for node_rank in evidence.nodes)


def _of_node(evidence: Evidence, params: Params, node_rank: int) -> Ruling:
    name = evidence.nodes[node_rank]
    facts: dict[str, Any] = {fact.name: fact.value for fact in evidence.facts if fact.node_rank == node_rank}
    if OTHER in facts:
        return Ruling()
    before, after = facts.get(BEFORE), facts.get(AFTER)
    # Who reports it may lie, and what the judge cannot read must not end it.
    if not _is_reading(before) or not (after is None or _is_reading(after)):
        return Ruling(absent=(f"swap of {name}",))
    used_rule, moved_rule = rules(params)
    used_bytes = max(reading["used_bytes"] for reading in (before, after) if reading)
    judged = [used_rule.judge(_measurement("swap_used", used_bytes / _GIB, "GiB", name))]
    if after:
        moved = sum(after[way] - before[way] for way in ("pages_in", "pages_out"))
        judged.append(moved_rule.judge(_measurement("pages_swapped", moved, "pages", name)))
    return Ruling(
        findings=tuple(_findings(name, params, judged)),
        judged=tuple(judged),
        unjudged=() if after else (f"swap: whether {name} swapped during the trial is not known",),
    )


def _is_reading(value: Any) -> bool:
    return has_fields(value, used_bytes=int, pages_in=int, pages_out=int)


def _measurement(name: str, value: float, unit: str, node: str) -> Measurement:
    return Measurement(check="swap", name=name, value=value, unit=unit, better="low", node=node)


def _findings(name: str, params: Params, judged: list[Any]) -> Iterator[Finding]:
    for rule, entry in zip(rules(params), judged, strict=False):
        if entry.passed:
            continue
        is_used = rule.measurement == "swap_used"
        yield Finding(
            severity=rule.severity,
            check="swap",
            what=f"node {name} has too much swap in use" if is_used else f"node {name} swapped during the trial",
            culprit=Culprit(kind="node", name=f"node {name}", nodes=(name,)),
            measured=f"{entry.measurement.value:.3g} {rule.unit}",
            limit=entry.limit,
            action="look at what uses the memory of that node, or turn swap off there (swapoff -a).",
        )


CHECK = Check(name="swap", scope="agents", params=Params, measure=measure, judge=judge, rules=rules, watches=True)
