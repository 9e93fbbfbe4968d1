"""The judge of the data files: nodes that cannot read them, and nodes with other content than most. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Ruling
from seatrial.evidence.statistics import minority

_SHOWN = 8
_COPY = (
    "copy or fetch the data set again there (seatrial data fetch), or name a folder that all nodes share with --data"
)


def judge_data(evidence: Evidence) -> Ruling:
    """Fail the nodes without readable data, and those whose data differ; without a majority, all of them."""
    facts = [fact for fact in evidence.facts if fact.name == "data" and fact.rank in evidence.ranks]
    faults, digests = dict[int, str](), dict[int, str]()
    for fact in facts:
        assert fact.rank is not None  # as asked above
        node_rank = evidence.ranks[fact.rank].node_rank
        if fact.value["fault"]:
            faults.setdefault(node_rank, fact.value["fault"])
        elif fact.value["digest"]:
            digests[node_rank] = fact.value["digest"]
    if faults:
        evidence_lines = tuple(faults[node_rank] for node_rank in sorted(faults))
        what = f"{_names(evidence, faults)} cannot read the training data, and other nodes can"
        return Ruling(findings=(_finding(evidence, what, faults, evidence_lines),))
    if len(set(digests.values())) < 2:
        return Ruling()
    hosts = evidence.hosts()
    ranks = [(rank, seen) for rank, seen in sorted(evidence.ranks.items(), reverse=True) if seen.node_rank in digests]
    # Each host has one vote, however many agents it has.
    first_of = {hosts[rank]: seen.node_rank for rank, seen in ranks}
    vote = minority({node: digests[node] for node in first_of.values()})
    odd = tuple(node for node, digest in sorted(digests.items()) if digest != vote.majority)
    lines = tuple(f"{_names(evidence, [node])}: {digest[:16]}" for node, digest in sorted(digests.items()))
    if vote.majority is not None:
        what = f"{_names(evidence, odd)} has other training data than {len(digests) - len(odd)} other nodes"
        return Ruling(findings=(_finding(evidence, what, odd, lines),))
    what = "the nodes have different training data, and no content has a majority"
    finding = _finding(evidence, what, digests, lines)
    culprit = replace(finding.culprit, kind="none", name=f"some of {finding.culprit.name}, not separable")
    return Ruling(findings=(replace(finding, culprit=culprit),))


def is_data(value: object) -> bool:
    """Return whether a fact ``data`` has the fields that ranks send."""
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("fault", "digest"))


def _names(evidence: Evidence, nodes: Iterable[int]) -> str:
    places = {seen.node_rank: seen.place for seen in evidence.ranks.values()}
    # Agents of one machine have one name.
    names = list(dict.fromkeys(places[node] for node in sorted(nodes)))
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _finding(evidence: Evidence, what: str, nodes: Iterable[int], lines: tuple[str, ...]) -> Finding:
    wanted = set(nodes)
    ranks = tuple(rank for rank, seen in evidence.ranks.items() if seen.node_rank in wanted)
    names = tuple(dict.fromkeys(evidence.ranks[rank].node for rank in ranks))
    plural = "node" if len(names) == 1 else "nodes"
    return Finding(
        severity="fail",
        check="training",
        what=what,
        culprit=Culprit(kind="node", name=f"{plural} {_names(evidence, wanted)}", ranks=ranks, nodes=names),
        evidence=lines[:_SHOWN],
        action=_COPY,
    )
