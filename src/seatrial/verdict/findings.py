"""Findings: judged statements, and the limits that they were judged by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seatrial.verdict.figures import Figure

__all__ = ["Culprit", "Finding", "Judged", "Limit", "Ruling", "Severity"]

Severity = Literal["fail", "error", "warn", "info"]
"""``fail``: the cluster is at fault. ``error``: we could not tell (INCONCLUSIVE). ``warn``, ``info``: allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Who is at fault. ``kind`` none: nobody could be named."""

    kind: Literal["rank", "device", "node", "link", "fabric", "none"]
    name: str
    """As a person reads it: ``rank 1 (NVIDIA H200 1 on node gpu-07)``, ``link gpu-03–gpu-07``."""
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a figure was held against, and where that came from."""

    value: float
    unit: str
    origin: str
    """``fleet ...``, ``attainable ...``, ``user``, ``level quick``, ``baseline FILE``, ``exact``, ``reference ...``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One judged statement."""

    severity: Severity
    check: str
    """The check that it belongs to, or ``trial`` for what concerns no single check."""
    what: str
    """One clause, no full stop: ``rank 1 was killed by signal 9 (SIGKILL) in collectives/all_reduce``."""
    culprit: Culprit
    measured: str = ""
    """The value with its unit, as a person reads it."""
    limit: Limit | None = None
    evidence: tuple[str, ...] = ()
    """What else was seen: peers' values, a stack, the last lines of output, how it was confirmed."""
    action: str = ""
    """What to do next, one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One figure that was held against a limit."""

    figure: Figure
    limit: Limit
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What a check says of its evidence.

    ``absent`` names what the check needed for a decision and did not find: then it is inconclusive, however
    good the rest looks.
    """

    findings: tuple[Finding, ...] = ()
    judged: tuple[Judged, ...] = ()
    absent: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    """What was asked for and only measured, with nothing to judge it by: a PASS is then partial."""
