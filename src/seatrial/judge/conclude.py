"""From the events of a trial to the input of every report: fold, judge each check, blame, decide."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from seatrial.checks import registry
from seatrial.checks.check import Check
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import NOBODY, Finding, Ruling
from seatrial.judge.blame import observe
from seatrial.judge.decide import Verdict, decide
from seatrial.judge.device_activity import with_device_activity
from seatrial.judge.fold import evidence_so_far, fold
from seatrial.judge.limit_origins import with_origins
from seatrial.judge.root_causes import Observed, order_by_cause
from seatrial.judge.trial import StepRecord, Trial
from seatrial.plan.model import Plan

Load = Callable[[str], Check]
Answer = TypeVar("Answer")

_CONNECTING = ("network", "links", "bootstrap")
"""The checks in which ranks or nodes connect to one another for the first time."""
_MOST_TIMES = 64
"""How often the findings of a check may list all ranks and nodes of a trial."""
_FEW_PLACES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """A trial, the ruling of each check, all findings, and the verdict."""

    trial: Trial
    rulings: Mapping[str, Ruling]
    """By check; without the checks whose judge failed."""
    findings: tuple[Finding, ...]
    """All findings, the gravest first; of equal ones causes before consequences."""
    verdict: Verdict
    is_disconnected: bool = False
    """Communication failed before the check of communication: while ranks met, or between nodes before that."""


def conclude(messages: Iterable[Mapping[str, Any]], *, damaged: int = 0, load: Load | None = None) -> Conclusion:
    """Judge a trial by its events, complete or not. Never raises for their content.

    Args:
        messages: the events, in any order.
        damaged: the number of lines that were cut or changed, or stand in a file that may not say so.
        load: returns a check by its name, or raises KeyError. Default: that of ``checks/registry.py``.
    """
    trial = fold(messages, damaged_lines=damaged)
    rulings, failures = _rulings(trial, load or registry.load)
    if trial.missing:
        rulings = {name: _without_comparisons(ruling) for name, ruling in rulings.items()}
    rulings = {name: _in_few_words(trial, ruling) for name, ruling in rulings.items()}
    rulings, observed = with_device_activity(trial, rulings), observe(trial)
    if any(note.untrusted for note in trial.notes):
        rulings = {
            name: replace(ruling, findings=tuple(map(_doubted, ruling.findings))) for name, ruling in rulings.items()
        }
        observed = tuple(replace(entry, finding=_doubted(entry.finding)) for entry in observed)
    judged = [*failures, *(finding for ruling in rulings.values() for finding in ruling.findings)]
    verdict = decide(trial, rulings, [*(entry.finding for entry in observed), *judged])
    return Conclusion(
        trial=trial,
        rulings=rulings,
        findings=_without_repairs(trial, order_by_cause(trial, observed, judged)),
        verdict=verdict,
        is_disconnected=_is_disconnected(observed, judged),
    )


def suspects(plan: Plan, check: str, events: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the ranks that a check asks to measure again alone, by the events so far; none if it cannot say."""
    return _ask(plan, check, events, registry.load(check).suspects) or ()


def next_round(
    plan: Plan, check: str, events: Iterable[Mapping[str, Any]]
) -> tuple[tuple[int, ...], dict[str, Any]] | None:
    """Return the ranks and the input of the next round of a check, by the events so far; None for no more rounds."""
    return _ask(plan, check, events, registry.load(check).next_round)


