"""What the storage check makes of its figures. Pure: no torch, no file.

The ranks of a node share what they write to, so a node is judged, and never a rank for its neighbour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seatrial.checks._speed_judge import Words, judge_speeds, slowest_first
from seatrial.checks._storage_folders import judge_folders, node_culprit
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.figures import Fact, Figure
from seatrial.verdict.findings import Finding, Judged, Limit, Ruling
from seatrial.verdict.statistics import Rates, compare_rates, median

if TYPE_CHECKING:
    from seatrial.checks.storage import Params

__all__ = ["QUICK_FSYNC_MS", "judge", "suspects"]

QUICK_FSYNC_MS = 5.0
"""Appends that take no longer than this count as equal in a fleet: no saving of a checkpoint waits for them."""
_EXACTLY = Limit(value=0, unit="1", origin="exact")


def suspects(evidence: Evidence, params: Params) -> tuple[int, ...]:
    """One rank of each node that is slower than its fleet, and of a typical node to compare with."""
    return slowest_first(rates for _, _, rates in _groups(evidence))


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Any wrong byte fails, and so does a named folder that cannot be used; then space, sharing, and speeds."""
    parts = [_judge_bytes(evidence), judge_folders(evidence, params), _judge_users(evidence, params)]
    for what, variant, rates in _groups(evidence):
        shares = {
            figure.rank: figure.value
            for figure in evidence.figures
            if (figure.name, figure.stage) == ("cpu_share", "repeat") and figure.rank is not None
        }
        parts += [_of_node(evidence, part) for part in judge_speeds(rates, _words(evidence, what, variant), shares)]
    return Ruling(
        findings=tuple(finding for part in parts for finding in part.findings),
        judged=tuple(entry for part in parts for entry in part.judged),
        absent=(*_absent(evidence), *(name for part in parts for name in part.absent)),
        unjudged=tuple(what for part in parts for what in part.unjudged) + tuple(_cut(evidence)),
    )


def _absent(evidence: Evidence) -> Iterator[str]:
    """What a rank did not tell, although it had a folder, room in it and no trouble."""
    if not evidence.asked:
        yield "any rank that finished"
    told = {(figure.rank, figure.name) for figure in evidence.figures if figure.stage in ("measure", "look")}
    facts = {(fact.rank, fact.name) for fact in evidence.facts if fact.stage != "repeat"}
    without_room = _without_room(evidence)
    for rank in evidence.asked:
        if (rank, "refused") in facts or (rank, "trouble") in facts:
            continue
        if (rank, "folder") not in facts or (rank, "needs") not in facts:
            yield f"the folder of rank {rank}"
        elif rank not in without_room:
            for name in ("fsync_ms", "write_gbps", "read_gbps", "wrong_bytes"):
                if (rank, name) not in told:
                    yield f"{name} of rank {rank}"


def _cut(evidence: Evidence) -> Iterator[str]:
    """Parts that a slow disk did not finish in their time."""
    seen: dict[str, list[Fact]] = {}
    for fact in evidence.facts:
        if fact.name == "cut" and fact.stage != "repeat":
            seen.setdefault(fact.value["what"], []).append(fact)
    for what, facts in seen.items():
        first = facts[0].value
        unit = "appends" if what == "append" else "bytes"
        more = f" and of {len(facts) - 1} other ranks" if len(facts) > 1 else ""
        yield f"storage: {what} ended after {first['done']} of {first['of']} {unit} of rank {facts[0].rank}{more}"


