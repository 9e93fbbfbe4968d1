"""Findings, and the limits that they were judged by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from seatrial.evidence.measurement import Measurement
from seatrial.evidence.schema_types import Keywords, Text, Whole

Severity = Literal["fail", "error", "warn", "info"]
"""``fail``: the cluster is at fault. ``error``: not decidable, INCONCLUSIVE. ``warn``, ``info``: a PASS is possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The part of the cluster at fault; of the kind ``none`` where it is not known."""

    kind: Literal["rank", "process", "device", "node", "link", "fabric", "none"]
    """``process``: the process of a rank died, stopped or hung, and no device of it is blamed."""
    name: str
    """For people: ``rank 1 (NVIDIA H200, local rank 1 on gpu-07)``, ``link gpu-03–gpu-07``."""
    ranks: tuple[Whole, ...] = ()
    nodes: tuple[str, ...] = ()
    """Host names."""


NOBODY = Culprit(kind="none", name="nobody could be named")
SEATRIAL = Culprit(kind="none", name="seatrial itself, no part of the cluster")
"""A bug of ours: of the kind ``none``, as the cluster is not at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The value that a measurement was compared with, and where that value came from."""

    value: float
    unit: str
    origin: Annotated[Text, Keywords(description="Where the limit came from.")]
    """``fleet ...``, ``0.85 x 794.5 TFLOP/s, attainable by H200 SXM (SOURCE)``, ``exact``, ``reference ...``; from a
    check ``user compute.min_tflops``, of
    which a conclusion makes ``plan FILE: from 3 runs: ...`` or ``plan FILE:compute.min_tflops``.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One judged statement."""

    severity: Severity
    check: str
    """The check that it belongs to; ``trial`` where it belongs to no single check."""
    what: Text
    """One clause, no full stop: ``rank 1 was killed by signal 9 (SIGKILL) in collectives/all_reduce``."""
    culprit: Culprit
    measured: str = ""
    """The value with its unit, for people."""
    limit: Limit | None = None
    evidence: tuple[str, ...] = ()
    """Supporting lines: the values of other ranks, a stack, the last lines of output, how it was confirmed."""
    action: str = ""
    """What to do next, one sentence."""
    options: tuple[str, ...] = ()
    """What the next run needs, names and values in turn: options, ``("--deadline", "240s")``, and parameters of a plan
    file, ``("training.timeout_s", "180", "--deadline", "240s")``; of a fault the run that tells more about it,
    ``("--only", "network,links")``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One measurement that was compared with a limit."""

    measurement: Measurement
    limit: Limit
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The result of judging one check."""

    findings: tuple[Finding, ...] = ()
    judged: tuple[Judged, ...] = ()
    absent: tuple[str, ...] = ()
    """The measurements that the judge needs and did not find. While there is any, the check is inconclusive."""
    unjudged: tuple[str, ...] = ()
    """The measurements without a limit. While there is any, a PASS is partial."""
    unlimited: tuple[str, ...] = ()
    """The speeds that were at most compared with one another, each as the parameter that would set a limit:
    ``compute.min_tflops``. All devices or links alike slow would pass."""
    not_applicable: str = ""
    """Why the check is about nothing here, such as ``all nodes are one machine``; empty where it is about something."""

    @staticmethod
    def merge(parts: Iterable[Ruling]) -> Ruling:
        """Return one ruling with everything that the parts say, in their order."""
        rulings = tuple(parts)
        return Ruling(
            findings=tuple(finding for part in rulings for finding in part.findings),
            judged=tuple(entry for part in rulings for entry in part.judged),
            absent=tuple(name for part in rulings for name in part.absent),
            unjudged=tuple(name for part in rulings for name in part.unjudged),
            unlimited=tuple(dict.fromkeys(name for part in rulings for name in part.unlimited)),
            not_applicable=rulings[0].not_applicable if all(part.not_applicable for part in rulings) else "",
        )
