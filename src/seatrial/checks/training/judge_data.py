"""The judge of the data files: nodes that cannot read them, and nodes with other content than most. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from seatrial.checks.shared.common_places import common_places, is_places
from seatrial.checks.training.judge_recipe import is_images
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import NOBODY, Culprit, Finding, Ruling
from seatrial.evidence.measurement import Fact
from seatrial.evidence.statistics import minority
from seatrial.training.data.data_file import NOT_PUBLISHED, NOT_TOGETHER
from seatrial.util.text import as_name, named_ranks, quoted

_SHOWN = 8
_OPEN = ", not separable"
_SHARED = "or name a folder that all nodes share with --data"
_AGAIN = "run again while nobody changes the files; if that does not help"
_COPY = f"copy or fetch the data set again there (seatrial data fetch), {_SHARED}"
_FETCH = f"fetch the data set on each node (seatrial data fetch), {_SHARED}"


def judge_data(evidence: Evidence) -> Ruling:
    """Fail the nodes without readable data, and those whose data differ; without a majority, all of them.

    Where nodes may share a file system, any user of it may have changed the files between one node's look and the next
    one's: no node is the culprit then.
    """
    facts = [fact for fact in evidence.facts if fact.name == "data" and fact.rank in evidence.ranks]
    faults, contents = dict[int, str](), defaultdict[int, set[str]](set)
    for fact in facts:
        assert fact.rank is not None  # as asked above
        node_rank = evidence.ranks[fact.rank].node_rank
        if fact.value["fault"]:
            faults.setdefault(node_rank, fact.value["fault"])
        elif fact.value["digest"]:
            contents[node_rank].add(fact.value["digest"])
    if faults:
        return Ruling(findings=(_of_shared(evidence, facts, _unreadable(evidence, faults, contents)),))
    if len(set[str]().union(*contents.values())) < 2:
        return Ruling()
    digests = {node: tuple(sorted(each)) for node, each in contents.items()}
    hosts = evidence.hosts()
    # Each host has one vote, however many agents it has.
    vote = minority(digests, {seen.node_rank: hosts[rank] for rank, seen in evidence.ranks.items()})
    lines = tuple(
        f"{_names(evidence, [node])}: {', '.join(as_name(digest[:16]) for digest in each[:_SHOWN])}"
        for node, each in sorted(digests.items())[:_SHOWN]
    )
    if vote.odd:
        what = f"{_names(evidence, vote.odd)} has other training data than {len(digests) - len(vote.odd)} other nodes"
        return Ruling(findings=(_of_shared(evidence, facts, _finding(evidence, what, vote.odd, lines)),))
    whose = "the nodes" if len(set(digests.values())) > 1 else f"ranks of {_names(evidence, digests)}"
    what = f"{whose} have different training data, and no content has a majority"
    finding = _finding(evidence, what, digests, lines)
    if len(digests) == 1:
        return Ruling(findings=(_of_shared(evidence, facts, finding),))
    culprit = replace(finding.culprit, kind="none", name=f"some of {finding.culprit.name}{_OPEN}")
    return Ruling(findings=(_of_shared(evidence, facts, replace(finding, culprit=culprit)),))


def judge_compared(evidence: Evidence) -> Ruling:
    """Report a comparison of equal data that told ranks that their data differ: nobody is known to have changed it."""
    answers = {fact.rank: fact.value["same"] for fact in evidence.facts if fact.name == "data_compared"}
    different = [rank for rank in evidence.ranks if answers.get(rank) is False]
    if not different:
        return Ruling()
    read = {fact.rank for fact in evidence.facts if fact.name == "data"}
    silent = [rank for rank in evidence.ranks if rank not in read]
    lines = [f"not the same data, by the answer that {named_ranks(different)} got"]
    lines += [f"no digest of {named_ranks(silent)}"] if silent else []
    finding = Finding(
        severity="error",
        check="training",
        what="the ranks compared their training data and got another answer than their digests give",
        culprit=NOBODY,
        evidence=tuple(lines),
        action="a link or a rank has changed what they computed together: look at the findings of collectives, or add"
        " it to checks.",
    )
    return Ruling(findings=(finding,))


def _unreadable(evidence: Evidence, faults: Mapping[int, str], readers: Collection[int]) -> Finding:
    """Return a finding for nodes that cannot read the data: it names them unless most hosts cannot.

    ``faults``: what they say, by node. ``readers``: the nodes of which a rank could read them.

    Data that most hosts lack are a wrong request, and one host that says that it has them may lie.
    """
    hosts = evidence.hosts()
    # Agents of one machine have one name. It can read the data where all of its agents can.
    machines = {seen.node_rank: (hosts[rank], seen.node) for rank, seen in evidence.ranks.items()}
    without = {machines[node] for node in faults}
    every = sorted(without | {machines[node] for node in readers})
    vote = minority(
        {number: machine in without for number, machine in enumerate(every)},
        {number: host for number, (host, _) in enumerate(every)},
    )
    names = _names(evidence, faults)
    lines = tuple(
        f"{_names(evidence, [node])} says: {quoted(fault)}" for node, fault in sorted(faults.items())[:_SHOWN]
    )
    if vote.majority is not True:
        able = [node for node in readers if machines[node] not in without]
        # Of two hosts neither outvotes the other.
        is_alone = len({machines[node][0] for node in able}) == 1
        whose = f"; {_names(evidence, able)} can, by its word alone" if is_alone else ", and other nodes can"
        return _finding(evidence, f"{names} cannot read the training data{whose}", faults, lines)
    return Finding(
        severity="error",
        check="training",
        what=f"the training data cannot be read on {names}",
        culprit=NOBODY,
        evidence=lines[:_SHOWN],
        action=_FETCH,
    )


def _of_shared(evidence: Evidence, facts: Sequence[Fact], finding: Finding) -> Finding:
    """Return a finding that names nobody where the files of some of its nodes may be those of others; where those may
    have changed, it asks for another run first."""
    ways = [(fact.rank, fact.value.get("places")) for fact in facts if fact.rank is not None]
    may_share = any(places is None for _, places in ways) or bool(common_places(evidence, ways))
    if not may_share:
        return finding
    if finding.severity != "fail":
        said = [fact.value["fault"] for fact in facts]
        is_changing = any(words in fault for words in (NOT_PUBLISHED, NOT_TOGETHER) for fault in said)
        return replace(finding, action=f"{_AGAIN}, {_FETCH}") if is_changing else finding
    action = f"{_AGAIN}, {_COPY}"
    name = f"{finding.culprit.name.removesuffix(_OPEN)}, or a file system that nodes may share{_OPEN}"
    return replace(finding, culprit=Culprit(kind="none", name=name), action=action)


def is_data(value: object) -> bool:
    """Return whether a fact ``data`` has the fields that ranks send. Those of older versions lack images or
    places."""
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in ("fault", "digest")):
        return False
    images = value.get("images", [])
    return (images == [] or is_images(images)) and is_places(value.get("places"))


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
