"""Strict reading of single fields of an event that may have been written by anybody."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["DamageError", "flag", "integer", "integers", "mapping", "number", "plain", "text", "texts", "whole"]

_LATEST_S = 253_370_764_800.0
"""The year 9999: beyond it a time cannot be written as a date."""
_DEEPEST = 32
"""Nesting of a value; deeper than anything of ours, and far from the recursion limit of the JSON writer."""
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class DamageError(ValueError):
    """A field is not what its event says that it is; the text names the field."""


def whole(event: Mapping[str, Any], key: str) -> int:
    """A number that must be there: 0, 1, 2, ..."""
    value = integer(event, key)
    if value is None or value < 0:
        raise DamageError(key)
    return value


def integer(event: Mapping[str, Any], key: str) -> int | None:
    """An integer or nothing."""
    value = event.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63):
        return value
    raise DamageError(key)


def integers(event: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """A list of ranks, each once."""
    value = event.get(key)
    if not isinstance(value, list):
        raise DamageError(key)
    numbers = tuple(whole({key: entry}, key) for entry in value)
    if len(set(numbers)) != len(numbers):
        raise DamageError(key)
    return numbers


def number(event: Mapping[str, Any], key: str, *, time: bool = False) -> float:
    """A number; what is not finite comes as ``nan``, ``inf`` or ``-inf``. A ``time`` is finite and a possible date."""
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
    """A text; absent or null is the empty one."""
    value = event.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DamageError(key)
    return value


def texts(event: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A list of texts, or one text of several lines."""
    value = event.get(key)
    if value is None or isinstance(value, str):
        return tuple((value or "").splitlines())
    if not (isinstance(value, list) and all(isinstance(entry, str) for entry in value)):
        raise DamageError(key)
    return tuple(value)


def flag(event: Mapping[str, Any], key: str) -> bool:
    """True or false, and it must be there."""
    value = event.get(key)
    if not isinstance(value, bool):
        raise DamageError(key)
    return value


def mapping(event: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A dictionary of plain JSON."""
    value = event.get(key)
    if not isinstance(value, dict) or not plain(value):
        raise DamageError(key)
    return value


def plain(value: Any, deepest: int = _DEEPEST) -> bool:
    """Whether a value is JSON and not nested so deeply that writing it again would fail."""
    if value is None or isinstance(value, (str, bool, float)):
        return True
    if isinstance(value, int):
        return not abs(value) >> 1023
    if deepest == 0:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(entry, deepest - 1) for key, entry in value.items())
    return isinstance(value, list) and all(plain(entry, deepest - 1) for entry in value)
