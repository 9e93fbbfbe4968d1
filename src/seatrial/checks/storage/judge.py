"""The judge of the storage check. Pure: no torch, no file.

The ranks of a node share its storage, so the judge names nodes, and never a rank for its neighbor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seatrial.checks.shared.facts import drop_malformed, unreadable
from seatrial.checks.shared.speed import slowest_first
from seatrial.checks.storage.folders import folder_remarks, judge_refused, judge_room
from seatrial.checks.storage.forms import FORMS
from seatrial.checks.storage.params import Params
from seatrial.checks.storage.rules import WRONG_BYTES, room_rule
from seatrial.checks.storage.sharing import judge_sharing
from seatrial.checks.storage.speeds import compared_rates, judge_fleet_speeds, judge_user_limits
from seatrial.checks.storage.ways import Ways, ways_of_ranks
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Finding, Ruling
from seatrial.evidence.measurement import Fact
from seatrial.util.text import as_name


def suspects(evidence: Evidence, params: Params) -> tuple[int, ...]:
    """Return one rank of each node that is slower than its fleet, and of a typical node to compare with."""
    return slowest_first(rates for _, _, rates in compared_rates(drop_malformed(evidence, FORMS)))


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Fail wrong bytes and an unusable named folder; then judge space, sharing and speeds."""
    damaged = unreadable(evidence, FORMS)
    evidence = drop_malformed(evidence, FORMS)
    ways = ways_of_ranks(evidence, params)
    parts = [
        Ruling(absent=(*damaged, *_absent(evidence, params))),
        _judge_bytes(evidence, ways),
        Ruling(findings=tuple(folder_remarks(evidence, ways))),
        judge_refused(evidence, ways),
        judge_room(evidence, params, ways),
        judge_sharing(evidence, params, ways),
        judge_user_limits(evidence, params, ways),
        *judge_fleet_speeds(evidence, params, ways),
        Ruling(unjudged=tuple(_unfinished_parts(evidence))),
    ]
    return Ruling.merge(parts)


def _absent(evidence: Evidence, params: Params) -> Iterator[str]:
    """Yield what a rank did not report although it had a folder, room in it and no error."""
    if not evidence.asked:
        yield "any rank that finished"
    reported = {
        (measurement.rank, measurement.name)
        for measurement in evidence.measurements
        if measurement.stage in ("measure", "view")
    }
    facts = {(fact.rank, fact.name) for fact in evidence.facts if fact.stage != "repeat"}
    without_room = _ranks_without_room(evidence, params)
    for rank in evidence.asked:
        if (rank, "refused") in facts or (rank, "trouble") in facts:
            continue
        if (rank, "folder") not in facts or (rank, "needs") not in facts:
            yield f"the folder of rank {rank}"
        elif rank not in without_room:
            for name in ("fsync_ms", "write_gbps", "read_gbps", "wrong_bytes"):
                if (rank, name) not in reported:
                    yield f"{name} of rank {rank}"


def _ranks_without_room(evidence: Evidence, params: Params) -> set[int]:
    """Return the ranks that had too little space to write."""
    sharers = {fact.rank: fact.value["sharers"] for fact in evidence.facts if fact.name == "needs"}
    return {
        measurement.rank
        for measurement in evidence.measurements
        if measurement.name in ("free_bytes", "free_inodes")
        and measurement.rank is not None
        and measurement.rank in sharers
        and not room_rule(params, measurement.name, sharers[measurement.rank]).passes(measurement.value)
    }


def _unfinished_parts(evidence: Evidence) -> Iterator[str]:
    """Yield the parts that a slow disk did not finish in their time."""
    facts_by_part: dict[str, list[Fact]] = {}
    for fact in evidence.facts:
        if fact.name == "cut" and fact.stage != "repeat":
            facts_by_part.setdefault(fact.value["what"], []).append(fact)
    for part, facts in facts_by_part.items():
        first = facts[0].value
        unit = "appends" if part == "append" else "bytes"
        more = f" and of {len(facts) - 1} other ranks" if len(facts) > 1 else ""
        done = f"{first['done']} of {first['of']} {unit}"
        yield f"storage: {as_name(part)} ended after {done} of rank {facts[0].rank}{more}"


def _judge_bytes(evidence: Evidence, ways: Ways) -> Ruling:
    """Fail wrong bytes. In a folder that other machines may have, each of them could have written these."""
    judged = tuple(
        WRONG_BYTES.judge(measurement) for measurement in evidence.measurements if measurement.name == "wrong_bytes"
    )
    paths = {fact.rank: fact.value["path"] for fact in evidence.facts if fact.name == "folder"}
    folders = {rank: as_name(path) for rank, path in paths.items()}
    wrong: dict[int, Any] = {}
    for entry in judged:
        if not entry.passed and entry.measurement.rank is not None:
            wrong[entry.measurement.rank] = {"count": f"{entry.measurement.value:.0f}", "first_offset": None}
    for fact in evidence.facts:
        if fact.name == "wrong_bytes" and fact.rank is not None:
            wrong[fact.rank] = fact.value
    findings = tuple(
        Finding(
            severity="fail",
            check="storage",
            what=f"a file of rank {rank} in {folders.get(rank, 'its folder')} differs from what the rank wrote",
            culprit=ways.culprit(evidence, [(rank, paths.get(rank, ""))]),
            measured=f"{value['count']} wrong bytes"
            + ("" if value["first_offset"] is None else f", the first at offset {value['first_offset']}"),
            limit=WRONG_BYTES.limit(),
            action="trust no data that is stored there; check the node's kernel log and the health of its storage.",
        )
        for rank, value in sorted(wrong.items())
    )
    return Ruling(findings=findings, judged=judged)
