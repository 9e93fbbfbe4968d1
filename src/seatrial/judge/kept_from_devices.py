"""Ranks that the driver, the libraries or other processes of their node keep from using their devices. Pure."""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from seatrial.evidence.evidence import a_node
from seatrial.evidence.findings import NOBODY, Culprit, Finding
from seatrial.evidence.statistics import VOTING_HOSTS
from seatrial.judge.step_view import StepView, host_of, in_phase, rank_culprit
from seatrial.judge.trial import ErrorRecord, Trial
from seatrial.protocol.own_errors import keeper
from seatrial.util.text import named_ranks, quoted

_OCCUPIED = (
    "see what else uses that GPU and its memory, and whether it is in exclusive mode (nvidia-smi, amd-smi); if MPS"
    " shares it, name its folder in CUDA_MPS_PIPE_DIRECTORY; if nothing uses it, compare driver and libraries with"
    " those of a node that works, and look for XID there (dmesg -T | grep -i xid)"
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
_ONE_OF_ITS_NODE = (
    "other GPUs of that node do the same with the same torch: look for XID of that one there (dmesg -T | grep -i xid),"
    " and compare it, and what its process loads, with the others"
)
_OF_ALL = ("build", "library", "allowed")
"""Causes that the request may have brought to all nodes: then those fail one after the other."""
_COUNTED = re.compile(r"\b(?:step|round|turn) ([0-9]{1,18})\b")
_IN_ONE_ROUND = re.compile(
    r"\b(?:(gemm)|(convolution)|(copy)|(take memory)|(forward)|(backward)|(optimizer)|(losses))\b"
)
"""Words for the phases of one step or round of a check, in their order."""


_MOST_WAYS = 64
"""Ways to fail that are looked at. Ranks of one program fail in few phases."""


class _Way(NamedTuple):
    """How ranks of a node failed: each of these ways is compared with those who came further."""

    step: int | None
    phase: str
    least_local_rank: int | None
    """The local rank from which on ranks of other nodes count, where these were allowed no device. None: all count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Further:
    """The ranks that came further than those that failed in one way, by their hosts."""

    places_of: Mapping[str, set[str]]
    """Host -> places of its nodes."""
    places: Collection[str]
    """All of them."""


def kept_from_devices(view: StepView, errors: Mapping[int, ErrorRecord], waiting: tuple[str, ...]) -> list[Finding]:
    """Return one finding for each of these nodes; where all nodes are alike, or may be, one that names nobody.

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
    steps = [step for number in {error.step for error in errors.values()} if (step := view.step(number)) is not None]
    asked = {rank for step in steps for rank in step.ranks} or {*view.ranks}
    if asked <= errors.keys() and len({_place(view, rank) for rank in asked}) > 1:
        return [_of_nobody(view, errors, "all nodes are alike", waiting)]
    nodes = {record.place for record in view.trial.ranks.values()}
    may_vote = len({host_of(view.trial, rank) for rank in view.trial.ranks}) >= VOTING_HOSTS
    failed = {place: _ways_to_fail(view.trial, of_node) for place, of_node in by_node.items()}
    further = _further(view, errors, failed.values())
    findings, unclear, is_doubted = [], dict[int, ErrorRecord](), False
    for place, of_node in by_node.items():
        kinds = {keeper(error.message) for error in of_node.values()}
        is_here = any(
            way.least_local_rank is None and place in further[way].places for way in failed[place] & further.keys()
        )
        hosts, is_there = _hosts_further(place, failed[place], further, host_of(view.trial, next(iter(of_node))))
        if may_vote and len(hosts) == 1:
            # A single other host says so, and more could.
            is_there, is_doubted = is_here, True
        if kinds <= {*_OF_ALL} and not is_there and (len(nodes) > 1 or "build" in kinds):
            unclear |= of_node
        elif kinds == {"build"} and is_here:
            findings += [_of_rank(view, rank, error, waiting) for rank, error in of_node.items()]
        else:
            findings.append(_of_node(view, place, of_node, waiting))
    if unclear:
        why = f"{'only one other host says that it' if is_doubted else 'no rank of another node'} had come further"
        if nodes <= {_place(view, rank) for rank in unclear}:
            why = "all nodes are alike" if len(nodes) > 1 else "there is no other node"
        findings.append(_of_nobody(view, unclear, why, waiting))
    return findings


def _passed(view: StepView, phases: Mapping[str, set[int]], number: int | None, phase: str) -> set[int]:
    """Return the ranks that have done, on their devices, what one could not: it is no fault of all nodes.

    Those that were ended before say nothing: the others have a second after the first error.

    Args:
        view: The generation.
        phases: Phase -> ranks that were in it.
        number: The step in which the rank failed.
        phase: The phase in which it failed.
    """
    trial, step = view.trial, view.step(number)
    if step is None and number is None and not phase.startswith("start-up/"):
        step = view.last_step()
    if step is None:
        return {*trial.started, *(other for _, other in trial.pids)}
    alike = (other for other in trial.steps if other.check == step.check and step.stage in (other.stage, "repeat"))
    later = (ranks for other, ranks in phases.items() if _is_later(other, phase))
    return {other for done in alike for other in done.done}.union(*later)


def _ways_to_fail(trial: Trial, errors: Mapping[int, ErrorRecord]) -> set[_Way]:
    """Return how the ranks of a node failed. The first ranks of a node get a device, however few there are."""
    least: dict[tuple[int | None, str], int] = {}
    ways = set()
    for rank, error in errors.items():
        record, key = trial.ranks.get(rank), (error.step, error.phase)
        if keeper(error.message) == "allowed" and record is not None:
            least[key] = min(record.local_rank, least.get(key, record.local_rank))
        else:
            ways.add(_Way(*key, None))
    return ways | {_Way(*key, local_rank) for key, local_rank in least.items()}


def _further(
    view: StepView, errors: Mapping[int, ErrorRecord], failed: Iterable[Collection[_Way]]
) -> dict[_Way, _Further]:
    """Return who came further than ranks that failed so, for the most frequent ways to fail."""
    trial, phases = view.trial, _ranks_by_phase(view)
    passed: dict[tuple[int | None, str], set[int]] = {}
    further = {}
    weights = defaultdict[_Way, float](float)
    for ways in failed:
        for way in ways:
            # One node with many ways leaves room for the others.
            weights[way] += 1 / len(ways)
    for way in heapq.nlargest(_MOST_WAYS, weights, key=lambda way: (weights[way], str(way))):
        key = (way.step, way.phase)
        if key not in passed:
            passed[key] = _passed(view, phases, *key) - errors.keys()
        places_of = defaultdict[str, set[str]](set)
        for rank in passed[key]:
            record = trial.ranks.get(rank)
            least = way.least_local_rank
            if least is None or (record is not None and record.local_rank >= least):
                places_of[host_of(trial, rank)].add(_place(view, rank))
        further[way] = _Further(
            places_of=places_of, places={place for of_host in places_of.values() for place in of_host}
        )
    return further


def _hosts_further(
    place: str, ways: AbstractSet[_Way], further: Mapping[_Way, _Further], own: str
) -> tuple[set[str], bool]:
    """Return up to two other hosts with ranks that came further than those of a node, and whether any rank did.

    Of those that were allowed no device only other nodes say something.
    """
    hosts, is_there = set[str](), False
    for way in ways & further.keys():
        for host, places in further[way].places_of.items():
            if way.least_local_rank is None or places != {place}:
                is_there = True
                hosts |= {host} - {own}
            if len(hosts) > 1:
                return hosts, True
    return hosts, is_there


def _ranks_by_phase(view: StepView) -> dict[str, set[int]]:
    """Return, for each phase that the events of their ends have, the ranks that were in it."""
    ranks: dict[str, set[int]] = defaultdict(set)
    for rank, ending in view.exits.items():
        ranks[ending.phase].add(rank)
    for rank, error in view.raised.items():
        ranks[error.phase].add(rank)
    for entry in view.troubles:
        if entry.rank is not None:
            ranks[entry.phase].add(entry.rank)
        for rank, phase in entry.waiting:
            ranks[phase].add(rank)
    return ranks


def _is_later(phase: str, than: str) -> bool:
    """Return whether a rank in a phase has passed another phase of the same check for sure."""
    (check, _, name), (other_check, _, other) = phase.partition("/"), than.partition("/")
    if check != other_check:
        return False
    if other.startswith("begin ") or name.startswith("done "):
        return name.partition(" ")[0] != other.partition(" ")[0]
    count, other_count = _COUNTED.search(name), _COUNTED.search(other)
    if count is None or other_count is None:
        return False
    if int(count[1]) != int(other_count[1]):
        return int(count[1]) > int(other_count[1])
    word, other_word = _IN_ONE_ROUND.search(name), _IN_ONE_ROUND.search(other)
    return word is not None and other_word is not None and (word.lastindex or 0) > (other_word.lastindex or 0)


def _of_nobody(view: StepView, errors: Mapping[int, ErrorRecord], why: str, waiting: tuple[str, ...]) -> Finding:
    kinds = {keeper(error.message) for error in errors.values()}
    action = _OCCUPIED if kinds & {"occupied", "library"} else _ENVIRONMENT
    return _finding(view, errors, f"{_what(view, errors)}; {why}", NOBODY, action, waiting)


def _of_rank(view: StepView, rank: int, error: ErrorRecord, waiting: tuple[str, ...]) -> Finding:
    errors = {rank: error}
    return _finding(view, errors, _what(view, errors), rank_culprit(view.trial, rank), _ONE_OF_ITS_NODE, waiting)


def _of_node(view: StepView, place: str, errors: Mapping[int, ErrorRecord], waiting: tuple[str, ...]) -> Finding:
    is_occupied = any(keeper(error.message) in ("occupied", "library") for error in errors.values())
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
