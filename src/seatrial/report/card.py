"""The last lines of a trial: the banner, the verdict in figures, who is at fault, the report, and what to run next."""

from __future__ import annotations

import shlex
from pathlib import Path

from seatrial.environment.self_location import command_line
from seatrial.judge.conclude import Conclusion
from seatrial.report.finding_lines import is_fault
from seatrial.report.summary import (
    comm_variables,
    error_lines,
    fault_injection,
    headline,
    not_applicable,
    not_full,
    summary,
)
from seatrial.report.view import USUAL_COLUMNS, View, height
from seatrial.util.text import fitted, format_number, format_seconds, printable

_RULE = "=" * 50
_MOST_ERROR_ROWS = 4
_MOST_NAMES = 3
_STRONGER = {"smoke": "quick", "quick": "standard", "standard": "acceptance"}


def card(conclusion: Conclusion, report: Path | None, view: View) -> list[str]:
    """Return the card; nothing follows it. ``report``: path of the written report."""
    rule = _RULE[: view.columns]
    return [
        rule,
        headline(conclusion),
        *(f"- {line}" for line in [*summary(conclusion), *_errors(conclusion, view)]),
        rule,
        *filter(None, [fault_injection(conclusion)]),
        f"{_verdict(conclusion)}: {figures(conclusion)}",
        *([f"at fault: {culprits(conclusion)}"] if conclusion.verdict.status == "FAIL" else []),
        *why_lines(conclusion),
        *_not_applicable(conclusion),
        *_unlimited(conclusion),
        *([f"report: {printable(str(report))}"] if report is not None else []),
        f"next: {_next(conclusion, report)}",
    ]


def _verdict(conclusion: Conclusion) -> str:
    """Return the verdict as the first line of the banner has it, without the limitations of a PASS."""
    verdict = conclusion.verdict
    is_partial = verdict.status == "PASS" and verdict.partial
    return f"PASS (partial{not_full(conclusion)})" if is_partial else verdict.status


def figures(conclusion: Conclusion) -> str:
    """Return how many checks, ranks and seconds a trial had: ``1 of 7 checks failed, 5 passed, 2 ranks, 20 s``."""
    trial, verdict = conclusion.trial, conclusion.verdict
    requested = [status for status in verdict.checks.values() if status != "not_asked"]
    passed, failed = requested.count("pass"), requested.count("fail")
    if not requested:
        return f"no check was requested, {_number(trial.world_size(), 'rank')}"
    checks = f"{passed} of {_number(len(requested), 'check')} passed"
    if "not_applicable" in requested:
        checks += f", {requested.count('not_applicable')} not applicable"
    if failed:
        checks = f"{failed} of {_number(len(requested), 'check')} failed, {passed} passed"
    nodes = len(trial.nodes)
    where = f" on {nodes} nodes" if nodes > 1 else ""
    seconds = "" if trial.seconds is None else f", {format_seconds(trial.seconds)}"
    return f"{checks}, {_number(trial.world_size(), 'rank')}{where}{seconds}"


