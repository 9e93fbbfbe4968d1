"""``seatrial plan show``: every value that a trial would use, and where it came from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from seatrial.plan.model import Plan
from seatrial.plan.reader import read_plan
from seatrial.plan.source import DEFAULT_LEVEL, LEVELS
from seatrial.report.html import plan_value

if TYPE_CHECKING:
    from seatrial.checks.base import Held

__all__ = ["plan"]


@click.group()
def plan() -> None:
    """Look at what a trial asks and within which limits."""


@plan.command()
@click.argument("source", metavar="[PLAN]", default=DEFAULT_LEVEL)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as one JSON document.")
def show(source: str, as_json: bool) -> None:
    """Print the resolved PLAN: each value, what figures are held against, and the origin of both.

    PLAN is a file (TOML, or JSON named *.json) or a level: smoke (seconds), quick (under a minute; the
    default), standard (minutes), burn-in (hours).
    """
    from seatrial.checks import registry

    checks = {name: registry.load(name) for name in registry.names()}
    scopes = {name: check.scope for name, check in checks.items()}
    resolved = read_plan(source, schemas={name: check.params for name, check in checks.items()}, scopes=scopes)
    held = {
        name: limits(resolved.params(name, checks[name].params))
        for name in resolved.checks
        if (limits := checks[name].limits) is not None
    }
    if as_json:
        rows = {name: [dataclasses.asdict(row) for row in table] for name, table in held.items()}
        click.echo(json.dumps({**resolved.to_json(), "held": rows}, indent=2, allow_nan=False))
    else:
        click.echo("\n".join(_lines(resolved, scopes, held)))


def _lines(resolved: Plan, scopes: Mapping[str, str], held: Mapping[str, tuple[Held, ...]]) -> Iterator[str]:
    """The plan as aligned text: one block a check, in the order of a trial; one column width for all blocks."""
    kind = "level" if resolved.name in LEVELS else "plan"
    deadline = resolved.deadline_s
    yield f"{kind} {resolved.name}: at most {plan_value(deadline.value)} s ({deadline.origin})"
    for check, origin in resolved.not_asked.items():
        yield f"not asked for: {check} ({origin})"
    rows = {
        check: [
            (f"  {name}", plan_value(setting.value), setting.origin)
            for name, setting in resolved.settings[check].items()
        ]
        for check in resolved.checks
    }
    limits = {check: [(f"    {row.what}", row.limit, row.origin) for row in table] for check, table in held.items()}
    cells = [row for table in (*rows.values(), *limits.values()) for row in table]
    name_width = max((len(name) for name, _, _ in cells), default=0)
    value_width = max((len(value) for _, value, _ in cells), default=0)
    for check in resolved.checks:
        yield ""
        yield f"{check} (scope: {scopes[check]})"
        told = [*rows[check], *([("  held against:", "", ""), *limits[check]] if check in limits else [])]
        for name, value, origin in told:
            yield f"{name:<{name_width}}  {value:<{value_width}}  {origin}".rstrip()
