"""The events by which a check is asked how it goes on: its steps, and the newest measurements and facts, bounded."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, cast

from seatrial.conductor.origin import brief
from seatrial.protocol.events import GenerationEvent, InterfaceEvent, RankEvent, StepEvent

_MOST_VALUES = 100_000
"""Values in the newest measurements and facts of all ranks of one host, by which a check is asked how it goes on: it
thinks half a second about them, and nobody is heard meanwhile. A rank has some hundreds of measurements, and twenty a
minute in a long check, with some ten values in each."""
_MOST_VALUES_OF_RANK = 1_000
"""The same in the event with which a rank starts, which has some twenty."""
_CHARS_OF_VALUE = 64
"""Characters of a text that count as one more value."""


class CheckEvents:
    """The events of the current check."""

    def __init__(self) -> None:
        self._own: list[dict[str, Any]] = []
        """Events of the conductor: the generation, and what the check was asked and chose."""
        self._entries: dict[str, deque[tuple[dict[str, Any], int]]] = {}
        """Source -> the events with its newest measurements and facts, and the values in each."""
        self._num_values = Counter[str]()
        """Source -> the values in all of them."""

    def begin(self, generation: GenerationEvent) -> None:
        """Begin another check, in that generation."""
        self._own = [cast("dict[str, Any]", generation)]
        self._entries.clear()
        self._num_values.clear()

    def add_own(self, event: StepEvent | InterfaceEvent) -> None:
        """Keep an event of the conductor: a step of the check, or the interface that it chose."""
        self._own.append(cast("dict[str, Any]", event))

    def add_entries(self, event: dict[str, Any], num_ranks: int) -> None:
        """Keep measurements or facts. ``num_ranks``: on the host of their source.

        Each rank has its share, so that none pushes out the values of another one. The judge reads all at the end.
        """
        src, entries = event["src"], event[event["kind"]]
        if not isinstance(entries, list):
            raise TypeError(f"the {event['kind']} of {brief(src)} are no list")
        num_values = _num_values(entries)
        kept = self._entries.setdefault(src, deque())
        kept.append((event, num_values))
        self._num_values[src] += num_values
        while self._num_values[src] > _MOST_VALUES // max(1, num_ranks):
            self._num_values[src] -= kept.popleft()[1]

    def all(self) -> list[dict[str, Any]]:
        """Return all that are kept."""
        return [*self._own, *(event for kept in self._entries.values() for event, _ in kept)]


def require_few_values(event: RankEvent) -> None:
    """Raise ValueError for a start of a rank with more values than any has: each check is asked with all of them."""
    if _num_values(event) > _MOST_VALUES_OF_RANK:
        raise ValueError(f"rank {brief(event['rank'])} starts with more than {_MOST_VALUES_OF_RANK} values")


def _num_values(received: object) -> int:
    """Return the number of values in something; any number above the limit, if there are more."""
    num, left = 0, [received]
    while left and num <= _MOST_VALUES:
        value = left.pop()
        num += 1 + (len(value) // _CHARS_OF_VALUE if isinstance(value, str) else 0)
        left += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return num