def _judge_bytes(evidence: Evidence) -> Ruling:
    judged = tuple(
        Judged(figure=figure, limit=_EXACTLY, passed=figure.value == 0)
        for figure in evidence.figures
        if figure.name == "wrong_bytes"
    )
    folders = {fact.rank: fact.value["path"] for fact in evidence.facts if fact.name == "folder"}
    wrong: dict[int, Any] = {}
    for entry in judged:
        if not entry.passed and entry.figure.rank is not None:
            wrong[entry.figure.rank] = {"count": int(entry.figure.value), "first_offset": None}
    for fact in evidence.facts:
        if fact.name == "wrong_bytes" and fact.rank is not None:
            wrong[fact.rank] = fact.value
    findings = tuple(
        Finding(
            severity="fail",
            check="storage",
            what=f"a file of rank {rank} in {folders.get(rank, 'its folder')} holds other bytes than were written",
            culprit=node_culprit(evidence, (evidence.ranks[rank].node,)),
            measured=f"{seen['count']} wrong bytes, the first at offset {seen['first_offset']}",
            limit=_EXACTLY,
            action="use nothing that is stored there; look at the node's kernel log and at the health of its storage.",
        )
        for rank, seen in sorted(wrong.items())
    )
    return Ruling(findings=findings, judged=judged)


def _without_room(evidence: Evidence) -> set[int]:
    """The ranks that had too little space to write."""
    needs = {fact.rank: fact.value for fact in evidence.facts if fact.name == "needs"}
    keys = {"free_bytes": "bytes", "free_inodes": "inodes"}
    return {
        figure.rank
        for figure in evidence.figures
        if figure.name in keys
        and figure.rank is not None
        and figure.rank in needs
        and figure.value < needs[figure.rank][keys[figure.name]]
    }


def _judge_users(evidence: Evidence, params: Params) -> Ruling:
    """The user's limits: what a node did with all its ranks and all other nodes at work. That is what was asked."""
    findings, judged, absent = [], [], []
    for name, variant, value, unit in (
        ("write_gbps", "", params.min_write_gbps, "GB/s"),
        ("read_gbps", "cold", params.min_read_gbps, "GB/s"),
        ("read_gbps", "warm", params.min_read_gbps, "GB/s"),
        ("fsync_ms", "p99", params.max_fsync_ms, "ms"),
    ):
        if value is None:
            continue
        key = f"{'max' if unit == 'ms' else 'min'}_{name}"
        limit = Limit(value=value, unit=unit, origin=f"user storage.{key}")
        figures = _slowest_append(evidence, variant) if unit == "ms" else _together(evidence, name, variant)
        for figure in figures:
            passed = figure.value <= value if unit == "ms" else figure.value >= value
            node = figure.node or ""
            if passed and variant == "warm" and not _in_memory(evidence, node):
                absent.append(f"read_gbps of {node} from its storage: the page cache kept the file")
                continue
            judged.append(Judged(figure=replace(figure, rank=None), limit=limit, passed=passed))
            if not passed:
                findings.append(_slow(evidence, figure, limit))
    return Ruling(findings=tuple(findings), judged=tuple(judged), absent=tuple(absent))


def _slow(evidence: Evidence, figure: Figure, limit: Limit) -> Finding:
    what = {"write_gbps": "writes too slowly", "read_gbps": "reads too slowly", "fsync_ms": "is too slow in fsync"}
    return Finding(
        severity="fail",
        check="storage",
        what=f"node {figure.node} {what[figure.name]}, all its ranks at work",
        culprit=node_culprit(evidence, (figure.node or "",)),
        measured=f"{figure.value:.3g} {figure.unit}",
        limit=limit,
        action="look at its disks or at its way to the file server, and at who else uses them.",
    )


def _in_memory(evidence: Evidence, node: str) -> bool:
    """Whether the folder of a rank of that node is: then the page cache is all the storage that there is."""
    return any(
        evidence.ranks[fact.rank].node == node and bool(fact.value["in_memory"])
        for fact in evidence.facts
        if fact.name == "folder" and fact.rank is not None
    )


def _groups(evidence: Evidence) -> Iterator[tuple[str, str, Rates]]:
    """What may be compared: one figure of nodes on one kind of file system. A node stands under its first rank."""
    kinds = {fact.rank or 0: fact.value["kind"] for fact in evidence.facts if fact.name == "folder"}
    for name, variant in (("write_gbps", ""), ("read_gbps", "cold"), ("read_gbps", "warm"), ("fsync_ms", "median")):
        if name == "fsync_ms":
            figures = [_per_second(figure) for figure in _slowest_append(evidence, variant)]
        else:
            figures = _together(evidence, name, variant)
        again = [
            _per_second(figure) if name == "fsync_ms" else figure
            for figure in evidence.figures
            if (figure.name, figure.variant, figure.stage) == (name, variant, "repeat")
        ]
        groups: dict[str, list[Figure]] = {}
        for figure in (*figures, *again):
            if figure.rank is not None:
                groups.setdefault(kinds.get(figure.rank, ""), []).append(figure)
        for _, group in sorted(groups.items()):
            yield name, variant, compare_rates(group, own=(), device_type="cpu")


