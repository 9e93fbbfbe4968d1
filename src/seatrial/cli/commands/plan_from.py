"""``seatrial plan from``: a plan whose limits come from runs that passed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.cli.command import Command
from seatrial.targets.option import Option


def options() -> Mapping[str, tuple[Option, ...]]:
    """Return the options by the heading under which help shows them."""
    from pathlib import Path

    return {
        "Options": (
            Option(
                flags=(),
                name="runs",
                help="Folders of runs, or their event files.",
                type=Path,
                metavar="RUN...",
                multiple=True,
                required=True,
            ),
            Option(
                flags=("--disturbed-runs",),
                name="disturbed_runs",
                help="Take runs whose ranks waited for the CPU, too; the origin of each limit says it.",
                flag=True,
            ),
        )
    }


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Print the plan; return the exit code."""
    from seatrial.judge.conclude import conclude
    from seatrial.report.plan_of_runs import plan_text, refuse_disturbed, warnings
    from seatrial.report.recorded_events import read_events
    from seatrial.util.streams import print_status

    conclusions = []
    for path in options["runs"]:
        messages, damaged = read_events((path,))
        conclusions.append(conclude(messages, damaged=damaged))
    text = plan_text(conclusions)
    if not options["disturbed_runs"]:
        refuse_disturbed(conclusions)
    for warning in warnings(conclusions):
        print_status(f"seatrial: warning: {warning}")
    print(text, flush=True)
    return 0


COMMAND = Command(
    name="plan from",
    order=5,
    summary="write a plan with limits from runs that passed",
    text="""Print a plan whose limits come from RUNs that passed on the same devices.

Each limit is the lowest value of a speed over all runs and ranks, less 10 % of the median, or less the spread where
that is larger; a comment keeps the median, the spread and the runs. Give three runs or more, on idle nodes. Values
that the plan file of the first run sets, such as [storage] folder, are kept; a comment says which limits nobody can
take from runs. A partial PASS is refused, unless only limits were missing in it, and so is a run beside other work.
""",
    options=options,
    run=run,
)
