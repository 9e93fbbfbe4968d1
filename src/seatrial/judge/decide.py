"""The verdict (PASS, FAIL or INCONCLUSIVE) from the trial, the rulings and the findings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from seatrial.evidence.findings import Finding, Ruling
from seatrial.evidence.measurement import Measurement
from seatrial.judge.trial import Trial

Status = Literal["PASS", "FAIL", "INCONCLUSIVE"]
CheckStatus = Literal["pass", "fail", "inconclusive", "error", "skipped", "not_applicable", "absent", "not_asked"]
"""``absent``: requested but never started. ``skipped``: communication on a single rank. ``not_applicable``: it ran, and
there is nothing here that it is about."""

COMMUNICATION = "collectives"
TRAINING = "training"
_EXPECTED = (COMMUNICATION, TRAINING)
"""Only these two show that a cluster can train: a PASS without them is partial."""
_BETWEEN_MACHINES = ("network", "links")
"""The checks of single connections: without them, one closed direction or one slow link may pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict, and the reasons why it is not a PASS."""

    status: Status
    exit_code: int
    interrupted: bool
    partial: tuple[str, ...]
    """The limitations of a PASS, such as ``training not asked for`` or ``accuracy not judged``."""
    unlimited: tuple[str, ...]
    """The speeds that were held against no limit, each as the parameter that would set one."""
    checks: Mapping[str, CheckStatus]
    """Every check that was requested or taken out, in the order of the plan."""
    reasons: tuple[str, ...]
    """Why it is INCONCLUSIVE, causes before consequences; empty otherwise."""
    judged: int
    """Number of the measurements that have a limit."""
    measurements: int
    """Number of measurements for which a direction is good. A series over steps counts as one measurement, and so do
    the intermediate values of a long check."""


def decide(trial: Trial, rulings: Mapping[str, Ruling], findings: Iterable[Finding]) -> Verdict:
    """Return the verdict. ``findings`` are all of them, including those of the rulings.

    FAIL on any finding of severity ``fail``. PASS only if all ranks of every step of generation 0 finished it, every
    requested check has a ruling without gaps, and no event is missing. The exit code of an interrupted trial is 130,
    and that of a partial PASS is 3 where the job requires a full one.
    """
    findings = tuple(findings)
    requested = tuple(dict.fromkeys(trial.plan.get("checks", ())))
    taken_out = trial.plan.get("not_asked", {})
    checks: dict[str, CheckStatus] = {name: _check(trial, name, rulings.get(name), findings) for name in requested}
    checks |= {name: "not_asked" for name in sorted(taken_out) if name not in checks}
    reasons = _reasons(trial, checks, rulings, findings)
    unlimited = tuple(dict.fromkeys(key for name in checks if name in rulings for key in rulings[name].unlimited))
    partial = _partial(trial, checks, rulings)
    if trial.plan.get("demands_limits") is True:
        partial += _between_machines(trial, rulings)
        partial += tuple(f"no limit {key}" for key in unlimited)
    status: Status
    if any(finding.severity == "fail" for finding in findings):
        status, exit_code, reasons = "FAIL", 1, ()
    elif reasons:
        # 2 as for every other wrong request: it is to be mended, not repeated.
        status, exit_code = "INCONCLUSIVE", 2 if trial.wrong_requests() else 3
    else:
        status, exit_code = "PASS", 3 if partial and trial.job.get("require_full") is True else 0
    of_interest = {
        _series(measurement)
        for measurement in trial.measurements
        if measurement.better is not None and measurement.generation == 0
    }
    judged = {_series(entry.measurement) for ruling in rulings.values() for entry in ruling.judged}
    return Verdict(
        status=status,
        exit_code=130 if trial.interrupted is not None else exit_code,
        interrupted=trial.interrupted is not None,
        partial=partial,
        unlimited=unlimited,
        checks=checks,
        reasons=reasons,
        judged=len(judged),
        measurements=len(of_interest | judged),
    )


def _between_machines(trial: Trial, rulings: Mapping[str, Ruling]) -> tuple[str, ...]:
    """Return why several nodes tell nothing about several machines: who accepts a cluster must not sign on that."""
    network = rulings.get("network")
    if len(trial.nodes) < 2 or network is None or not network.not_applicable:
        return ()
    return (f"{network.not_applicable}, nothing between machines was checked",)


def _series(measurement: Measurement) -> Measurement:
    """Return the measurement without value and step: equal for all measurements that count as one."""
    return replace(measurement, step=None if measurement.step is None else 0, value=0.0)


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
    if ruling.not_applicable:
        return "not_applicable"
    return "skipped" if name == COMMUNICATION and trial.world_size() == 1 else "pass"


def _reasons(
    trial: Trial, checks: Mapping[str, CheckStatus], rulings: Mapping[str, Ruling], findings: tuple[Finding, ...]
) -> tuple[str, ...]:
    reasons = [f"stopped by {trial.interrupted}"] if trial.interrupted is not None else []
    reasons += [finding.what for finding in findings if finding.severity == "error"]
    reasons += [f"incomplete record: {what}" for what in trial.missing]
    never_began = bool(reasons) and not (trial.steps or trial.nodes or trial.missing)
    for name, status in checks.items():
        if status == "absent" and never_began:
            continue  # the reason is there, and this follows from it
        if status == "absent":
            reasons.append(f"{name} was requested but never started")
        elif status == "inconclusive":
            steps = [step for step in trial.steps if step.generation == 0 and step.check == name]
            finished = all(step.complete() for step in steps)
            lacks = rulings[name].absent if name in rulings and finished else ()
            more = f" and {len(lacks) - 4} more" if len(lacks) > 4 else ""
            members = "nodes" if any(step.nodes for step in steps) else "ranks"
            reasons.append(
                f"{name} lacks {', '.join(lacks[:4])}{more}" if lacks else f"not all {members} finished {name}"
            )
    if trial.troubles and not any(finding.severity in ("fail", "error") for finding in findings):
        reasons.append("the conductor reported trouble that no finding explains")
    if all(status in ("not_asked", "skipped", "not_applicable") for status in checks.values()):
        reasons.append(_nothing_checked(checks))
    return tuple(reasons)


def _reduced(trial: Trial) -> list[str]:
    """Return what a plan set below its level, without the parameters of devices that this trial does not have."""
    reduced = trial.plan.get("reduced")
    elsewhere = (".gpu_", ".host_copy_") if trial.device_type == "cpu" else (".cpu_",)
    return [
        f"{name} is {words}"
        for name, words in (reduced.items() if isinstance(reduced, dict) else ())
        if not any(part in name for part in elsewhere)
    ]


def _nothing_checked(checks: Mapping[str, CheckStatus]) -> str:
    if "not_applicable" in checks.values():
        return "none of the requested checks is about anything here"
    return "none of the requested checks can run on a single rank" if checks else "no check was requested"


def _partial(trial: Trial, checks: Mapping[str, CheckStatus], rulings: Mapping[str, Ruling]) -> tuple[str, ...]:
    """Return what the user took out, the plan lacks, no limit could judge, and a single rank cannot show."""
    out = [name for name, status in checks.items() if status == "not_asked"]
    partial = [f"{', '.join(out)} not asked for"] if out else []
    partial += [f"{name} not in the plan" for name in _EXPECTED if name not in checks]
    if len(trial.machines()) > 1:
        planned = {*trial.plan.get("checks", ()), *checks}
        without = [name for name in _BETWEEN_MACHINES if name not in planned]
        partial += [f"{', '.join(without)} not asked for"] if without else []
    partial += [what for name in checks if name in rulings for what in rulings[name].unjudged]
    partial += _reduced(trial)
    absent = trial.job.get("absent")
    if isinstance(absent, list) and absent:
        names = ", ".join(str(words).partition(":")[0] for words in absent[:4])
        partial.append(f"{len(absent)} of the hosts absent: {names}")
    return (*partial, *(("1 rank",) if trial.world_size() == 1 else ()))
