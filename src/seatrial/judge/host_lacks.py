"""Lacks of the host of a rank that others may have caused: of ports, descriptors, memory, processes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from seatrial.evidence.findings import NOBODY, Finding
from seatrial.judge.step_view import StepView, host_of, in_phase
from seatrial.judge.trial import ErrorRecord
from seatrial.protocol.own_errors import ALL_TAKEN, NO_PROCESS, Lack, in_one_line, lack_in, may_be_of_others
from seatrial.util.text import named_ranks, quoted


def lacks_of_hosts(errors: Iterable[ErrorRecord]) -> dict[int, ErrorRecord]:
    """Return the errors of communication that tell what the host of the rank lacked, by rank."""
    return {error.rank: error for error in sorted(errors, key=lambda error: error.rank) if lack_in(error.message)}


def is_of_host(error: ErrorRecord) -> bool:
    """Return whether a rank says that its host lacked something, and that not while it communicated."""
    if error.cause == "setup":
        return may_be_of_others(error.message) and lack_in(error.message) is not None
    return error.cause == "processes"


def may_abort(error: ErrorRecord) -> bool:
    """Return whether libraries of other ranks, too, abort for want of what this rank lacked: they print no words."""
    return lack_of(error).name in (NO_PROCESS.name, "open file")


def without_more(view: StepView, errors: Mapping[int, ErrorRecord], evidence: tuple[str, ...]) -> list[Finding]:
    """Return one finding for each host that gave ranks no further port, open file, thread, process or the like. It
    names nobody: any user of that host may have taken them, and the request may have brought a limit along.

    Args:
        view: The generation.
        errors: The errors of such ranks.
        evidence: Lines about the other ranks.
    """
    by_host: dict[tuple[str, str], dict[int, ErrorRecord]] = {}
    for rank, error in sorted(errors.items()):
        host = host_of(view.trial, rank) or f"host of rank {rank}"
        by_host.setdefault((host, lack_of(error).name), {})[rank] = error
    return [_of_host(view, of_host, evidence) for of_host in by_host.values()]


def what_lacked(view: StepView, errors: Mapping[int, ErrorRecord]) -> str:
    """Return what the first of these ranks did not get, which of them neither, as a clause."""
    (rank, error), *more = errors.items()
    what = f"{view.trial.label(rank)} got no further {lack_of(error).name} from its host{in_phase(error.phase)}:"
    what += f" {quoted(in_one_line(error.message))}"
    return what + (f"; nor did {named_ranks([other for other, _ in more])}" if more else "")


def lack_of(error: ErrorRecord) -> Lack:
    """Return the lack of such an error."""
    return lack_in(error.message) or NO_PROCESS


def _of_host(view: StepView, errors: Mapping[int, ErrorRecord], evidence: tuple[str, ...]) -> Finding:
    rank, error = next(iter(errors.items()))
    return Finding(
        severity="error",
        check=view.check,
        what=f"{what_lacked(view, errors)}; {ALL_TAKEN}",
        culprit=NOBODY,
        evidence=(*error.stack_lines(), *view.evidence(rank), *evidence),
        action=lack_of(error).action,
    )
