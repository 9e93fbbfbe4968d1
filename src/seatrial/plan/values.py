"""Strict conversion of one value to the type of its parameter, and the words for error messages about it."""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Sequence
from datetime import date, datetime, time
from typing import Any, Union

from seatrial.util.text import printable

MISFIT: Any = object()
"""Returned by ``fit`` for a value of another type."""

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a string",
    type(None): "nothing",
}
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    (int, "a whole number"),
    (float, "a number"),
    (str, "a string"),
    ((list, tuple), "a list"),
    (dict, "a table"),
    ((datetime, date, time), "a date or time"),
    (type(None), "nothing"),
)
_SHOWN = 60
_REASON = 160
_INT_BITS = 63
"""TOML guarantees 64-bit integers only, and torch takes no larger ones."""


def fit(value: Any, annotation: Any) -> Any:
    """Return the value converted to the annotation (a list becomes a tuple, an int a float), or MISFIT.

    A bool is not a number; numbers are finite, and integers have at most 64 bits. Raises TypeError for an annotation
    that a plan cannot fill.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        candidates = (fit(value, argument) for argument in arguments)
        return next((candidate for candidate in candidates if candidate is not MISFIT), MISFIT)
    if origin is tuple:
        return _fit_items(value, arguments)
    if annotation not in _WORDS:
        raise TypeError(f"a plan has no values for parameters of the type {annotation!r}")
    if annotation is float:
        return _fit_float(value)
    if type(value) is not annotation or (annotation is int and value.bit_length() > _INT_BITS):
        return MISFIT
    return value


def _fit_float(value: Any) -> Any:
    if type(value) not in (int, float) or (type(value) is int and value.bit_length() > _INT_BITS):
        return MISFIT
    return float(value) if math.isfinite(value) else MISFIT


def _fit_items(value: Any, arguments: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple):
        return MISFIT
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        return MISFIT
    items = tuple(fit(item, argument) for item, argument in zip(value, arguments, strict=True))
    return MISFIT if any(item is MISFIT for item in items) else items


def expected(annotation: Any) -> str:
    """Return the annotation in words: ``a list, each entry a whole number``."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        # TOML has no null: a file leaves the key out.
        return " or ".join(expected(argument) for argument in arguments if argument is not type(None))
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return f"a list, each entry {expected(arguments[0])}"
        return f"a list of {len(arguments)}: " + ", ".join(expected(argument) for argument in arguments)
    return _WORDS[annotation]


def shown(value: Any) -> str:
    """Return the value for an error message: its text, cut at 60 characters, and its kind."""
    kind = next((word for known, word in _KINDS if isinstance(value, known)), type(value).__name__)
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write integers of more than 4,300 digits in decimal.
        return kind
    return f"{text if len(text) <= _SHOWN else text[:_SHOWN] + '...'} ({kind})"


def shortened(text: str) -> str:
    """Return the message of a library as part of a sentence: one line of at most 160 characters."""
    line = printable(text[:_REASON])
    return line if len(text) <= _REASON else line[:_REASON] + "..."


def did_you_mean(name: str, valid: Sequence[str]) -> str:
    """Return the end of a sentence about an unknown name: the nearest valid name, or all of them if none is near."""
    near = difflib.get_close_matches(name[:_SHOWN], valid, n=1)
    return f"; did you mean {near[0]}?" if near else f"; expected one of: {', '.join(valid)}."
