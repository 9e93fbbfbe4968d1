"""The connections that ranks of a generation could not make, from their errors and their output. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from seatrial.checks.collectives.params import Params
from seatrial.judge.step_view import StepView
from seatrial.judge.trial import TroubleRecord
from seatrial.plan.model import Plan
from seatrial.protocol.fabric_errors import LARGE_BYTES, ConnectError, read_connect_error

_MOST_LINES = 4
_OPERATION = re.compile(r"collectives/all_reduce (\d{1,15}) B\b")


def connect_errors(view: StepView) -> dict[int, ConnectError]:
    """Return by rank the connection that it could not make; one with an address before one without."""
    found: dict[int, ConnectError] = {}
    for rank, text in _texts(view):
        error = read_connect_error(text)
        if error is not None and (rank not in found or (error.address and not found[rank].address)):
            found[rank] = error
    return dict(sorted(found.items()))


def _texts(view: StepView) -> Iterator[tuple[int, str]]:
    for rank, error in view.raised.items():
        if error.cause == "fabric":
            yield rank, error.message
    for ending in view.trial.exits:
        # A rank that came further than the store has reached it.
        if ending.generation == view.generation and "store" in ending.phase:
            # The store retries for minutes, and says so on standard error only.
            yield from ((ending.rank, line) for line in ending.last_lines)


def lines_of(view: StepView, errors: Mapping[int, ConnectError]) -> tuple[str, ...]:
    """Return one line of evidence for each of these ranks."""
    lines = [f"{view.trial.label(rank)} could not connect to {error.words()}" for rank, error in errors.items()]
    more = len(lines) - _MOST_LINES
    return (*lines[:_MOST_LINES], *([f"and {more} more ranks"] if more > 0 else []))


def clearest(errors: Iterable[ConnectError]) -> ConnectError | None:
    """Return the error that says most: one with an address, an answer before a silence; None without errors."""
    return min(
        errors,
        key=lambda error: (not error.is_local, not error.address, error.how == "no answer", error.address, error.how),
        default=None,
    )


def only_large_messages(view: StepView, stuck: Iterable[TroubleRecord]) -> bool:
    """Return whether all ranks are stuck in the first large message of all, after small ones have passed."""
    sizes = {int(found[1]) if (found := _OPERATION.search(entry.phase)) else 0 for entry in stuck}
    if len(sizes) != 1 or view.generation:
        return False
    try:
        params = Plan.from_json(view.trial.plan).params("collectives", Params)
    except (KeyError, TypeError, ValueError):  # events may contain anything
        return False
    wanted = params.sizes(view.trial.device_type)
    small, large = [size for size in wanted if size <= LARGE_BYTES], [size for size in wanted if size > LARGE_BYTES]
    passed = any(
        entry.check == "collectives" and entry.generation == view.generation and (entry.size_bytes or 0) > LARGE_BYTES
        for entry in view.trial.measurements
    )
    return bool(small) and large[:1] == [*sizes] and not passed
