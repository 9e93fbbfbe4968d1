"""The report as one page, from top to bottom: no scripts, nothing fetched, printable."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from seatrial.checks.shared.facts import latest
from seatrial.evidence.measurement import Fact, Measurement
from seatrial.judge.conclude import Conclusion
from seatrial.report.card import command_of
from seatrial.report.charts import bars, curves, left_out_words, pair_tables
from seatrial.report.disturbance import disturbance_lines
from seatrial.report.grouping import MOST_CHARTS
from seatrial.report.markup import Content, Markup, element, fragment
from seatrial.report.summary import (
    comm_variables,
    drill,
    error_lines,
    headline,
    main_measurements,
    sentence,
    summary,
)
from seatrial.util.text import format_number, format_size, format_time, plan_value

_DOCTYPE = Markup("<!doctype html>\n")
_NEWLINE = Markup("\n")
_NUMBER = "n"
"""The CSS class of a cell that is aligned as a number."""
_MOST_LACKING = 8
_MOST_LOOKED_AT = 8
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = Markup("""
:root { color-scheme: light dark; --line: #8886; --good: #1a7f37; --bad: #cf222e; --open: #9a6700; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { border-left: .5rem solid var(--open); padding-left: .8rem; font-size: 1.5rem; }
h1.PASS { border-color: var(--good); } h1.FAIL { border-color: var(--bad); }
h2 { margin-top: 2rem; font-size: 1.15rem; } h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
table { border-collapse: collapse; margin: .5rem 0; }
td, th { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
.fail { color: var(--bad); } .error, .warn, .inconclusive { color: var(--open); } .pass { color: var(--good); }
td.word { white-space: nowrap; }
.scroll { overflow-x: auto; }
pre { margin: .2rem 0 .2rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
li, td, p { overflow-wrap: anywhere; } .planted { border: 2px solid var(--bad); padding: .5rem 1rem; }
svg { max-width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
polyline { fill: none; stroke: currentColor; stroke-width: 1.5; }
.bar { background: var(--line); height: .8rem; display: block; } .bars td { border: 0; padding: .05rem .5rem; }
@media print {
  body { margin: 0; max-width: none; font-size: 11pt; } details > * { display: block; }
  h2, h3 { break-after: avoid; } svg, tr, li { break-inside: avoid; }
}
""")


def page(conclusion: Conclusion) -> Markup:
    """Return the whole page."""
    # A long check reports its measurements repeatedly; the last report of each rank counts.
    measurements = latest(measurement for measurement in conclusion.trial.measurements if measurement.generation == 0)
    return fragment(
        _DOCTYPE,
        element(
            "html",
            _head(conclusion),
            element(
                "body",
                _banner(conclusion),
                _reasons(conclusion),
                _findings(conclusion),
                _checks(conclusion),
                _main_measurements(measurements),
                curves(measurements),
                bars(measurements),
                pair_tables(measurements),
                _ranks(conclusion),
                _steps(conclusion),
                _plan(conclusion),
            ),
            lang="en",
        ),
    )


def _head(conclusion: Conclusion) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element(
            "title",
            "DRILL: " if drill(conclusion) else "",
            *(headline(conclusion), " - seatrial ", conclusion.trial.run),
        ),
        element("style", _STYLE),
    )


def _banner(conclusion: Conclusion) -> Iterator[Markup]:
    trial, verdict = conclusion.trial, conclusion.verdict
    yield element("h1", headline(conclusion), class_=verdict.status)
    if drill(conclusion):
        yield element("p", element("strong", drill(conclusion)), class_="planted")
    yield element(
        "ul",
        (element("li", line) for line in summary(conclusion)),
        (element("li", line, class_="fail") for line in error_lines(conclusion)),
    )
    for line in disturbance_lines(conclusion):
        yield element("p", element("strong", line, class_="warn"))
    yield element(
        "p",
        *("Run ", trial.run or "unknown", ", ", format_time(trial.created), " UTC, ", trial.world_size(), " ranks, "),
        *("seatrial ", trial.version or "of unknown version", ". "),
        *(verdict.judged, " of ", verdict.measurements, " measurements have a limit."),
    )
    yield element("p", "Started as: ", element("code", command_of(conclusion)))


def _reasons(conclusion: Conclusion) -> Iterator[Markup]:
    reasons = conclusion.verdict.reasons or conclusion.trial.missing
    if reasons:
        failed = conclusion.verdict.status == "FAIL"
        yield element("h2", "Missing from the record" if failed else "Why it is not a PASS")
        yield element("ul", (element("li", reason) for reason in reasons))


def _findings(conclusion: Conclusion) -> Iterator[Markup]:
    if conclusion.findings:
        yield element("h2", "Findings")
        yield element(
            "ul",
            (
                element(
                    "li",
                    element("strong", finding.severity, class_=finding.severity),
                    *(" ", finding.check, ": ", sentence(finding)),
                    (_lines(entry) for entry in finding.evidence),
                )
                for finding in conclusion.findings
            ),
        )


def _lines(text: str) -> Markup:
    return element("pre", ((line, _NEWLINE) for line in text.splitlines()))


def _checks(conclusion: Conclusion) -> Iterator[Markup]:
    rows = []
    looked_at = _looked_at(conclusion)
    for name, status in conclusion.verdict.checks.items():
        ruling = conclusion.rulings.get(name)
        words = "never started" if status == "absent" else status.replace("_", " ")
        judged = len(ruling.judged) if ruling else 0
        seen = looked_at.get(name, "")
        lacks = ", ".join(ruling.absent[:_MOST_LACKING]) if ruling else ""
        if ruling and status == "not_applicable":
            words += f": {ruling.not_applicable}"
        rows.append((element("td", name, class_="word"), element("td", words, class_=status), seen, judged, lacks))
    yield element("h2", "Checks")
    yield _table(
        *(("check", None), ("status", None), ("looked at", None), ("numbers with a limit", _NUMBER), ("lacks", None)),
        rows=rows,
    )


def _looked_at(conclusion: Conclusion) -> dict[str, str]:
    """Return the names of what each check measured and read; a verdict may come from facts alone."""
    entries: tuple[Measurement | Fact, ...] = (*conclusion.trial.measurements, *conclusion.trial.facts)
    names = defaultdict[str, dict[str, None]](dict)
    for entry in entries:
        names[entry.check][entry.name.replace("_", " ")] = None
    return {
        check: ", ".join([*found][:_MOST_LOOKED_AT]) + (", ..." if len(found) > _MOST_LOOKED_AT else "")
        for check, found in names.items()
    }


def _main_measurements(measurements: Iterable[Measurement]) -> Iterator[Markup]:
    shown, left_out = Counter[str](), 0
    rows = []
    for row in main_measurements(measurements):
        if shown[row.check] == MOST_CHARTS:
            left_out += 1
            continue
        shown[row.check] += 1
        rows.append(
            (
                row.check,
                f"{row.name} {row.variant}",
                format_size(row.size_bytes) if row.size_bytes is not None else "",
                *(format_number(row.value), format_number(row.low), format_number(row.high)),
                row.unit if row.unit != "1" else "",
                row.count,
            )
        )
    if rows:
        yield element("h2", "Main measurements")
        yield _scrolled(
            _table(
                *(("check", None), ("measurement", None), ("size", None)),
                *(("median", _NUMBER), ("lowest", _NUMBER), ("highest", _NUMBER), ("unit", None), ("of", _NUMBER)),
                rows=rows,
            )
        )
        yield from left_out_words(left_out)


def _ranks(conclusion: Conclusion) -> Iterator[Markup]:
    yield element("h2", "Ranks")
    yield _scrolled(
        _table(
            *(("rank", _NUMBER), ("node", None), ("local rank", _NUMBER), ("device", None), ("kind", None)),
            rows=[
                (rank.rank, rank.place, rank.local_rank, rank.device, rank.kind)
                for rank in conclusion.trial.ranks.values()
            ],
        )
    )


def _steps(conclusion: Conclusion) -> Iterator[Markup]:
    yield element("h2", "Steps")
    yield _scrolled(
        _table(
            *(("generation", _NUMBER), ("step", _NUMBER), ("check", None), ("stage", None)),
            *(("finished", _NUMBER), ("seconds", _NUMBER), ("outcome", None)),
            rows=[
                (
                    *(step.generation, step.number, step.check, step.stage),
                    f"{len(step.done) + len(step.nodes_done)} of {len(step.ranks) + len(step.nodes)}",
                    format_number(step.seconds) if step.seconds is not None else "",
                    step.outcome or "unknown",
                )
                for step in conclusion.trial.steps
            ],
        )
    )


def _plan(conclusion: Conclusion) -> Iterator[Markup]:
    yield element("h2", "Plan")
    yield _scrolled(_table(("setting", None), ("value", None), ("origin", None), rows=_settings(conclusion)))


def _settings(conclusion: Conclusion) -> list[tuple[str, str, str]]:
    """Return (key, value, origin) of the plan, even of a malformed one, and of the network variables."""
    tables = conclusion.trial.plan.get("settings")
    rows = []
    for check, table in tables.items() if isinstance(tables, dict) else ():
        for name, pair in table.items() if isinstance(table, dict) else ():
            value, origin = pair if isinstance(pair, list) and len(pair) == 2 else (pair, "")
            rows.append((f"{check}.{name}", plan_value(value), str(origin)))
    return rows + [(f"env.{name}", value, "the command") for name, value in comm_variables(conclusion).items()]


def _table(*columns: tuple[str, str | None], rows: Iterable[Sequence[Content]]) -> Markup:
    """Return a table of columns (heading, class); markup in ``rows`` is a whole cell."""
    return element(
        "table",
        element("tr", (element("th", heading, class_=kind) for heading, kind in columns)),
        (
            element(
                "tr",
                (
                    cell if isinstance(cell, Markup) else element("td", cell, class_=kind)
                    for cell, (_, kind) in zip(row, columns, strict=True)
                ),
            )
            for row in rows
        ),
    )


def _scrolled(table: Markup) -> Markup:
    """Return the table in a box that scrolls, so that a wide table does not widen the page."""
    return element("div", table, class_="scroll")