def culprits(conclusion: Conclusion) -> str:
    """Return who is at fault, the first three by name."""
    named = [finding.culprit for finding in conclusion.findings if finding.severity == "fail"]
    names = list(dict.fromkeys(printable(culprit.name) for culprit in named if culprit.kind != "none"))
    if not names:
        return "nobody could be named"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _number(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _errors(conclusion: Conclusion, view: View) -> list[str]:
    """Return the first error in full, and the number of the others, which stand above the card."""
    errors = error_lines(conclusion)
    if not errors:
        return []
    columns = view.columns or USUAL_COLUMNS
    cut = fitted(errors[0], _MOST_ERROR_ROWS * max(columns, USUAL_COLUMNS) - 2)
    while height(f"- {cut}", view.columns) > _MOST_ERROR_ROWS and columns >= USUAL_COLUMNS:
        cut = fitted(cut, len(cut) - 4)
    count = sum(map(is_fault, conclusion.findings)) - 1
    return [cut, f"Error: and {count} more above"] if count else [cut]


def comm_lines(conclusion: Conclusion) -> list[str]:
    """Return the network variables of the ranks as one line, to copy them into a job script."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in comm_variables(conclusion).items()]
    return [printable(f"environment of the ranks: {' '.join(variables)}")] if variables else []


def reason_lines(conclusion: Conclusion) -> list[str]:
    """Return why it is not a PASS, without the reasons that are findings; checks that never started are one line."""
    verdict = conclusion.verdict
    findings = {finding.what for finding in conclusion.findings}
    absent = [name for name, status in verdict.checks.items() if status == "absent"]
    folded = {f"{name} was requested but never started" for name in absent} if len(absent) > 1 else set()
    reasons = [reason for reason in verdict.reasons if reason not in findings | folded]
    if verdict.status == "FAIL":
        reasons = [f"incomplete record: {what}" for what in conclusion.trial.missing]
    elif folded:
        reasons.append(f"requested but never started: {', '.join(absent)}")
    return [f"not a PASS: {printable(reason)}" for reason in reasons]


def _not_applicable(conclusion: Conclusion) -> list[str]:
    """Return which checks of a PASS were about nothing here."""
    names = not_applicable(conclusion)
    return [f"not applicable: {', '.join(names)}"] if names and conclusion.verdict.status == "PASS" else []


def _unlimited(conclusion: Conclusion) -> list[str]:
    """Return which speeds of a PASS were held against no limit."""
    verdict = conclusion.verdict
    if verdict.status != "PASS" or not verdict.unlimited:
        return []
    return [printable(f"held against no limit: {', '.join(verdict.unlimited)} (docs/checks.md)")]


def why_lines(conclusion: Conclusion) -> list[str]:
    """Return the first reason of a trial that is not decided, where no error of the banner says it."""
    if conclusion.verdict.status != "INCONCLUSIVE" or any(map(is_fault, conclusion.findings)):
        return []
    return [f"why: {line.removeprefix('not a PASS: ')}" for line in reason_lines(conclusion)[:1]]


def _next(conclusion: Conclusion, report: Path | None) -> str:
    """Return what to do next, with the command as it was typed."""
    trial, verdict = conclusion.trial, conclusion.verdict
    plan = str(trial.plan.get("name") or "quick")
    launcher = trial.job.get("launcher")
    under = f"under {launcher} as before: " if launcher else ""
    again = _command(conclusion, plan)
    if verdict.interrupted:
        words = f"run it again, to its end: {under}{again}"
    elif verdict.status != "PASS" and fault_injection(conclusion):
        words = f"the fault was planted; without SEATRIAL_PLANT, run: {under}{again}"
    elif verdict.status == "PASS" and verdict.unlimited and trial.plan.get("demands_limits") is True:
        from seatrial.report.plan_of_runs import ENOUGH_RUNS, written_limits

        by_hand = [key for key in verdict.unlimited if key not in written_limits(conclusion)]
        if by_hand:
            return printable(f"write limits into the plan: {', '.join(by_hand)}; then: {under}{again}")
        runs = " ".join(["RUN" if report is None else shlex.quote(str(report.parent)), "RUN2", "RUN3"])
        limited = _command(conclusion, "limits.toml", "--require-full")
        words = (
            f"after {ENOUGH_RUNS} such runs on idle nodes: {command_line()} plan from {runs} > limits.toml,"
            f" then: {under}{limited}"
        )
    elif verdict.status == "PASS":
        stronger = _STRONGER.get(plan)
        command = _command(conclusion, stronger or plan)
        words = f"{under}{command}" if stronger else f"after each repair or change, run: {under}{again}"
    elif needed := _needed(conclusion):
        keys = ", ".join(f"{name} = {value}" for name, value in needed.items() if not name.startswith("--"))
        mine = _command(conclusion, "PLAN.toml")
        words = f"write a plan file with {keys}, then run: {under}{mine}" if keys else f"{under}{again}"
    else:
        words = f"{'fix' if verdict.status == 'FAIL' else 'resolve'} the problem above, then run: {under}{again}"
    return printable(words)


def _command(conclusion: Conclusion, plan: str, *more: str) -> str:
    options = conclusion.trial.job.get("options")
    words = [str(word) for word in options] if isinstance(options, list) else []
    words += [word for word in more if word not in words]
    for name, value in _needed(conclusion).items():
        if not name.startswith("--"):  # a key of a plan file
            continue
        at = words.index(name) if name in words else len(words)
        words[at : at + 2] = name, value
    return f"{command_line()} {shlex.join(['run', plan, *words])}"


def _needed(conclusion: Conclusion) -> dict[str, str]:
    """Return the options and keys of a plan file that the findings of a trial that is not decided ask for."""
    if conclusion.verdict.status != "INCONCLUSIVE":
        return {}
    asked = [finding.options for finding in conclusion.findings if finding.severity == "error"]
    return {name: value for options in asked for name, value in zip(options[::2], options[1::2], strict=False)}


def measured_line(conclusion: Conclusion) -> str:
    """Return how many measurements have a limit."""
    verdict = conclusion.verdict
    return f"{format_number(verdict.judged)} of {verdict.measurements} measurements have a limit"
