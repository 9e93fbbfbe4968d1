"""The origin of a limit that the user gave: the plan file or the option, and where that has the value from."""

from __future__ import annotations

from dataclasses import replace

from seatrial.evidence.findings import Limit, Ruling
from seatrial.plan.model import Plan


def with_origins(plan: Plan, ruling: Ruling) -> Ruling:
    """Return the ruling with the origins of the plan: a check knows only that a limit is the user's."""

    def named(limit: Limit) -> Limit:
        return replace(limit, origin=plan.named(limit.origin))

    return replace(
        ruling,
        findings=tuple(
            finding
            if finding.limit is None or not finding.limit.origin.startswith("user ")
            else replace(finding, limit=named(finding.limit), evidence=tuple(map(plan.named, finding.evidence)))
            for finding in ruling.findings
        ),
        judged=tuple(replace(entry, limit=named(entry.limit)) for entry in ruling.judged),
    )
