"""From all events of a trial to what every report draws from: fold, judge, blame, decide."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from seatrial.checks.base import Check
from seatrial.plan.model import Plan
from seatrial.verdict.blame import blame
from seatrial.verdict.decide import Verdict, decide
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Culprit, Finding, Ruling
from seatrial.verdict.fold import evidence_so_far, fold
from seatrial.verdict.trial import Trial

__all__ = ["Conclusion", "conclude", "next_round", "suspects"]

Load = Callable[[str], Check]
Wish = TypeVar("Wish")

_NOBODY = Culprit(kind="none", name="nobody could be named")
_RANKING = {"fail": 0, "error": 1, "warn": 2, "info": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The trial, what was judged of it, and the verdict."""

    trial: Trial
    rulings: Mapping[str, Ruling]
    findings: tuple[Finding, ...]
    """All findings, the gravest first."""
    verdict: Verdict


def conclude(messages: Iterable[Mapping[str, Any]], *, damaged: int = 0, load: Load | None = None) -> Conclusion:
    """Judge a trial by its events, complete or not. Never raises for what they contain.

    ``damaged`` counts lines that were cut or changed on the way. ``load`` finds a check by its name.
    """
    trial = fold(messages, damaged_lines=damaged)
    rulings, broken = _rulings(trial, load or _registered)
    if trial.missing:
        rulings = {name: _careful(ruling) for name, ruling in rulings.items()}
    findings = [*blame(trial), *broken, *(finding for ruling in rulings.values() for finding in ruling.findings)]
    findings.sort(key=lambda finding: _RANKING[finding.severity])
    verdict = decide(trial, rulings, findings)
    return Conclusion(trial=trial, rulings=rulings, findings=tuple(findings), verdict=verdict)


def suspects(plan: Plan, check: str, events: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """The ranks that a check wants measured again alone, from what came so far; none when it cannot say."""
    return _asked(plan, check, events, _registered(check).suspects) or ()


def next_round(
    plan: Plan, check: str, events: Iterable[Mapping[str, Any]]
) -> tuple[tuple[int, ...], dict[str, Any]] | None:
    """What a check wants measured next by which ranks, from what came so far; None when nothing, or it cannot say."""
    return _asked(plan, check, events, _registered(check).next_round)


def _asked(
    plan: Plan, check: str, events: Iterable[Mapping[str, Any]], ask: Callable[[Evidence, Any], Wish] | None
) -> Wish | None:
    if ask is None:
        return None
    try:
        return ask(evidence_so_far(check, events), plan.params(check, _registered(check).params))
    except Exception:  # the same figures are judged at the end, and an error of the judge is told there
        return None


def _registered(name: str) -> Check:
    from seatrial.checks import registry

    return registry.load(name)


def _rulings(trial: Trial, load: Load) -> tuple[dict[str, Ruling], list[Finding]]:
    rulings: dict[str, Ruling] = {}
    broken: list[Finding] = []
    if not trial.plan:
        return rulings, broken
    try:
        plan = Plan.from_json(trial.plan)
    except Exception as error:  # whoever wrote the events may have written anything
        return rulings, [_own("trial", f"the plan in the events cannot be read ({type(error).__name__}: {error})")]
    for name in dict.fromkeys(plan.checks):
        try:
            check = load(name)
            rulings[name] = _ruling(trial, check, plan.params(name, check.params))
        except KeyError as error:
            broken.append(_own(name, f"this seatrial cannot judge {name}: {error} is not known to it"))
        except Exception as error:  # a mistake in one judge must not take the report away
            what = f"the judge of {name} failed: {type(error).__name__}: {error}"
            broken.append(_own(name, what, traceback.format_exc()))
    return rulings, broken


def _ruling(trial: Trial, check: Check, params: Any) -> Ruling:
    steps = [step for step in trial.steps if step.generation == 0 and step.check == check.name]
    asked = {rank for step in steps for rank in step.ranks}
    unfinished = {rank for step in steps for rank in step.ranks if rank not in step.done}
    evidence = Evidence(
        ranks=trial.ranks,
        asked=tuple(sorted(asked - unfinished)),
        figures=tuple(figure for figure in trial.figures if (figure.check, figure.generation) == (check.name, 0)),
        facts=tuple(fact for fact in trial.facts if (fact.check, fact.generation) == (check.name, 0)),
        backend=trial.backend,
        device_type=trial.device_type,
    )
    never_asked = _never_asked(trial, check)
    if not (evidence.asked or evidence.figures or evidence.facts):
        return Ruling(absent=never_asked or ("any figure",))
    ruling: Ruling = check.judge(evidence, params)
    findings = ruling.findings
    if unfinished or never_asked:
        # What is only remarked upon ("was not checked, as the backend lacks it") may just not have come to pass.
        findings = tuple(finding for finding in findings if finding.severity != "info")
    return replace(ruling, findings=findings, absent=(*ruling.absent, *never_asked))


def _never_asked(trial: Trial, check: Check) -> tuple[str, ...]:
    """Stages that were not begun, or not asked of all ranks."""
    absent = []
    for stage in check.stages:
        asked = {
            rank
            for step in trial.steps
            if (step.generation, step.check, step.stage) == (0, check.name, stage.name)
            for rank in step.ranks
        }
        if not asked:
            absent.append(f"stage {stage.name}")
        elif not stage.first_only and asked < set(trial.ranks):
            absent.append(f"stage {stage.name} of {len(set(trial.ranks) - asked)} ranks")
    return tuple(absent)


def _careful(ruling: Ruling) -> Ruling:
    """With events lost, whoever stands out among the rest may be the only one whose peers are missing.

    A finding that holds a figure against a limit from outside the fleet stands; one by comparison names nobody.
    """
    return replace(
        ruling,
        findings=tuple(
            replace(finding, severity="error", culprit=_NOBODY, what=f"{finding.what}, by what is left of the events")
            if finding.severity == "fail" and (finding.limit is None or finding.limit.origin.startswith("fleet"))
            else finding
            for finding in ruling.findings
        ),
    )


def _own(check: str, what: str, stack: str = "") -> Finding:
    return Finding(
        severity="error",
        check=check,
        what=what,
        culprit=_NOBODY,
        evidence=("its stack:\n" + stack.rstrip(),) if stack else (),
        action="this says nothing of the cluster: judge the events with the version that made them, or report it.",
    )
