"""Dataclasses of this folder as plain JSON, and back: strictly, since the text may come from anybody."""

from __future__ import annotations

import math
import types
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_Made = TypeVar("_Made")
_LARGEST = 2**64
_MOST_ENTRIES = 4_096
_MOST_CHARS = 500
"""Characters of a text: readers write less, and a line of the kernel log is cut at 400. Findings repeat such texts."""


def to_json(value: Any) -> Any:
    """Return a dataclass as JSON, without the fields at their defaults."""
    if is_dataclass(value):
        entries = {field.name: (field, getattr(value, field.name)) for field in fields(value)}
        return {name: to_json(entry) for name, (field, entry) in entries.items() if entry != _default(field)}
    if isinstance(value, Mapping):
        return {key: to_json(entry) for key, entry in value.items()}
    return [to_json(entry) for entry in value] if isinstance(value, tuple) else value


def from_json(cls: type[_Made], value: object) -> _Made:
    """Return the dataclass. Unknown fields are ignored, and texts are cut. Raises ValueError for other types."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{cls.__name__}: no object")
    hints = _hints(cast("Hashable", cls))
    known = {name: _read(hints[name], entry, name) for name, entry in value.items() if name in hints}
    try:
        return cls(**known)
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: a field is missing") from error


@cache
def _hints(cls: Hashable) -> Mapping[str, Any]:
    """Return the types of the fields: reading them takes longer than all else here."""
    return get_type_hints(cls)


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _read(hint: Any, value: Any, name: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _read(next(one for one in arguments if one is not type(None)), value, name)
    if origin is Literal and isinstance(value, str) and value in arguments:
        return value
    if origin is tuple and isinstance(value, (list, tuple)) and len(value) <= _MOST_ENTRIES:
        return tuple(_read(arguments[0], entry, name) for entry in value)
    if origin is Mapping and isinstance(value, Mapping):
        if len(value) <= _MOST_ENTRIES and all(isinstance(key, str) for key in value):
            return {key[:_MOST_CHARS]: _read(arguments[1], entry, name) for key, entry in value.items()}
    elif is_dataclass(hint) and isinstance(hint, type):
        return from_json(hint, value)
    elif hint is str and isinstance(value, str):
        return value[:_MOST_CHARS]
    elif (hint is bool and isinstance(value, bool)) or (hint in (int, float) and _is_number(value, hint)):
        return value
    raise ValueError(f"{name}: not as it must be")


def _is_number(value: object, kind: type[float]) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind is int and isinstance(value, float)):
        return False
    return math.isfinite(value) and abs(value) < _LARGEST
