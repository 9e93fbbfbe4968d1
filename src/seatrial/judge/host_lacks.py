"""Lacks of the host of a rank that others may have caused: of ports, descriptors, memory, processes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from seatrial.evidence.findings import NOBODY, Finding
from seatrial.judge.step_view import StepView, host_of, in_phase
from seatrial.judge.trial import ErrorRecord
from seatrial.protocol.connecting import connects
from seatrial.protocol.own_errors import ALL_TAKEN, NO_PROCESS_ACTION, in_one_line, lack_of_host
from seatrial.util.text import named_ranks, quoted

LACKED = (
    "look there at the limit of open files (ulimit -n), at the memory, and at who connects to the ports of its ranks"
    " (ss -tnp)"
)


def lacks_of_hosts(errors: Iterable[ErrorRecord]) -> dict[int, str]:
    """Return what the host of a rank lacked while the rank connected to others, which may have taken it, by rank."""
    lacks = {error.rank: lack_of_host(error.message) for error in errors if connects(error.phase)}
    return {rank: lack for rank, lack in sorted(lacks.items()) if lack}


def without_processes(view: StepView, errors: Mapping[int, ErrorRecord], waiting: tuple[str, ...]) -> list[Finding]:
    """Return one finding for each host that gave ranks no further thread or process. It names nobody: any user of that
    host may have taken them, and the request may have brought a limit along.

    Args:
        view: The generation.
        errors: The errors of such ranks.
        waiting: Lines about the other ranks.
    """
    by_host: dict[str, list[int]] = {}
    for rank in sorted(errors):
        by_host.setdefault(host_of(view.trial, rank) or f"host of rank {rank}", []).append(rank)
    return [_of_host(view, {rank: errors[rank] for rank in ranks}, waiting) for ranks in by_host.values()]


def _of_host(view: StepView, errors: Mapping[int, ErrorRecord], waiting: tuple[str, ...]) -> Finding:
    (rank, error), *more = errors.items()
    what = f"{view.trial.label(rank)} got no further thread or process from its host{in_phase(error.phase)}:"
    what += f" {quoted(in_one_line(error.message))}"
    what += f"; nor did {named_ranks([other for other, _ in more])}" if more else ""
    return Finding(
        severity="error",
        check=view.check,
        what=f"{what}; {ALL_TAKEN}",
        culprit=NOBODY,
        evidence=(*error.stack_lines(), *view.evidence(rank), *waiting),
        action=NO_PROCESS_ACTION,
    )
