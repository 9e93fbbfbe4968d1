"""``seatrial plan show``: every value that a trial would use, and where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from seatrial.cli.command import Command
from seatrial.targets.option import Option

_USUAL_COLUMNS = 80
"""Columns of a pipe."""


def options() -> Mapping[str, tuple[Option, ...]]:
    """Return the options by the heading under which help shows them."""
    from seatrial.request.trial_options import PLAN

    as_json = Option(flags=("--json",), name="as_json", help="Print the plan as JSON on standard output.", flag=True)
    verbose = Option(
        flags=("-v", "--verbose"), name="verbose", help="Print all values and limits, each with its origin.", flag=True
    )
    return {"Options": (*PLAN, as_json, verbose)}


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Print the resolved plan; return the exit code."""
    import json
    import sys

    from seatrial.checks import registry
    from seatrial.report.plan_lines import all_lines, row, short_lines
    from seatrial.request.trial_request import plan_of
    from seatrial.util.terminal import columns_of
    from seatrial.util.text import printable

    resolved = plan_of(options)
    others = _untyped(options)
    held = {
        name: tuple(check.rules(resolved.params(name, check.params)))
        for name, check in ((name, registry.load(name)) for name in resolved.checks)
        if check.rules is not None
    }
    if options["as_json"]:
        rows = {
            name: [dict(zip(("what", "limit", "origin"), row(resolved, rule), strict=True)) for rule in table]
            for name, table in held.items()
        }
        print(
            json.dumps({**resolved.to_json(), "held": rows, "options": dict(others)}, indent=2, allow_nan=False),
            flush=True,
        )
    else:
        columns = columns_of(sys.stdout) or _USUAL_COLUMNS
        if options["verbose"]:
            lines = [*all_lines(resolved, registry.scopes(), held, columns), *_lines_of_options(others, columns)]
        else:
            more = "-v shows all values and limits, and where each is from"
            lines = [*short_lines(resolved, held, columns), *_lines_of_options(others, columns), more]
        # The file may come from others.
        print("\n".join(printable(line, len(line)) for line in lines), flush=True)
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


def _lines_of_options(others: list[tuple[str, tuple[str, str]]], columns: int) -> Iterator[str]:
    from seatrial.report.plan_lines import table

    if others:
        yield ""
        yield "options of seatrial run that nobody typed"
        yield from table([(name, value, origin) for name, (value, origin) in others], indent=2, columns=columns)


COMMAND = Command(
    name="plan show",
    order=4,
    summary="show the checks and limits of a level or a plan file",
    text="""Print the resolved PLAN: its checks, what they limit, and the values that a file or an option sets; with -v
each value and limit with its origin. The end lists the options of seatrial run that variables SEATRIAL_OPTION_* and
files seatrial.toml set.

PLAN is a file (TOML, or JSON named *.json) or a level: smoke (seconds), quick (under a minute; the default), standard
(minutes), acceptance (standard, and limits for all speeds), burn-in (hours).
""",
    options=options,
    run=run,
    sources_of="run",
)
