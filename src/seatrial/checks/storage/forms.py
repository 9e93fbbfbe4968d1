"""The form of each fact of the storage check: one that has another form is damage. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from seatrial.checks.shared.common_places import is_places
from seatrial.checks.shared.facts import has_fields

_NUMBER = (int, float)
_MOST_SHARERS = 10**6
"""Ranks on one file system. The room that they need is a product with this, which must stay a number."""
_PARTS = ("append", "write", "read", "compare")
"""Parts of the measurement that may be cut short."""
_MOST_FOLDERS = 4
"""Folders of a rank that cannot be used: it tries two at most."""


def _is_refused(value: Any) -> bool:
    return (
        has_fields(value, named=bool, folders=list)
        and len(value["folders"]) <= _MOST_FOLDERS
        and all(
            isinstance(entry, list) and len(entry) == 3 and all(isinstance(text, str) for text in entry)
            for entry in value["folders"]
        )
    )


def _is_ranges(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, list) and len(entry) == 2 and all(isinstance(rank, int) for rank in entry) for entry in value
    )


def _is_way(value: Any) -> bool:
    return has_fields(value, folder=str, places=(list, type(None))) and is_places(value["places"])


FORMS: Mapping[str, Callable[[Any], bool]] = {
    "folder": lambda value: has_fields(value, path=str, named=bool, in_memory=bool, kind=str, mount_point=str),
    "way": _is_way,
    "exchanged": lambda value: isinstance(value, str),
    "refused": _is_refused,
    "trouble": lambda value: has_fields(value, named=bool, folder=str, code=str, reason=str, doing=str),
    "sees": _is_ranges,
    "foreign": _is_ranges,
    "token_lost": lambda value: value is True,
    "needs": lambda value: has_fields(value, sharers=int) and 1 <= value["sharers"] <= _MOST_SHARERS,
    "moved": lambda value: has_fields(value, what=str, variant=str, bytes=int, began_s=_NUMBER, seconds=_NUMBER),
    "cut": lambda value: has_fields(value, what=str, done=int, of=int) and value["what"] in _PARTS,
    "wrong_bytes": lambda value: has_fields(value, count=int, first_offset=(int, type(None))),
}
