"""Other work beside a trial: whether a rank waited for the CPU, and which limits come from such runs. Pure."""

from __future__ import annotations

from seatrial.checks.network.judge import ONE_MACHINE
from seatrial.checks.shared.speed import CPU_SHARE, MIN_CPU_SHARE
from seatrial.evidence.evidence import short_names
from seatrial.judge.conclude import Conclusion
from seatrial.report.summary import drill
from seatrial.util.text import printable

DISTURBED_ORIGIN = "beside other work"
"""Stands in the origin of a limit that comes from such runs."""


def cpu_shortage(conclusion: Conclusion) -> str:
    """Return which rank waited for the CPU most, and why; empty where all ranks got what ``CPU_SHARE`` demands."""
    trial = conclusion.trial
    shares = [entry for entry in trial.measurements if entry.name == CPU_SHARE.measurement]
    least = min(shares, key=lambda entry: entry.value, default=None)
    if least is None or CPU_SHARE.passes(least.value):
        return ""
    rank = short_names(trial.ranks)(least.rank or 0)
    got = f"{rank} got {least.value * 100:.0f} % of the CPU time that it could use in {least.check}"
    if is_one_machine(conclusion):
        return printable(f"the nodes are one machine, whose ranks share its cores ({got})")
    return printable(f"other processes held the CPU ({got})")


def is_one_machine(conclusion: Conclusion) -> bool:
    """Return whether several nodes of the trial are one machine."""
    reasons = [ruling.not_applicable for ruling in conclusion.rulings.values()]
    return len(conclusion.trial.nodes) > 1 and ONE_MACHINE in reasons


def disturbance_lines(conclusion: Conclusion) -> list[str]:
    """Return what makes the speeds of a PASS or a FAIL worth little: ranks without CPU, and limits of such runs.

    A drill says nothing about the cluster anyway.
    """
    if conclusion.verdict.status == "INCONCLUSIVE" or drill(conclusion):
        return []
    lines = []
    if shortage := cpu_shortage(conclusion):
        least = f"{MIN_CPU_SHARE * 100:.0f} % is demanded"
        lines.append(f"disturbed: {shortage}; {least}, so the speeds of this run say little")
    if limits := _limits_of_disturbed_runs(conclusion):
        lines.append(f"limits from runs {DISTURBED_ORIGIN}, which find little: {', '.join(limits)}")
    return lines


def _limits_of_disturbed_runs(conclusion: Conclusion) -> list[str]:
    tables = conclusion.trial.plan.get("settings")
    return [
        printable(f"{check}.{name}")
        for check, table in (tables.items() if isinstance(tables, dict) else ())
        for name, pair in (table.items() if isinstance(table, dict) else ())
        if name.startswith(("min_", "max_")) and isinstance(pair, list) and DISTURBED_ORIGIN in str(pair[1:])
    ]