def fails(plan: Plan, check: str, events: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a check fails by the events so far; no if it cannot say."""
    ruling = _ask(plan, check, events, registry.load(check).judge)
    return ruling is not None and any(finding.severity == "fail" for finding in ruling.findings)


def interface(plan: Plan, check: str, events: Iterable[Mapping[str, Any]]) -> str:
    """Return the network interface that a check of agents chooses for the ranks, by its events; empty: none."""
    return _ask(plan, check, events, registry.load(check).interface) or ""


def _ask(
    plan: Plan,
    check: str,
    events: Iterable[Mapping[str, Any]],
    function: Callable[[Evidence, Any], Answer] | None,
) -> Answer | None:
    if function is None:
        return None
    try:
        return function(evidence_so_far(check, events), plan.params(check, registry.load(check).params))
    except Exception:  # at the end the same measurements are judged, and the error becomes a finding there
        return None


def _is_disconnected(observed: Iterable[Observed], judged: Iterable[Finding]) -> bool:
    """Return whether a failure shows that ranks or nodes cannot communicate, by the checks in which they connect."""
    findings = [*(entry.finding for entry in observed if entry.is_hang), *judged]
    return any(
        finding.severity == "fail"
        and finding.check in _CONNECTING
        and finding.culprit.kind in ("link", "fabric", "node")
        for finding in findings
    )


def _rulings(trial: Trial, load: Load) -> tuple[dict[str, Ruling], list[Finding]]:
    """Judge each check of the plan; a judge that fails becomes a finding."""
    rulings: dict[str, Ruling] = {}
    failures: list[Finding] = []
    if not trial.plan:
        return rulings, failures
    try:
        plan = Plan.from_json(trial.plan)
    except Exception as error:  # events may contain anything
        return rulings, [_failure("trial", f"the plan in the events cannot be read ({type(error).__name__}: {error})")]
    for name in dict.fromkeys(plan.checks):
        try:
            check = load(name)
        except KeyError as error:
            failures.append(_failure(name, f"this seatrial cannot judge {name}: it does not know {error}"))
            continue
        try:
            rulings[name] = with_origins(plan, _ruling(trial, check, plan.params(name, check.params)))
        except Exception as error:  # a bug in one judge must not prevent the report
            what = f"the judge of {name} failed: {type(error).__name__}: {error}"
            failures.append(_failure(name, what, traceback.format_exc()))
    return rulings, failures


def evidence_of(trial: Trial, check: str) -> Evidence:
    """Return everything that one check is judged by."""
    steps = [step for step in trial.steps if step.generation == 0 and step.check == check]
    asked, unfinished = _asked(steps)
    nodes_late = {node for step in steps for node in step.nodes if node not in step.nodes_done}
    claims = _claims(trial)
    return Evidence(
        ranks=trial.ranks,
        asked=tuple(sorted(asked - unfinished)),
        measurements=tuple(
            measurement
            for measurement in trial.measurements
            if (measurement.check, measurement.generation) == (check, 0)
        ),
        facts=tuple(fact for fact in trial.facts if (fact.check, fact.generation) == (check, 0)),
        backend=trial.backend,
        device_type=trial.device_type,
        rounds=trial.rounds.get(check, {}),
        interface=trial.interfaces.get(check, ""),
        places_of_nodes=trial.places_of_nodes,
        nodes={
            node: trial.host_name(node) for node in sorted({node for step in steps for node in step.nodes} - nodes_late)
        },
        other_names={name: min(places.values()) for name, places in claims.items() if len(places) == 1},
        disputed_names=frozenset(name for name, places in claims.items() if len(places) > 1),
    )


def _claims(trial: Trial) -> dict[str, dict[str, int]]:
    """Return what hosts call themselves -> the places that do, each with one of its nodes."""
    claims: dict[str, dict[str, int]] = {}
    for entry in trial.nodes:
        for name in filter(None, (entry.address, entry.hostname, entry.calls_itself, entry.name)):
            claims.setdefault(name, {}).setdefault(trial.places_of_nodes.get(entry.node, ""), entry.node)
    return claims


def _asked(steps: Iterable[StepRecord]) -> tuple[set[int], set[int]]:
    """Return the ranks that were asked, and those of them that did not finish."""
    asked = {rank for step in steps for rank in step.ranks}
    return asked, {rank for step in steps for rank in step.ranks if rank not in step.done}


def _ruling(trial: Trial, check: Check, params: Any) -> Ruling:
    steps = [step for step in trial.steps if step.generation == 0 and step.check == check.name]
    _, unfinished = _asked(steps)
    nodes_late = {node for step in steps for node in step.nodes if node not in step.nodes_done}
    evidence = evidence_of(trial, check.name)
    never_asked = _never_asked(trial, check)
    if not (evidence.asked or evidence.nodes or evidence.measurements or evidence.facts):
        return Ruling(absent=never_asked or ("any measurement",))
    ruling: Ruling = check.judge(evidence, params)
    findings = ruling.findings
    if unfinished or nodes_late or never_asked:
        # A remark ("was not checked, as the backend lacks it") may only mean that the check did not get so far.
        findings = tuple(finding for finding in findings if finding.severity != "info")
    # A node that did not report may be the one that the check is about.
    is_incomplete = bool(never_asked or unfinished or nodes_late or ruling.absent)
    why = "" if is_incomplete else ruling.not_applicable
    return replace(ruling, findings=findings, absent=(*ruling.absent, *never_asked), not_applicable=why)


def _never_asked(trial: Trial, check: Check) -> tuple[str, ...]:
    """Return the stages that were not started, or not on all ranks."""
    absent = []
    for stage in check.stages:
        if stage.excuses:
            continue  # without it nobody is excused
        if check.scope == "agents":
            steps = [step for step in trial.steps if (step.check, step.stage) == (check.name, stage.name)]
            left_out = {entry.node for entry in trial.nodes} - {node for step in steps for node in step.nodes}
            if not steps:
                absent.append(f"stage {stage.name}")
            elif left_out:
                absent.append(f"stage {stage.name} of {len(left_out)} nodes")
            continue
        asked = {
            rank
            for step in trial.steps
            if (step.generation, step.check, step.stage) == (0, check.name, stage.name)
            for rank in step.ranks
        }
        if not asked:
            absent.append(f"stage {stage.name}")
        elif stage.shares is None and asked < set(trial.ranks):
            absent.append(f"stage {stage.name} of {len(set(trial.ranks) - asked)} ranks")
    return tuple(absent)


def _without_repairs(trial: Trial, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return the findings; those of a drill without what would mend a fault that nobody has."""
    if not trial.job.get("planted"):
        return findings
    return tuple(replace(finding, action="") if finding.severity == "fail" else finding for finding in findings)


def _in_few_words(trial: Trial, ruling: Ruling) -> Ruling:
    """Return the ruling; where very many findings are about the same ranks, the later ones say only whose name it is.

    A node of thousands of ranks with a finding about each of them would be listed thousands of times.
    """
    left = _MOST_TIMES * (len(trial.ranks) + len(trial.nodes))
    findings = list[Finding]()
    for finding in ruling.findings:
        culprit = finding.culprit
        left -= len(culprit.ranks) + len(culprit.nodes)
        if left < 0 and len(culprit.ranks) + len(culprit.nodes) > _FEW_PLACES:
            finding = replace(finding, culprit=replace(culprit, ranks=(), nodes=culprit.nodes[:_FEW_PLACES]))
        findings.append(finding)
    return replace(ruling, findings=tuple(findings))


def _without_comparisons(ruling: Ruling) -> Ruling:
    """Return the ruling for an incomplete record, where an outlier may be the only rank that is not missing.

    A finding by comparison becomes an error without a culprit; one by a limit from outside of the fleet remains.
    """
    return replace(
        ruling,
        findings=tuple(
            replace(finding, severity="error", culprit=NOBODY, what=f"{finding.what}, judged by an incomplete record")
            if finding.severity == "fail" and (finding.limit is None or finding.limit.origin.startswith("fleet"))
            else finding
            for finding in ruling.findings
        ),
    )


def _doubted(finding: Finding) -> Finding:
    """Return a finding of a trial in which a node may be another one than it says: what others say of a rank or node
    may be its second voice, so nobody is blamed."""
    if finding.severity != "fail":
        return finding
    what = f"{finding.what}, in a trial in which a node may be another one than it says"
    return replace(finding, severity="error", culprit=NOBODY, what=what, action="", options=())


def _failure(check: str, what: str, stack: str = "") -> Finding:
    return Finding(
        severity="error",
        check=check,
        what=what,
        culprit=NOBODY,
        evidence=("its stack:\n" + stack.rstrip(),) if stack else (),
        action="this is not a fault of the cluster; judge the events with the seatrial that wrote them, or report it",
    )
