"""``seatrial plan show``: every value that a trial would use, and where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from seatrial.cli.command import Command
from seatrial.targets.option import Option

if TYPE_CHECKING:
    from seatrial.checks.check import Rule
    from seatrial.plan.model import Plan

_MAX_COLUMNS = 120
_MIN_ORIGIN_COLUMNS = 30


def options() -> Mapping[str, tuple[Option, ...]]:
    """Return the options by the heading under which help shows them."""
    from seatrial.request.trial_options import PLAN

    as_json = Option(flags=("--json",), name="as_json", help="Print the plan as JSON on standard output.", flag=True)
    return {"Options": (*PLAN, as_json)}


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Print the resolved plan; return the exit code."""
    import json

    from seatrial.checks import registry
    from seatrial.request.trial_request import plan_of

    resolved = plan_of(options)
    others = _untyped(options)
    held = {
        name: tuple(check.rules(resolved.params(name, check.params)))
        for name, check in ((name, registry.load(name)) for name in resolved.checks)
        if check.rules is not None
    }
    if options["as_json"]:
        rows = {
            name: [dict(zip(("what", "limit", "origin"), _row(rule), strict=True)) for rule in table]
            for name, table in held.items()
        }
        print(
            json.dumps({**resolved.to_json(), "held": rows, "options": dict(others)}, indent=2, allow_nan=False),
            flush=True,
        )
    else:
        print("\n".join([*_lines(resolved, registry.scopes(), held), *_lines_of_options(others)]), flush=True)
    return 0


def _untyped(options: Mapping[str, Any]) -> list[tuple[str, tuple[str, str]]]:
    """Return the options of ``seatrial run`` that variables and files set: name, value without secrets, origin."""
    from seatrial.cli.command import commands, options_of
    from seatrial.cli.option_values import shown_name
    from seatrial.targets.option import retyped

    rows = []
    for option in options_of(commands()["run"]):
        origin = options["origins"].get(option.name, shown_name(option))
        if origin != shown_name(option):
            words = [word for word in retyped((option,), options) if word not in option.flags]
            rows.append((shown_name(option), (" ".join(words) or str(options[option.name]).lower(), origin)))
    return rows


def _lines_of_options(others: list[tuple[str, tuple[str, str]]]) -> Iterator[str]:
    if others:
        yield ""
        yield "options of seatrial run that nobody typed"
        yield from _table([(name, value, origin) for name, (value, origin) in others], indent=2)


def _lines(resolved: Plan, scopes: Mapping[str, str], held: Mapping[str, tuple[Rule, ...]]) -> Iterator[str]:
    """Yield the plan as text: a table of values and a table of limits for each check, in the order of a trial."""
    from seatrial.plan.plan_file import LEVELS
    from seatrial.util.text import plan_value

    kind = "level" if resolved.name in LEVELS else "plan"
    deadline = resolved.deadline_s
    yield f"{kind} {resolved.name}: at most {plan_value(deadline.value)} s ({deadline.origin})"
    for check, origin in resolved.not_asked.items():
        yield f"not requested: {check} ({origin})"
    for check in resolved.checks:
        yield ""
        yield f"{check} (scope: {scopes[check]})"
        settings = resolved.settings[check].items()
        yield from _table([(name, plan_value(setting.value), setting.origin) for name, setting in settings], indent=2)
        timeout = resolved.settings[check].get("timeout_s")
        if timeout is not None and timeout.value >= deadline.value:
            limit = plan_value(deadline.value)
            yield f"  note: the trial's deadline of {limit} s ends each step before timeout_s"
        if check in held:
            yield "  limits:"
            yield from _table([_row(rule) for rule in held[check]], indent=4)


def _table(rows: list[tuple[str, str, str]], *, indent: int) -> Iterator[str]:
    """Yield the rows in columns as wide as this table needs; long values and origins continue below themselves."""
    import itertools

    name_width, value_width, origin_width = (max(map(len, column), default=0) for column in zip(*rows, strict=True))
    # Two spaces between columns, and room for an origin.
    columns = _MAX_COLUMNS - indent - name_width - 4
    value_width = min(value_width, columns - min(origin_width, _MIN_ORIGIN_COLUMNS))
    for name, value, origin in rows:
        cells = ([name], _wrap(value, value_width), _wrap(origin, columns - value_width))
        for first, second, third in itertools.zip_longest(*cells, fillvalue=""):
            yield f"{'':{indent}}{first:<{name_width}}  {second:<{value_width}}  {third}".rstrip()


def _wrap(text: str, width: int) -> list[str]:
    """Return the lines of a cell; a word that is wider than the cell stays whole."""
    import textwrap

    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _row(rule: Rule) -> tuple[str, str, str]:
    """Return the measurement, the requirement and its origin as plan show prints them."""
    return rule.subject, rule.requirement, rule.origin


COMMAND = Command(
    name="plan show",
    order=4,
    summary="show what a level or a plan file requests, and where each limit comes from",
    text="""Print the resolved PLAN: each value, the limits that its checks apply, and the origin of both. The end lists
the options of seatrial run that variables SEATRIAL_OPTION_* and files seatrial.toml set.

PLAN is a file (TOML, or JSON named *.json) or a level: smoke (seconds), quick (under a minute; the default), standard
(minutes), acceptance (standard, and limits for all speeds), burn-in (hours).
""",
    options=options,
    run=run,
    sources_of="run",
)
