"""The report as one page: no scripts, nothing fetched, fit to be printed."""

from __future__ import annotations

import json
from typing import Any

from seatrial.checks.base import last_told
from seatrial.conductor.conclude import Conclusion
from seatrial.report import charts
from seatrial.report.summary import comm_variables, error_lines, headline, main_figures, sentence, summary
from seatrial.report.text import amount, moment, printable, size

__all__ = ["html", "plan_value"]


def html(conclusion: Conclusion) -> str:
    """The page. Every text is escaped by the template, and has no control characters left."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("seatrial.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Whatever is printed: a control character is no markup, but it is no text either.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters |= {"amount": amount, "size": size}
    trial = conclusion.trial
    figures = last_told(figure for figure in trial.figures if figure.generation == 0)
    planted = trial.job.get("planted")
    page = environment.get_template("page.html.j2").render(
        conclusion=conclusion,
        trial=trial,
        verdict=conclusion.verdict,
        headline=headline(conclusion),
        summary=summary(conclusion),
        errors=error_lines(conclusion),
        planted=[str(fault) for fault in planted] if isinstance(planted, list) else [],
        timestamp=moment(trial.created),
        findings=[
            (finding, sentence(finding), [entry.splitlines() for entry in finding.evidence])
            for finding in conclusion.findings
        ],
        main_figures=main_figures(figures),
        curves=charts.curves(figures),
        bars=charts.bars(figures),
        pairs=charts.pairs(figures),
        settings=_settings(conclusion),
        width=charts.WIDTH,
        height=charts.HEIGHT,
    )
    return page + "\n"


def _settings(conclusion: Conclusion) -> list[tuple[str, str, str]]:
    """(key, value, origin) of the plan, whoever wrote it, and of the network."""
    tables = conclusion.trial.plan.get("settings")
    rows = []
    for check, table in tables.items() if isinstance(tables, dict) else ():
        for name, pair in table.items() if isinstance(table, dict) else ():
            value, origin = pair if isinstance(pair, list) and len(pair) == 2 else (pair, "")
            rows.append((f"{check}.{name}", plan_value(value), str(origin)))
    return rows + [(f"env.{name}", value, "the command") for name, value in comm_variables(conclusion).items()]


def plan_value(value: Any) -> str:
    """A value as a plan file would have it; ``none``, which TOML does not know, for a parameter that is off."""
    if value is None:
        return "none"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple | list):
        return f"[{', '.join(plan_value(item) for item in value)}]"
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)
