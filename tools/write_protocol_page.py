"""Write the two tables of docs/protocol.md from the types in seatrial/protocol.

.venv/bin/python tools/write_protocol_page.py
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, is_typeddict

from seatrial.protocol import commands, events

PAGE = Path(__file__).parents[1] / "docs" / "protocol.md"
_SOURCE = re.compile(r"(.*) \(([^()]*)\)\.")
"""A docstring of an event: its meaning, and its sources in parentheses."""


def page_with_tables(page: str) -> str:
    """Return the page with both tables written anew, between their comments."""
    for name, rows in (("commands", _command_rows()), ("events", _event_rows())):
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        page = before + begin + table + end + rest.partition(end)[2]
    return page


def _command_rows() -> list[list[str]]:
    rows = [["kind", "from → to", "meaning", "fields"], ["---"] * 4]
    for direction, types in commands.DIRECTIONS.items():
        rows += [[f"`{_kind(cls)}`", direction, _meaning(cls), _fields(cls)] for cls in types]
    return rows


def _event_rows() -> list[list[str]]:
    rows = [["kind", "source", "meaning", "fields"], ["---"] * 4]
    for cls in get_args(events.Event):
        match = _SOURCE.fullmatch(_meaning(cls))
        assert match, f"the docstring of {cls.__name__} names no source in parentheses"
        rows.append([f"`{_kind(cls)}`", match[2], f"{match[1]}.", _fields(cls)])
    return rows


def _kind(cls: type) -> str:
    """Return the value of the literal ``kind``."""
    annotation = _annotations(cls)["kind"][0]
    kind = ast.literal_eval(annotation.removeprefix("Literal[").removesuffix("]"))
    assert isinstance(kind, str)
    return kind


def _meaning(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").replace("``", "`").split())


def _fields(cls: type) -> str:
    """Return "name (type): meaning" of each field but the kind and the header."""
    optional: frozenset[str] = cls.__optional_keys__  # type: ignore[attr-defined]  # of a TypedDict
    rows = []
    for name, (annotation, doc) in _annotations(cls).items():
        if name != "kind":
            type_text = annotation.replace("|", "or").replace("None", "null")
            rows.append(f"`{name}` ({type_text}{', optional' if name in optional else ''}): {doc}")
            rows += _inner_fields(name, annotation)
    return "<br>".join(rows).replace("``", "`") or "–"


def _inner_fields(name: str, annotation: str) -> Iterator[str]:
    """Yield the fields of a field that is a TypedDict by itself."""
    inner = getattr(commands, annotation, None)
    if isinstance(inner, type) and is_typeddict(inner):
        for key, (its_annotation, doc) in _annotations(inner).items():
            yield f"`{name}.{key}` ({its_annotation}): {doc}"
            yield from _inner_fields(f"{name}.{key}", its_annotation)


def _annotations(cls: type) -> dict[str, tuple[str, str]]:
    """Return (annotation, docstring) of each field as written, those of the base classes but Header last."""
    body = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(body, ast.ClassDef)
    fields: dict[str, tuple[str, str]] = {}
    for statement, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            doc = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            fields[statement.target.id] = (ast.unparse(statement.annotation), " ".join(str(doc).split()))
    for base in body.bases:
        name = base.id if isinstance(base, ast.Name) else ""
        parent = getattr(inspect.getmodule(cls), name, None)
        if name not in ("TypedDict", "Header") and isinstance(parent, type):
            fields = {**fields, **{key: value for key, value in _annotations(parent).items() if key not in fields}}
    return fields


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text()))