def _together(evidence: Evidence, name: str, variant: str) -> list[Figure]:
    """What the ranks of each node moved, all at once, as the figure of its first rank."""
    spans: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for fact in evidence.facts:
        if (fact.name, fact.stage) != ("moved", "measure") or fact.rank is None:
            continue
        if (f"{fact.value['what']}_gbps", fact.value["variant"]) == (name, variant):
            spans.setdefault(evidence.ranks[fact.rank].node, []).append((fact.rank, fact.value))
    figures = []
    for node, told in sorted(spans.items()):
        moved = [value for _, value in told]
        began = min(value["began_s"] for value in moved)
        span_s = max(value["began_s"] + value["seconds"] for value in moved) - began
        longest_s, sum_s = max(value["seconds"] for value in moved), sum(value["seconds"] for value in moved)
        # Clocks that disagree (two machines of one name) must not make anybody slow.
        seconds = max(longest_s, min(span_s, sum_s))
        size_bytes = sum(int(value["bytes"]) for value in moved)
        figures.append(
            Figure(
                check="storage",
                name=name,
                value=size_bytes / seconds / 1e9 if seconds > 0 else 0.0,
                unit="GB/s",
                better="high",
                rank=min(rank for rank, _ in told),
                variant=variant,
                size_bytes=size_bytes,
                node=node,
            )
        )
    return figures


def _slowest_append(evidence: Evidence, variant: str) -> list[Figure]:
    """Of each node that of its slowest rank, or of several the median, as the figure of its first rank."""
    found: dict[str, list[Figure]] = {}
    for figure in evidence.figures:
        if (figure.name, figure.variant, figure.stage) == ("fsync_ms", variant, "measure") and figure.rank is not None:
            found.setdefault(evidence.ranks[figure.rank].node, []).append(figure)
    pick = max if variant == "p99" else median
    return [
        replace(
            figures[0],
            value=float(pick([figure.value for figure in figures])),
            rank=min(figure.rank for figure in figures if figure.rank is not None),
            node=node,
        )
        for node, figures in sorted(found.items())
    ]


def _per_second(figure: Figure) -> Figure:
    rate = 1e3 / max(figure.value, QUICK_FSYNC_MS)
    return replace(figure, name="fsyncs_per_s", value=rate, unit="fsync/s", better="high")


def _words(evidence: Evidence, name: str, variant: str) -> Words:
    doing = {"write_gbps": "writing", "read_gbps": f"reading ({variant})", "fsync_ms": "appends with fsync"}[name]
    return Words(
        check="storage",
        figure=f"{name} {variant}".strip(),
        speed=f"the speed of {doing}",
        slow_in=f"slow in {doing}",
        alone="look at its disks or at its way to the file server, and at the options of its mount.",
        together="look for what else used its storage, and for what the nodes share on their way to it.",
        who=lambda rank: f"node {evidence.ranks[rank].node}",
        culprit=lambda rank: node_culprit(evidence, (evidence.ranks[rank].node,)),
    )


def _of_node(evidence: Evidence, ruling: Ruling) -> Ruling:
    """What was held under a node's first rank is the node's."""
    return replace(ruling, judged=tuple(_node_entries(evidence, ruling.judged)))


def _node_entries(evidence: Evidence, entries: Iterable[Judged]) -> Iterator[Judged]:
    for entry in entries:
        rank = entry.figure.rank
        node = entry.figure.node if rank is None else evidence.ranks[rank].node
        yield replace(entry, figure=replace(entry.figure, rank=None, node=node))
