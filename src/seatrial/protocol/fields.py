"""Strict readers for single fields of an event from an untrusted source. Each raises DamageError."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

CHECK_NAME = re.compile(r"[\w-]{1,60}")
"""Name of a check, of another version too. It stands in advice that a person copies into a plan or a shell."""
INTERFACE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+~#-]{0,14}")
"""The name of a network interface (IFNAMSIZ of Linux) that no shell reads."""
STAGE_NAME = re.compile(r"[\w -]{0,60}")
_LATEST_S = 253_370_764_800.0
"""End of the year 9999: a later time has no date."""
_DEEPEST = 32
"""Nesting of a value: deeper than any of ours, and far from the recursion limit of the JSON encoder."""
MOST_GENERATIONS = 16
"""A trial has three generations. A larger number is damage: some of what is judged costs time for each generation."""
_MOST_CODE = 2**31
"""The system has no exit code beyond it, and no number of a signal."""
_MOST_BITS = 64
"""The bits of an integer in a value: no counter has more, and sums of larger ones are no floats any more."""
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class DamageError(ValueError):
    """A field of an event is missing or malformed. The text names the field."""


def whole(event: Mapping[str, Any], key: str) -> int:
    """Return a required integer from 0."""
    value = integer(event, key)
    if value is None or value < 0:
        raise DamageError(key)
    return value


def generation(event: Mapping[str, Any]) -> int:
    """Return the required number of a generation."""
    value = whole(event, "gen")
    if value >= MOST_GENERATIONS:
        raise DamageError("gen")
    return value


def integer(event: Mapping[str, Any], key: str) -> int | None:
    """Return an integer, or None where it is absent or null."""
    value = event.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63):
        return value
    raise DamageError(key)


def exit_code(event: Mapping[str, Any]) -> int:
    """Return the required exit code of a rank; negative: the number of a signal."""
    value = integer(event, "code")
    if value is None or not -_MOST_CODE <= value < _MOST_CODE:
        raise DamageError("code")
    return value


def integers(event: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """Return a required list of ranks, each at most once."""
    value = event.get(key)
    if not isinstance(value, list):
        raise DamageError(key)
    numbers = tuple(whole({key: entry}, key) for entry in value)
    if len(set(numbers)) != len(numbers):
        raise DamageError(key)
    return numbers


def number(event: Mapping[str, Any], key: str, *, time: bool = False) -> float:
    """Return a required number; "nan", "inf" and "-inf" are texts. ``time``: it must be finite and before 9999."""
    value = event.get(key)
    if isinstance(value, str) and value in _NOT_FINITE:
        value = _NOT_FINITE[value]
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or (isinstance(value, int) and abs(value) >> 1023)
    ):
        raise DamageError(key)
    if time and not 0 <= value < _LATEST_S:
        raise DamageError(key)
    return float(value)


def text(event: Mapping[str, Any], key: str) -> str:
    """Return a text, empty where it is absent or null."""
    value = event.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DamageError(key)
    return value


def texts(event: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return a list of texts, or the lines of one text."""
    value = event.get(key)
    if value is None or isinstance(value, str):
        return tuple((value or "").splitlines())
    if not (isinstance(value, list) and all(isinstance(entry, str) for entry in value)):
        raise DamageError(key)
    return tuple(value)


def flag(event: Mapping[str, Any], key: str) -> bool:
    """Return a required boolean."""
    value = event.get(key)
    if not isinstance(value, bool):
        raise DamageError(key)
    return value


def mapping(event: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a required dictionary of plain JSON."""
    value = event.get(key)
    if not isinstance(value, dict) or not plain(value):
        raise DamageError(key)
    return value


def plain(value: Any, deepest: int = _DEEPEST) -> bool:
    """Return whether a value is JSON, and not nested too deeply to be encoded again."""
    if value is None or isinstance(value, (str, bool, float)):
        return True
    if isinstance(value, int):
        return not abs(value) >> _MOST_BITS
    if deepest == 0:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(entry, deepest - 1) for key, entry in value.items())
    return isinstance(value, list) and all(plain(entry, deepest - 1) for entry in value)
