"""PASS, FAIL or INCONCLUSIVE, from the fold, the rulings and the findings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from seatrial.verdict.figures import Figure
from seatrial.verdict.findings import Finding, Ruling
from seatrial.verdict.trial import Trial

__all__ = ["COMMUNICATION", "TRAINING", "CheckStatus", "Verdict", "decide"]

CheckStatus = Literal["pass", "fail", "inconclusive", "error", "skipped", "absent", "not_asked"]
"""``absent``: asked for and never begun. ``skipped``: one rank alone has nobody to talk to."""

COMMUNICATION = "collectives"
TRAINING = "training"
_EXPECTED = (COMMUNICATION, TRAINING)
"""Without these two a cluster has not shown that it can train: a PASS without them is partial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer, and why it is not a better one."""

    status: Literal["PASS", "FAIL", "INCONCLUSIVE"]
    exit_code: int
    interrupted: bool
    partial: tuple[str, ...]
    """What a PASS does not cover, such as ``training not asked for`` or ``accuracy not judged``."""
    checks: Mapping[str, CheckStatus]
    """Every check that was asked for or taken out, in the order of the plan."""
    reasons: tuple[str, ...]
    """Why it is INCONCLUSIVE; empty otherwise."""
    judged: int
    figures: int
    """Figures that say good or bad; those that are only told do not count. A series over steps is one figure, and so is
    what was told again and again while it was measured."""


def decide(trial: Trial, rulings: Mapping[str, Ruling], findings: Iterable[Finding]) -> Verdict:
    """Put it all together. ``findings`` are all of them, those of the rulings included.

    FAIL on any finding that fails. PASS only when every step of generation 0 of every check that was asked for was
    finished by all who were asked, its ruling lacks nothing, and no event was lost. Interrupted ends with 130.
    """
    findings = tuple(findings)
    asked = tuple(dict.fromkeys(trial.plan.get("checks", ())))
    taken_out = trial.plan.get("not_asked", {})
    checks: dict[str, CheckStatus] = {name: _check(trial, name, rulings.get(name), findings) for name in asked}
    checks |= {name: "not_asked" for name in sorted(taken_out) if name not in checks}
    reasons = _reasons(trial, checks, rulings, findings)
    if any(finding.severity == "fail" for finding in findings):
        status, exit_code, reasons = "FAIL", 1, ()
    elif reasons:
        status, exit_code = "INCONCLUSIVE", 3
    else:
        status, exit_code = "PASS", 0
    of_interest = {_counted(figure) for figure in trial.figures if figure.better is not None and figure.generation == 0}
    judged = {_counted(entry.figure) for ruling in rulings.values() for entry in ruling.judged}
    return Verdict(
        status=status,  # type: ignore[arg-type]  # one of the three, as just set
        exit_code=130 if trial.interrupted is not None else exit_code,
        interrupted=trial.interrupted is not None,
        partial=_partial(trial, checks, rulings),
        checks=checks,
        reasons=reasons,
        judged=len(judged),
        figures=len(of_interest | judged),
    )


def _counted(figure: Figure) -> Figure:
    """What stands for the figure when figures are counted: where it was measured, whatever the value and the step."""
    return replace(figure, step=None if figure.step is None else 0, value=0.0)


def _check(trial: Trial, name: str, ruling: Ruling | None, findings: tuple[Finding, ...]) -> CheckStatus:
    severities = {finding.severity for finding in findings if finding.check == name}
    if ruling is not None:
        severities |= {finding.severity for finding in ruling.findings}
    steps = [step for step in trial.steps if step.generation == 0 and step.check == name]
    if "fail" in severities:
        return "fail"
    if "error" in severities:
        return "error"
    if not steps:
        return "absent"
    if ruling is None or ruling.absent or not all(step.complete() for step in steps):
        return "inconclusive"
    return "skipped" if name == COMMUNICATION and trial.world_size() == 1 else "pass"


def _reasons(
    trial: Trial, checks: Mapping[str, CheckStatus], rulings: Mapping[str, Ruling], findings: tuple[Finding, ...]
) -> tuple[str, ...]:
    reasons = [f"stopped by {trial.interrupted}"] if trial.interrupted is not None else []
    reasons += [f"lost: {what}" for what in trial.missing]
    reasons += [finding.what for finding in findings if finding.severity == "error"]
    for name, status in checks.items():
        if status == "absent":
            reasons.append(f"{name} was asked for and never begun")
        elif status == "inconclusive":
            steps = [step for step in trial.steps if step.generation == 0 and step.check == name]
            finished = all(step.complete() for step in steps)
            lacks = rulings[name].absent if name in rulings and finished else ()
            more = f" and {len(lacks) - 4} more" if len(lacks) > 4 else ""
            reasons.append(f"{name} lacks {', '.join(lacks[:4])}{more}" if lacks else f"{name} was not finished by all")
    if trial.troubles and not any(finding.severity in ("fail", "error") for finding in findings):
        reasons.append("the conductor saw trouble that no finding explains")
    if all(status in ("not_asked", "skipped") for status in checks.values()):
        reasons.append("nothing was asked for that one rank alone can show" if checks else "no check was asked for")
    return tuple(reasons)


def _partial(trial: Trial, checks: Mapping[str, CheckStatus], rulings: Mapping[str, Ruling]) -> tuple[str, ...]:
    """What the user took out, what the plan never had, what nothing could judge, and what one rank cannot show."""
    out = [name for name, status in checks.items() if status == "not_asked"]
    partial = [f"{', '.join(out)} not asked for"] if out else []
    partial += [f"{name} not in the plan" for name in _EXPECTED if name not in checks]
    partial += [what for name in checks if name in rulings for what in rulings[name].unjudged]
    absent = trial.job.get("absent")
    if isinstance(absent, list) and absent:
        names = ", ".join(str(words).partition(":")[0] for words in absent[:4])
        partial.append(f"{len(absent)} of the hosts absent: {names}")
    return (*partial, *(("1 rank",) if trial.world_size() == 1 else ()))
