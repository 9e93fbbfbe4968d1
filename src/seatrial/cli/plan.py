"""``seatrial plan show``: every value that a trial would use, and where it came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from seatrial.plan.model import Plan
from seatrial.plan.reader import read_plan
from seatrial.plan.source import DEFAULT_LEVEL, LEVELS

__all__ = ["plan"]


@click.group()
def plan() -> None:
    """Look at what a trial asks and within which limits."""


@plan.command()
@click.argument("source", metavar="[PLAN]", default=DEFAULT_LEVEL)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as one JSON document.")
def show(source: str, as_json: bool) -> None:
    """Print the resolved PLAN: each value and its origin.

    PLAN is a TOML file or a level: smoke (seconds), quick (under a minute; the default), standard (minutes),
    burn-in (hours).
    """
    from seatrial.checks import registry

    checks = {name: registry.load(name) for name in registry.names()}
    scopes = {name: check.scope for name, check in checks.items()}
    resolved = read_plan(source, schemas={name: check.params for name, check in checks.items()}, scopes=scopes)
    if as_json:
        click.echo(json.dumps(resolved.to_json(), indent=2, allow_nan=False))
    else:
        click.echo("\n".join(_lines(resolved, scopes)))


def _lines(resolved: Plan, scopes: Mapping[str, str]) -> Iterator[str]:
    """The plan as aligned text: one block a check, in the order of a trial; one column width for all blocks."""
    kind = "level" if resolved.name in LEVELS else "plan"
    deadline = resolved.deadline_s
    yield f"{kind} {resolved.name}: at most {_text(deadline.value)} s ({deadline.origin})"
    for check, origin in resolved.not_asked.items():
        yield f"not asked for: {check} ({origin})"
    rows = {
        check: [(name, _text(setting.value), setting.origin) for name, setting in table.items()]
        for check, table in resolved.settings.items()
    }
    cells = [row for table in rows.values() for row in table]
    name_width = max((len(name) for name, _, _ in cells), default=0)
    value_width = max((len(value) for _, value, _ in cells), default=0)
    for check in resolved.checks:
        yield ""
        yield f"{check} (scope: {scopes[check]})"
        for name, value, origin in rows[check]:
            yield f"  {name:<{name_width}}  {value:<{value_width}}  {origin}"


def _text(value: Any) -> str:
    """A value as a plan file would have it; ``none``, which TOML does not know, for a parameter that is off."""
    if value is None:
        return "none"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple | list):
        return f"[{', '.join(_text(item) for item in value)}]"
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)
