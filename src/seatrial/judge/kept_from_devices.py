"""Ranks that the driver, the libraries or other processes of their node keep from using their devices. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.evidence.evidence import a_node
from seatrial.evidence.findings import NOBODY, Culprit, Finding
from seatrial.judge.step_view import StepView, in_phase
from seatrial.judge.trial import ErrorRecord
from seatrial.protocol.own_errors import keeper
from seatrial.util.text import named_ranks, quoted

_OCCUPIED = (
    "see what else uses that GPU and its memory, and whether it is in exclusive mode (nvidia-smi, amd-smi); if nothing"
    " does, compare driver and libraries with those of a node that works, and look for XID there (dmesg -T | grep -i"
    " xid)"
)
_SETUP = (
    "compare its driver and the services of that (nvidia-smi, amd-smi), its torch, the libraries in LD_LIBRARY_PATH and"
    " the GPUs that a job may use there with those of a node that works; if they are alike, look for XID there"
    " (dmesg -T | grep -i xid)"
)
_ENVIRONMENT = (
    "mend what these ranks run on: a torch that is built for these GPUs (torch.cuda.get_arch_list()) and this driver,"
    " no other libraries before its own (LD_LIBRARY_PATH), and a driver whose services run and that shows the job its"
    " GPUs (nvidia-smi, amd-smi)"
)


def kept_from_devices(view: StepView, errors: Mapping[int, ErrorRecord], waiting: tuple[str, ...]) -> list[Finding]:
    """Return one finding for each of these nodes; where all nodes are alike, one that names nobody.

    Args:
        view: The generation.
        errors: The errors of such ranks.
        waiting: Lines about the other ranks.
    """
    if not errors:
        return []
    by_node: dict[str, dict[int, ErrorRecord]] = {}
    for rank, error in sorted(errors.items()):
        by_node.setdefault(_place(view, rank), {})[rank] = error
    steps = [step for error in errors.values() if (step := view.step(error.step)) is not None]
    asked = {rank for step in steps for rank in step.ranks} or {*view.ranks}
    kinds = {keeper(error.message) for error in errors.values()}
    nodes = {_place(view, rank) for rank in asked}
    # A torch is that of the whole trial, whether or not all ranks of a node had time to say the same.
    if (kinds == {"build"} and nodes <= by_node.keys()) or (asked <= errors.keys() and len(nodes) > 1):
        what = f"{_what(view, errors)}; {'all nodes are alike' if len(nodes) > 1 else 'there is no other node'}"
        action = _OCCUPIED if "occupied" in kinds else _ENVIRONMENT
        return [_finding(view, errors, what, NOBODY, action, waiting)]
    return [_of_node(view, place, of_node, waiting) for place, of_node in by_node.items()]


def _of_node(view: StepView, place: str, errors: Mapping[int, ErrorRecord], waiting: tuple[str, ...]) -> Finding:
    is_occupied = any(keeper(error.message) == "occupied" for error in errors.values())
    culprit = Culprit(
        kind="node",
        name=f"{a_node(place)}, {'or what else uses its GPUs' if is_occupied else 'its driver or libraries'}",
        ranks=tuple(errors),
        nodes=tuple({view.trial.ranks[rank].node for rank in errors if rank in view.trial.ranks}),
    )
    action = _OCCUPIED if is_occupied else _SETUP
    return _finding(view, errors, _what(view, errors), culprit, action, waiting)


def _what(view: StepView, errors: Mapping[int, ErrorRecord]) -> str:
    (rank, error), *more = sorted(errors.items())
    what = f"{view.trial.label(rank)} could not use its GPU{in_phase(error.phase)}: {quoted(error.first_line())}"
    return what + (f"; nor could {named_ranks([other for other, _ in more])}" if more else "")


def _finding(
    view: StepView,
    errors: Mapping[int, ErrorRecord],
    what: str,
    culprit: Culprit,
    action: str,
    waiting: tuple[str, ...],
) -> Finding:
    rank, error = min(errors.items())
    return Finding(
        severity="error" if culprit == NOBODY else "fail",
        check=view.check,
        what=what,
        culprit=culprit,
        evidence=(*error.stack_lines(), *view.evidence(rank), *waiting),
        action=action,
    )


def _place(view: StepView, rank: int) -> str:
    """Return the node of a rank as findings name it."""
    return view.trial.ranks[rank].place if rank in view.trial.ranks else f"node of rank {rank}"
