"""The rules of the storage check for sharing: which ranks see one another's files. Pure."""

from __future__ import annotations

import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

from seatrial.checks.storage.folders import storage_info
from seatrial.checks.storage.node_names import node_culprit, node_names, rank_names
from seatrial.checks.storage.params import Params
from seatrial.checks.storage.views import Ranges, View, has, in_all, ranges_by_rank, within
from seatrial.checks.storage.ways import Ways
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Limit, Ruling
from seatrial.evidence.statistics import VOTING_HOSTS
from seatrial.util.text import as_name

_Kind: TypeAlias = tuple[int, int]
"""The number of a rank's view, and a bit for the number of each view in which the rank is."""
_MOST_VIEWS = 1000
"""More different views are those of ranks with a folder each, or made up."""


def judge_sharing(evidence: Evidence, params: Params, ways: Ways) -> Ruling:
    """Compare what the ranks see of one another with what the user wants.

    If more than half of the nodes see one another alike, they are right, and of the others those are named that have
    an own way to their folder: their mount is missing. A rank that could not leave a token is reported as such, and
    missed by no other rank here; nor is one whose token somebody removed, or moved for a while. Where files of another
    user decide, nothing is judged: they may be there to deceive, or the nodes have different numbers for one user.
    """
    lost = {fact.rank for fact in evidence.facts if fact.name == "token_lost" and fact.rank is not None}
    if lost and params.shared != "any":
        moved = f"somebody removed or moved the token of {rank_names(sorted(lost))}, or its folder"
        what = f"whether the folder is shared: {moved}"
        facts = tuple(fact for fact in evidence.facts if fact.rank not in lost or fact.name != "sees")
        rest = _judge_seen(replace(evidence, facts=facts), params, ways)
        return replace(rest, absent=(*rest.absent, what))
    return _judge_seen(evidence, params, ways)


def _judge_seen(evidence: Evidence, params: Params, ways: Ways) -> Ruling:
    seen, foreign = ranges_by_rank(evidence, "sees"), ranges_by_rank(evidence, "foreign")
    strict = _judge_views(evidence, params, ways, seen)
    if params.shared == "any" or not foreign:
        return strict
    lenient = _judge_views(evidence, params, ways, {rank: seen[rank] + foreign.get(rank, ()) for rank in seen})
    if bool(strict.findings) == bool(lenient.findings):
        return strict
    nodes = node_names({evidence.ranks[rank].node for rank in foreign})
    what = f"files of another user are in the place of tokens in the folder on {nodes}"
    return Ruling(unjudged=(f"storage: whether the folder is shared, as {what}",))


def _judge_views(evidence: Evidence, params: Params, ways: Ways, ranges_of: Mapping[int, Ranges]) -> Ruling:
    # Most ranks see the same, and thousands of ranks see thousands.
    ranks = sorted(ranges_of)
    view_of = {ranges: within(ranks, ranges) for ranges in set(ranges_of.values())}
    views = {rank: view_of[ranges] for rank, ranges in ranges_of.items()}
    nodes = {rank: evidence.ranks[rank].node for rank in views}
    if params.shared == "no":
        return _judge_not_shared(evidence, ways, views, nodes)
    groups: dict[View, list[int]] = {}
    for rank in ranks:
        groups.setdefault(views[rank], []).append(rank)
    is_shared = all(view == ((0, len(ranks)),) for view in groups)
    if params.shared == "any" and len(set(nodes.values())) > 1:
        what = "all ranks see one folder" if is_shared else "the folder is not the same for all ranks"
        return Ruling(findings=(storage_info(what, 'set shared = "yes" or "no" under [storage] to have it judged.'),))
    if params.shared == "any" or is_shared:
        return Ruling()
    return Ruling(findings=(_not_one_folder(evidence, ways, groups, nodes),))


def _not_one_folder(
    evidence: Evidence, ways: Ways, groups: Mapping[View, list[int]], nodes: Mapping[int, str]
) -> Finding:
    """Return the finding for ranks that do not all see one another. ``groups``: the ranks by their view."""
    place_of = {rank: place for place, rank in enumerate(sorted(nodes))}
    # Each host has one vote, which its ranks share: one with more ranks, or more names, is not right more often.
    hosts = evidence.hosts()
    ranks_per_host = Counter(hosts[rank] for rank in nodes)

    def votes(ranks: Iterable[int]) -> Fraction:
        return sum((Fraction(1, ranks_per_host[hosts[rank]]) for rank in ranks), start=Fraction())

    together, odd, either = _see_one_another(groups, nodes, hosts) or (
        # The views of a host that lies may differ without end: each host has one, what all its ranks see.
        _see_one_another(_by_host(groups, hosts), nodes, hosts) or (set(), set(), set(nodes))
    )
    paths = {fact.rank: fact.value["path"] for fact in evidence.facts if fact.name == "folder"}
    path = next(map(as_name, paths.values()), "the folder")
    odd_nodes = {nodes[rank] for rank in odd}
    # Other ranks of a node that is named say nothing for those that name it.
    agreed = [rank for rank in together if len(ranks_per_host) < VOTING_HOSTS or nodes[rank] not in odd_nodes]
    most_agree = 2 * votes(agreed) > len(ranks_per_host)
    if most_agree and odd_nodes:
        what = f"{path} on {node_names(odd_nodes)} is not the folder that most nodes see"
        folders = [(rank, paths.get(rank, "")) for rank in sorted(odd)]
        culprit = ways.culprit(evidence, [each for each in folders if ways.is_own(*each)] or folders)
    else:
        why = "which of two does not see the other, or is not seen, is open"
        what = f"the ranks do not see one folder at {path}, and " + (
            why if most_agree else "no group of them is more than half of the nodes"
        )
        some = tuple(sorted({nodes[rank] for rank in (either if most_agree else nodes)}))
        culprit = Culprit(kind="none", name=f"some of {node_names(some)}, not separable", nodes=some)
    num_together = max(
        len(together), *(sum(has(view, place_of[rank]) for rank in members) for view, members in groups.items())
    )
    lines = []
    for seen, members in sorted(groups.items(), key=lambda item: -len(item[1]))[:4]:
        verb = "sees" if len(members) == 1 else "see"
        lines.append(f"{rank_names(members)} {verb} {rank_names(rank for rank in nodes if has(seen, place_of[rank]))}")
    return Finding(
        severity="fail",
        check="storage",
        what=what,
        culprit=culprit,
        measured=f"at most {num_together} of {len(nodes)} ranks see one another",
        limit=Limit(value=len(nodes), unit="ranks", origin="user storage.shared"),
        evidence=tuple(lines),
        action="check that the shared file system is mounted there, at that path.",
    )


