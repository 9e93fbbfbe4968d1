"""A plan as text for a terminal: in short, or all values and limits with their origins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from seatrial.plan.model import Plan
from seatrial.plan.plan_file import LEVELS
from seatrial.plan.plan_reader import OF_DEADLINE, is_typed
from seatrial.util.terminal import wrapped
from seatrial.util.text import plan_value

if TYPE_CHECKING:
    from seatrial.checks.check import Rule

Row = tuple[str, str, str]
"""A name, its value or requirement, and its origin."""
Rules = Mapping[str, tuple["Rule", ...]]
"""Check -> the limits that it applies."""

_MOST_COLUMNS = 120
_MOST_OF_NAMES = 0.35
"""Share of the columns that names may take; longer ones are broken between words."""


def short_lines(plan: Plan, rules: Rules, columns: int) -> Iterator[str]:
    """Yield the deadline, what each check limits, and the values that a file or an option sets.

    ``columns``: those of the terminal.
    """
    yield from _head(plan, columns)
    yield ""
    yield "checks, and what each limits:"
    width = max(map(len, plan.checks))
    for check in plan.checks:
        # Conditions, such as the number of ranks, make several rules of one limit.
        subjects = dict.fromkeys(rule.measurement for rule in rules.get(check, ()) if not rule.is_left_out)
        yield f"  {check:{width}}  {_in_one_row(tuple(subjects), columns - width - 4)}".rstrip()
    names = [(f"{check}.{name}", setting) for check, table in plan.settings.items() for name, setting in table.items()]
    given = [
        (name, plan_value(setting.value), setting.origin)
        for name, setting in names
        if is_typed(setting) and not setting.origin.startswith(OF_DEADLINE)
    ]
    if given:
        yield from ("", "set by a file or an option:", *table(given, indent=2, columns=columns))
    for check in plan.checks:
        yield from _notes(plan, check, columns)
    open_limits = [
        name for name, setting in names if setting.value is None and name.partition(".")[2].startswith(("min_", "max_"))
    ]
    if open_limits:
        yield ""
        yield "limits that nobody set; a plan file can:"
        yield from (f"  {part}" for part in _cells(", ".join(open_limits), columns - 2))


def all_lines(plan: Plan, scopes: Mapping[str, str], rules: Rules, columns: int) -> Iterator[str]:
    """Yield a table of values and a table of limits for each check, in the order of a trial."""
    yield from _head(plan, columns)
    for check in plan.checks:
        yield ""
        yield f"{check} (scope: {scopes[check]})"
        settings = plan.settings[check].items()
        yield from table(
            [(name, plan_value(setting.value), setting.origin) for name, setting in settings], indent=2, columns=columns
        )
        yield from _notes(plan, check, columns)
        if check in rules:
            yield "  limits:"
            yield from table([row(plan, rule) for rule in rules[check]], indent=4, columns=columns)


def row(plan: Plan, rule: Rule) -> Row:
    """Return the measurement, the requirement and its origin."""
    return rule.subject, rule.requirement, plan.named(rule.origin)


def table(rows: list[Row], *, indent: int, columns: int) -> Iterator[str]:
    """Yield the rows in columns as wide as this table needs; an origin that does not fit stands below, in brackets."""
    import itertools

    width = min(columns, _MOST_COLUMNS) - indent
    name_width = min(max(len(name) for name, _, _ in rows), int(_MOST_OF_NAMES * width))
    rest = width - name_width - 2
    # Two spaces between columns.
    fitting = [len(value) for _, value, origin in rows if len(value) + 2 + len(origin) <= rest]
    value_width = max(fitting, default=0)
    for name, value, origin in rows:
        fits = len(value) <= value_width and value_width + 2 + len(origin) <= rest
        cells = [f"{value:{value_width}}  {origin}"] if fits else _cells(value, rest)
        below = [] if fits else _cells(f"({origin})", rest)
        if any(len(part) > rest for part in below):  # the path of a plan file
            below = _cells(f"({origin})", width - 2)
        else:
            cells, below = [*cells, *below], []
        for part, cell in itertools.zip_longest(_cells(name, name_width), cells, fillvalue=""):
            yield f"{'':{indent}}{part:<{name_width}}  {cell}".rstrip()
        yield from (f"{'':{indent + 2}}{part}" for part in below)


def _head(plan: Plan, columns: int) -> Iterator[str]:
    kind = "level" if plan.name in LEVELS else "plan"
    deadline = plan.deadline_s
    yield from wrapped(f"{kind} {plan.name}: at most {plan_value(deadline.value)} s ({deadline.origin})", columns)
    if plan.demands_limits:
        yield from wrapped("a PASS is partial while a speed is held against no limit", columns)
    for check, origin in plan.not_asked.items():
        yield from wrapped(f"not requested: {check} ({origin})", columns)
    for name, words in plan.reduced.items():
        yield from wrapped(f"less than the level, so that a PASS is partial: {name} {words}", columns)


def _notes(plan: Plan, check: str, columns: int) -> Iterator[str]:
    timeout = plan.settings[check].get("timeout_s")
    if timeout is not None and timeout.value >= plan.deadline_s.value:
        limit = plan_value(plan.deadline_s.value)
        yield from wrapped(
            f"  note: the trial's deadline of {limit} s ends each step before {check}.timeout_s", columns
        )


def _in_one_row(names: Sequence[str], width: int) -> str:
    """Return as many names as fit, and how many more there are."""
    shorter = ("; ".join([*names[:count], f"{len(names) - count} more"]) for count in reversed(range(len(names))))
    rows = ["; ".join(names), *shorter]
    return next((row for row in rows if len(row) <= width), rows[-1])


def _cells(text: str, width: int) -> list[str]:
    """Return the lines of a cell; a word that is wider than the cell stays whole."""
    import textwrap

    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
