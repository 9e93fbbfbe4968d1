"""The end of a training or a script, from its events: which rank failed first, its last lines, where the output is.

The end of the command and ``seatrial report`` of its folder show the same. All but ``print_ending`` is pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.util.streams import print_status, print_status_lines
from seatrial.util.text import format_seconds, named_ranks, printable

LOGS = "logs"
"""Source of the notes about output that is missing."""
_MOST_LINES, _MOST_NOTES = 40, 20
_OF_AGENT = re.compile(r"(node|rank)([0-9]+)")
"""Begins the source of what a node says."""
_HOWS = ("ended", "failed", "refused", "absent", "interrupted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a program ended, each text as one printable line."""

    how: str
    """The word of the ``outcome`` event."""
    generation: int
    """The last one; -1: none was started."""
    code: int
    """The exit code of the ranks; counts where the program has ended by itself."""
    result: tuple[str, ...]
    """The result of a training."""
    notes: tuple[str, ...]
    """What stands before the last lines."""
    rank: int | None
    """The rank that failed first."""
    has_given_up: bool
    """The others of its failure gave up waiting for it."""
    last_lines: tuple[str, ...]
    """Its last output."""
    sentence: str
    """How it ended, and where the output is."""

    @property
    def is_error(self) -> bool:
        """Whether the sentence is that of an error."""
        return self.how in ("failed", "refused", "absent")


def ending(events: Sequence[dict[str, Any]], folder: str) -> Ending | None:
    """Return how the program ended; None where no event says it, or says what cannot be.

    ``folder``: where the output of the ranks is; empty: not known. The events may be those of somebody else.
    """
    outcome = _last(events, "outcome")
    if outcome is None or outcome.get("how") not in _HOWS or not isinstance(outcome.get("text"), str):
        return None
    how, generation = str(outcome["how"]), outcome.get("gen")
    first = _first_suspicion(events, generation) if how == "failed" else {}
    rank, code = first.get("rank"), outcome.get("code")
    lines = _lines(outcome.get("last_lines"))[-_MOST_LINES:]
    return Ending(
        how=how,
        generation=generation if type(generation) is int else -1,
        code=code if type(code) is int else 0,
        result=_result(events, outcome),
        notes=_lines(outcome.get("notes"))[:_MOST_NOTES] if how == "failed" else (),
        rank=rank if type(rank) is int else None,
        has_given_up=first.get("how") == "late",
        last_lines=lines if how == "failed" and any(line.strip() for line in lines) else (),
        sentence=_sentence(events, outcome, folder),
    )


def lines(end: Ending) -> Iterator[tuple[str, bool]]:
    """Yield the lines of an end, and whether each is output of a rank, which no terminal breaks between words."""
    yield from ((line, True) for line in end.result)
    yield from ((f"seatrial: {note}.", False) for note in end.notes)
    if end.last_lines:
        yield output_heading(end.rank), False
    yield from ((f"  {line}", True) for line in end.last_lines)
    yield f"{'Error' if end.is_error else 'seatrial'}: {end.sentence}", False


def speaker(event: dict[str, Any]) -> str:
    """Return the node or the rank whose words an event has, such as ``rank 3``; empty: they are the controller's."""
    found = _OF_AGENT.match(str(event.get("src")))
    return f"{found[1]} {found[2]}" if found else ""


def output_heading(rank: int | None, which: str = "") -> str:
    """Return the line above the last output of a rank. ``which``: a clause about the rank."""
    return f"seatrial: the last output of {'the rank' if rank is None else f'rank {rank}'}{which}:"


def print_ending(shown: Iterable[tuple[str, bool]]) -> None:
    """Print lines of ``lines`` on standard error."""
    for line, is_output in shown:
        # Not broken between words: the marks under a line of code would no longer stand where they belong.
        (print_status_lines if is_output else print_status)(line)


def _sentence(events: Sequence[dict[str, Any]], outcome: dict[str, Any], folder: str) -> str:
    how, text = outcome["how"], printable(outcome["text"])
    if how == "refused":
        return text
    output = (
        "its output" if how == "absent" else "what arrived of the output" if _lacks_output(events) else "all output"
    )
    where = f"; {output} is in {printable(folder)}" if folder else ""
    said = (how == "ended" and _good_end(events, outcome)) or text.rstrip(".")
    return f"{said}{where}."


def _good_end(events: Sequence[dict[str, Any]], outcome: dict[str, Any]) -> str:
    """Return in words that all processes exited with 0, and how long that took since they were started."""
    started = next((event for event in events if event.get("kind") == "generation" and not speaker(event)), {})
    ranks, begin, end = started.get("ranks"), started.get("t"), outcome.get("t")
    if outcome.get("code") != 0 or not isinstance(ranks, list):
        return ""
    if not (isinstance(begin, (int, float)) and isinstance(end, (int, float))):
        return ""
    count = "1 process" if len(ranks) == 1 else f"{len(ranks)} processes"
    restarts = outcome.get("restarts")
    again = f" (restarts: {restarts})" if restarts and type(restarts) is int else ""
    return f"{count} exited with 0 after {format_seconds(end - begin)}{again}"


def _result(events: Sequence[dict[str, Any]], outcome: dict[str, Any]) -> tuple[str, ...]:
    """Return the lines of the result that the first rank told, as far as it is one."""
    if outcome["how"] not in ("ended", "interrupted"):
        return ()
    # Also what the conductor refused is recorded.
    results = [event for event in events if event.get("kind") == "result" and event.get("gen") == outcome.get("gen")]
    first = (event for event in results if event.get("rank") == 0 and isinstance(event.get("lines"), list))
    said = next(first, {})
    found = _lines(said.get("lines"))
    if found and "nonfinite" in said:
        found = (found[0], _nonfinite(results), *found[1:])
    restarts = outcome.get("restarts")
    return (*found, f"restarts: {restarts}") if found and restarts and type(restarts) is int else found


def _nonfinite(results: Sequence[dict[str, Any]]) -> str:
    """Return which ranks stopped a training by NaN or Inf: each one reports its own numbers, and no other rank's."""
    ranks = [event.get("rank") for event in results if event.get("nonfinite") is True]
    own = sorted({rank for rank in ranks if type(rank) is int})
    if len(own) > 1:
        return f"{named_ranks(own)} report NaN or Inf in their own numbers"
    return f"{named_ranks(own) if own else 'no rank'} reports NaN or Inf in its own numbers"


def _first_suspicion(events: Sequence[dict[str, Any]], generation: object) -> dict[str, Any]:
    """Return the first suspicion of a program that failed, about the rank that the outcome names; empty without one."""
    trouble = _last([event for event in events if event.get("gen") == generation], "trouble") or {}
    seen = trouble.get("seen")
    return seen[0] if isinstance(seen, list) and seen and isinstance(seen[0], dict) else {}


def _lacks_output(events: Sequence[dict[str, Any]]) -> bool:
    return any(event.get("src") == LOGS for event in events)


def _last(events: Sequence[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    """Return the last event of a kind that the controller wrote."""
    return next((event for event in reversed(events) if event.get("kind") == kind and not speaker(event)), None)


def _lines(value: object) -> tuple[str, ...]:
    """Return the texts of a list as printable lines; what is no list has none."""
    return tuple(printable(line) for line in value if isinstance(line, str)) if isinstance(value, list) else ()
