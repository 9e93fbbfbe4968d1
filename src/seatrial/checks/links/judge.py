"""The judge of the links check: the culprit solver's diagnosis of each fabric, as findings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from seatrial.checks.links.fabric_text import FabricText, read_reports
from seatrial.checks.links.fabrics import Cost, Fabric, costs, device_kind, fabrics, ranks_of_hosts
from seatrial.checks.links.observations import Answers, FabricObservations, observe, read_answers, rounds_of
from seatrial.checks.links.params import Params
from seatrial.checks.links.round_request import not_checked, wanted_round, without_page
from seatrial.checks.links.solver import Diagnosis, DirectedLink, solve
from seatrial.checks.links.solver.rates import LinkRates, gather
from seatrial.checks.shared.host_inventory import listed
from seatrial.checks.shared.store_reach import store_findings
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Judged, Limit, Ruling
from seatrial.evidence.statistics import VOTING_HOSTS

_SEVERITIES = ("info", "warn", "error", "fail")
"""From the least to the most severe."""
_FEW_FAST = 2
"""The least number of far better links that counts: one transfer may have been lucky."""
_NO_LINK = Finding(
    severity="info",
    check="links",
    what="nothing was measured: between processes on the CPUs of one node there is no link",
    culprit=Culprit(kind="none", name="nobody"),
)


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Name the culprits of each fabric; open questions are absent."""
    if len(evidence.ranks) == 1:
        return Ruling()
    unreachable = store_findings(evidence, "links")
    if unreachable and not evidence.measurements:
        return Ruling(findings=unreachable)
    if evidence.device_type == "cpu" and len(ranks_of_hosts(evidence)) == 1:
        return Ruling(findings=(_NO_LINK,))
    reason = not_checked(evidence)
    if reason:
        return Ruling(unjudged=(f"links not measured: {reason}",))
    answers = read_answers(evidence)
    evidence = answers.evidence
    findings: list[Finding] = [*unreachable]
    judged: list[Judged] = []
    absent = [*answers.damaged]
    unjudged = [*_machines_of_one_place(evidence)]
    paired, reports = set[int](), read_reports(evidence)
    for fabric in fabrics(evidence, params):
        paired.update(() if fabric.inside else fabric.topology.members)
        observations = observe(answers, fabric)
        absent += observations.damaged
        is_one_machine = len({evidence.ranks[rank].node for rank in fabric.topology.members}) == 1
        text = FabricText(evidence=evidence, fabric=fabric, reports=reports, is_one_machine=is_one_machine)
        if wanted_round(observations, fabric, answers) is not None:
            absent.append(f"the last rounds between {fabric.name}")
        for pair in sorted(map(sorted, observations.rates.given_up)):
            words = observations.unmet[frozenset(pair)]
            absent.append(f"a result for {text.link_name(*pair)}, whose ends did not meet ({words})")
        if lost := without_page(observations, fabric, answers):
            absent.append(f"an address where {listed('rank', lost)} can be met")
        if observations.late:
            num_late = len(observations.late)
            absent.append(f"{fabric.name}: time for all exchanges of {num_late} groups (raise links.timeout_s)")
        by_rate = solve(observations.rates, fabric.topology, fabric.limits)
        by_cost = [
            (cost, solve(observations.by_cost[cost.measurement], fabric.topology, fabric.limits))
            for cost in costs(device_kind(evidence))
        ]
        findings += _findings(text, [(None, by_rate), *by_cost])
        rates = gather(observations.rates, fabric.topology, fabric.limits)
        far_better = list(_far_better(text, rates, findings))
        findings += far_better
        if far_better and len(fabric.topology.members) == VOTING_HOSTS:
            # Of three, two that are slow alike and one that claims to be fast look the same.
            question = f"which of three is right: {far_better[0].evidence[0]} are faster (set links.min_gbps)"
            absent.append(f"{fabric.name}: {question}")
        judged += _judged(answers, fabric, by_rate, observations, rates)
        diagnoses = (by_rate, *(diagnosis for _, diagnosis in by_cost))
        held = {text.culprit(each).name for diagnosis in diagnoses for each in diagnosis.culprits if each.lacked_cpu}
        # A limit of the user's must be decided; without one, a PASS is partial.
        (unjudged if rates.goal is None else absent).extend(
            f"links: {name} while no other processes hold the CPU" for name in sorted(held)
        )
        open_links = [link for diagnosis in diagnoses for link in diagnosis.unconfirmed]
        if fabric.inside:
            # Healthy pairs there may differ by design, but none fails by design.
            open_links = [link for link in open_links if link.is_open]
            absent += _contradicted(text, by_rate)
        absent += _unclear(text, open_links)
        absent += [f"{fabric.name}: {question}" for diagnosis in diagnoses for question in diagnosis.remains]
    unpaired = sorted(evidence.ranks.keys() - paired) if paired and evidence.device_type != "cpu" else []
    if unpaired:
        unjudged.append(f"links: no other node has a device to pair with {listed('rank', unpaired)}")
    return Ruling(
        findings=tuple(findings),
        judged=tuple(judged),
        absent=tuple(absent),
        unjudged=tuple(unjudged),
        # Between the devices of one node the user can set no limit.
        unlimited=("links.min_gbps",) if paired and params.min_gbps is None else (),
    )