def _by_host(groups: Mapping[View, Sequence[int]], hosts: Mapping[int, str]) -> dict[View, list[int]]:
    """Return the ranks by what all ranks of their host see."""
    ranks_of, views_of = defaultdict[str, list[int]](list), defaultdict[str, dict[View, None]](dict)
    for view, ranks in groups.items():
        for rank in ranks:
            ranks_of[hosts[rank]].append(rank)
            views_of[hosts[rank]][view] = None
    found: dict[View, list[int]] = {}
    for host, ranks in ranks_of.items():
        found.setdefault(in_all(views_of[host]), []).extend(ranks)
    return found


def _see_one_another(
    groups: Mapping[View, Sequence[int]], nodes: Mapping[int, str], hosts: Mapping[int, str]
) -> tuple[set[int], set[int], set[int]] | None:
    """Return the ranks that all see one another, those that do not see them, and those of which either may be at fault.

    One after the other the ranks leave that miss most hosts, or are missed by them. A host that lies about itself
    misses and is missed, too: so no honest rank leaves before its ranks, unless only two hosts stand against each
    other. None where there are very many different views.
    """
    if len(groups) > _MOST_VIEWS:
        return None
    # Ranks with one view that the same ranks see are alike, and thousands of ranks are of a few kinds.
    changes = [0] * (len(nodes) + 1)
    for number, view in enumerate(groups):
        for place in itertools.chain.from_iterable(view):
            changes[place] ^= 1 << number
    seen_by = dict(zip(sorted(nodes), itertools.accumulate(changes, operator.xor), strict=False))
    kinds: dict[_Kind, list[int]] = {}
    for number, members in enumerate(groups.values()):
        for rank in members:
            kinds.setdefault((number, seen_by[rank]), []).append(rank)
    if len(kinds) > _MOST_VIEWS:
        return None
    hosts_of = {kind: {hosts[rank] for rank in ranks} for kind, ranks in kinds.items()}
    missed = {kind: {other for other in kinds if not _see(kind, other)} for kind in kinds}
    num_missed = {kind: Counter(host for other in missed[kind] for host in hosts_of[other]) for kind in kinds}
    left, odd, either = dict(kinds), set[int](), set[int]()
    while most := max((len(num_missed[kind]) for kind in left), default=0):
        worst = {kind for kind in left if len(num_missed[kind]) == most}
        odd_nodes = {nodes[rank] for rank in odd}
        # A rank that misses one that is itself missed less is at fault, and so are other ranks of its node.
        known = {
            kind
            for kind in worst
            if missed[kind] & left.keys() - worst or odd_nodes.issuperset(nodes[rank] for rank in kinds[kind])
        }
        for kind in known or worst:
            (odd if known else either).update(left.pop(kind))
        for kind in known or worst:
            for other, host in itertools.product(missed[kind] & left.keys(), hosts_of[kind]):
                num_missed[other][host] -= 1
                if not num_missed[other][host]:
                    del num_missed[other][host]
    return {rank for ranks in left.values() for rank in ranks}, odd, either


def _see(one: _Kind, other: _Kind) -> bool:
    """Return whether ranks of these kinds see one another."""
    return bool(one[1] >> other[0] & 1 and other[1] >> one[0] & 1)


def _judge_not_shared(evidence: Evidence, ways: Ways, views: Mapping[int, View], nodes: Mapping[int, str]) -> Ruling:
    """Return a finding for nodes that see files of other nodes."""
    ordered = [nodes[rank] for rank in sorted(nodes)]
    # From each place on, where the ranks of its node end.
    ends = [*itertools.chain.from_iterable([end] * (end - begin) for begin, end in _runs(ordered))]
    sharing = {
        nodes[rank]
        for rank, view in views.items()
        if any(ordered[begin] != nodes[rank] or ends[begin] < end for begin, end in view)
    }
    if not sharing:
        return Ruling()
    certain = sharing - ways.measured.keys()
    some = [ways.measured[node] for node in sorted(sharing & ways.measured.keys())]
    finding = Finding(
        severity="fail",
        check="storage",
        what=f"{node_names(sharing)} see files of other nodes in the folder, although each should have a separate one",
        culprit=node_culprit(ways.ranks_of, certain) if certain else ways.culprit(evidence, some),
        measured=f"{len(sharing)} nodes",
        limit=Limit(value=0, unit="nodes", origin="user storage.shared"),
        action='name a folder on a disk of the node, or set shared = "yes".',
    )
    return Ruling(findings=(finding,))


def _runs(names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield where each run of equal names begins, and where it has ended."""
    begin = 0
    for _, run in itertools.groupby(names):
        end = begin + sum(1 for _ in run)
        yield begin, end
        begin = end
