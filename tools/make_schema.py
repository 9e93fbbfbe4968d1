"""Write src/seatrial/report/schema.json: the types of report/document.py as JSON Schema.

.venv/bin/python tools/make_schema.py
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from seatrial.evidence.measurement import Fact, Measurement
from seatrial.evidence.schema_types import Keywords
from seatrial.report.document import Report

FILE = Path(__file__).parents[1] / "src" / "seatrial" / "report" / "schema.json"

Schema = dict[str, Any]
_ALWAYS_PRESENT: Mapping[type, frozenset[str]] = {
    Fact: frozenset(Fact(check="", name="", value=None).to_json()),
    Measurement: frozenset(Measurement(check="", name="", value=0.0, unit="").to_json()),
}
"""The required fields of the records whose ``to_json`` omits fields that are None or at their default."""

_NUMBER: Schema = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
_NUMBER_REF: Schema = {"$ref": "#/$defs/number"}
_SCALARS: Mapping[Any, Schema] = {
    Any: {},
    bool: {"type": "boolean"},
    float: _NUMBER_REF,
    int: {"type": "integer"},
    str: {"type": "string"},
    type(None): {"type": "null"},
}

# Types cannot say how fields depend on one another.
_RULES = [
    {
        "if": {"properties": {"exit_code": {"const": 0}}},
        "then": {
            "properties": {
                "status": {"const": "success"},
                "missing": {"maxItems": 0},
                "findings": {"items": {"properties": {"severity": {"enum": ["warn", "info"]}}}},
            }
        },
    },
    {
        "if": {"properties": {"status": {"const": "success"}}},
        "then": {"properties": {"exit_code": {"const": 0}}},
    },
]


def text() -> str:
    """Return the content of the file."""
    return json.dumps(schema(), indent=1) + "\n"


def schema() -> Schema:
    """Return the JSON Schema (2020-12) of the report."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Report of a seatrial acceptance trial",
        **schema_of(Report),
        "allOf": _RULES,
    }


def schema_of(record: type) -> Schema:
    """Return the schema of a dataclass, with those of its fields in ``$defs``. Raises TypeError for other types."""
    defs: dict[str, Schema] = {}
    root = _object(record, defs)
    return {**root, "$defs": {"number": _NUMBER, **dict(sorted(defs.items()))}}


def _object(record: type, defs: dict[str, Schema]) -> Schema:
    always = _ALWAYS_PRESENT.get(record)
    hints = get_type_hints(record, include_extras=True)
    properties = {name: _of(kind if always is None else _without_none(kind), defs) for name, kind in hints.items()}
    required = [name for name in properties if always is None or name in always]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _of(kind: Any, defs: dict[str, Schema]) -> Schema:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        narrowed = [extra.keywords for extra in inner[1:] if isinstance(extra, Keywords)]
        return {key: value for part in (_of(inner[0], defs), *narrowed) for key, value in part.items()}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return _any_of([_of(member, defs) for member in inner])
    if origin is tuple and inner[1:] == (...,):
        return {"type": "array", "items": _of(inner[0], defs)}
    if origin is Mapping and inner[0] is str:
        return {"type": "object", **({} if inner[1] is Any else {"additionalProperties": _of(inner[1], defs)})}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in defs:
            defs[kind.__name__] = {}
            defs[kind.__name__] = _object(kind, defs)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    raise TypeError(f"{kind!r} has no JSON Schema here")


def _any_of(members: list[Schema]) -> Schema:
    """Return one schema for all members, in its usual short form if it has one."""
    first, null = members[0], members[-1]
    if len(members) == 2 and null == {"type": "null"}:
        if isinstance(first.get("type"), str) and first["type"] in ("integer", "string"):
            return {**first, "type": [first["type"], "null"]}
        if first.keys() == {"enum"}:
            return {"enum": [*first["enum"], None]}
    return {"anyOf": members}


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    return Union[tuple(member for member in get_args(kind) if member is not type(None))]  # noqa: UP007 - made of a tuple


if __name__ == "__main__":
    FILE.write_text(text())