def _findings(text: FabricText, diagnoses: Sequence[tuple[Cost | None, Diagnosis]]) -> list[Finding]:
    """Return one finding for each culprit: what else it does badly is evidence.

    The bad links of a culprit become remarks.
    """
    by_members: dict[tuple[int, ...], Finding] = {}
    for cost, diagnosis in diagnoses:
        for suspect in diagnosis.culprits:
            finding = text.finding(suspect, diagnosis, cost)
            if suspect.members in by_members:
                first, second = sorted((finding, by_members[suspect.members]), key=_severity)[::-1]
                finding = replace(first, evidence=(*first.evidence, second.what))
            by_members[suspect.members] = finding
    accused = {
        rank: _severity(finding)
        for finding in by_members.values()
        if finding.culprit.kind in ("node", "device")
        for rank in finding.culprit.ranks
    }

    def is_explained(finding: Finding) -> bool:
        # A member with only a warning does not explain a dead link.
        ends = (accused.get(rank, -1) for rank in finding.culprit.ranks)
        return finding.culprit.kind == "link" and any(severity >= _severity(finding) for severity in ends)

    return [replace(finding, severity="info") if is_explained(finding) else finding for finding in by_members.values()]


def _machines_of_one_place(evidence: Evidence) -> Iterator[str]:
    """Yield what was not measured where machines with different names joined from one address."""
    for ranks in ranks_of_hosts(evidence).values():
        names = dict.fromkeys(seen.hostname for rank in ranks if (seen := evidence.ranks[rank]).hostname)
        if len(names) > 1:
            yield f"links between {', '.join(names)}: they joined from one address and count as one node"


def _severity(finding: Finding) -> int:
    return _SEVERITIES.index(finding.severity)


def _far_better(text: FabricText, rates: LinkRates, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a warning if some links are far better than the reference: then most nodes may be slow alike."""
    fast = [link for link in rates.links.values() if link.ratio * rates.limit > 1]
    if text.fabric.inside or rates.goal is not None or rates.reference is None or findings or len(fast) < _FEW_FAST:
        return
    best = max(fast, key=lambda link: link.ratio)
    names = dict.fromkeys(text.link_name(*sorted((link.source, link.target))) for link in fast[:_FEW_FAST])
    yield Finding(
        severity="warn",
        check="links",
        what=f"some links are far faster than most, {best.rate:.3g} GB/s against {rates.reference:.3g} GB/s: "
        "there are two kinds of nodes, or most of them are slow",
        culprit=Culprit(kind="none", name="nobody can be named"),
        measured=f"{best.rate:.3g} GB/s",
        evidence=(f"{len(fast)} of {len(rates.links)} transfers, such as {', '.join(names)}",),
        action="set links.min_gbps to the rate that every link must reach.",
    )


def _unclear(text: FabricText, links: Iterable[DirectedLink]) -> Iterator[str]:
    """Yield each pair of these links, with the failure of one that came through otherwise."""
    failed: dict[tuple[int, int], str] = {}
    for link in links:
        pair = (min(link.source, link.target), max(link.source, link.target))
        failed[pair] = f", which {link.times} ({link.failures[0]})" if link.is_open else failed.get(pair, "")
    for pair, how in sorted(failed.items()):
        yield f"a clear result for {text.link_name(*pair)}{how}"


def _contradicted(text: FabricText, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the slow links within a node of which one other node decides whether they are slow by design."""
    for suspect in diagnosis.culprits:
        worst = min(suspect.evidence, key=lambda link: link.ratio, default=None)
        if worst is None or worst.failed or not text.is_contradicted(worst, diagnosis.limit):
            continue
        is_split = text.clean_elsewhere(worst, diagnosis.limit)[1] > 1
        whose = (
            "half of the other nodes have it as fast, half as slow" if is_split else "only one other node has it fast"
        )
        yield f"a clear result for {text.culprit(suspect).name}: {whose}"


def _judged(
    answers: Answers, fabric: Fabric, diagnosis: Diagnosis, observations: FabricObservations, rates: LinkRates
) -> Iterator[Judged]:
    """Yield the decisive measurements of each direction of a pair: those with the least contention."""
    if diagnosis.limit is None:
        return
    least_at_once: dict[tuple[int, int], int] = {}
    for pair in observations.rates.pairs:
        key = (pair.source, pair.target)
        least_at_once[key] = min(pair.at_once, least_at_once.get(key, pair.at_once))
    starved = {key for key, link in rates.links.items() if link.starved}
    # A group does not say who lacked the CPU.
    held = {each.members[0] for each in diagnosis.culprits if each.lacked_cpu and each.kind != "link"}
    limit = Limit(value=diagnosis.limit, unit="GB/s", origin=fabric.limit_origin)
    for fact in rounds_of(answers, fabric):
        for rank in fabric.topology.members:
            for measurement in answers.measurements.get((fact.stage, rank), ()):
                key = (rank, rank if measurement.peer is None else measurement.peer)
                passed = measurement.value >= limit.value
                is_decisive = measurement.name == "gbps" and least_at_once.get(key) == fact.value["at_once"]
                # Within a node a slow link may be slow by design.
                if is_decisive and (passed or not (fabric.inside or key in starved or held.intersection(key))):
                    yield Judged(measurement=measurement, limit=limit, passed=passed)
