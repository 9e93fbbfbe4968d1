"""What the storage check makes of the folders: can they be used, is there room, and who sees whom. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from seatrial.verdict.evidence import Evidence
from seatrial.verdict.figures import Fact
from seatrial.verdict.findings import Culprit, Finding, Judged, Limit, Ruling

if TYPE_CHECKING:
    from seatrial.checks.storage import Params

__all__ = ["judge_folders", "node_culprit"]

View: TypeAlias = tuple[tuple[int, int], ...]
"""Ranks as ascending (first, last)."""

_NOBODY = Culprit(kind="none", name="nobody could be named")
_NO_PLACE = ("EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "ENOENT", "ENOTDIR")
"""What only says that nobody may write there, or that it is full: no fault where nobody named the folder."""
_ADVICE = {
    "EACCES": "give the user of the ranks the right to write there, or name another folder.",
    "EPERM": "give the user of the ranks the right to write there, or name another folder.",
    "EROFS": "mount it for writing; a file system that became read-only by itself has met errors, see the kernel log.",
    "ENOSPC": "make room there, or name another folder.",
    "EDQUOT": "raise the quota of the user of the ranks, or name another folder.",
    "ENOENT": "create the folder, or see whether its file system is mounted on that node.",
    "ENOTDIR": "name a folder, not a file.",
}
_LOOK = "look at the kernel log of the node and at the health of the file system."


def node_culprit(evidence: Evidence, nodes: Collection[str]) -> Culprit:
    """Nodes by name, with their ranks."""
    names = tuple(sorted(nodes))
    ranks = tuple(rank for rank, seen in sorted(evidence.ranks.items()) if seen.node in names)
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return Culprit(kind="node", name=f"node{'s' if len(names) > 1 else ''} {shown}", ranks=ranks, nodes=names)


def judge_folders(evidence: Evidence, params: Params) -> Ruling:
    """Refused folders, errors on the way, room, and sharing."""
    parts = [
        Ruling(findings=tuple(_remarks(evidence))),
        _judge_refused(evidence),
        _judge_room(evidence, params),
        _judge_sharing(evidence, params),
    ]
    return Ruling(
        findings=tuple(finding for part in parts for finding in part.findings),
        judged=tuple(entry for part in parts for entry in part.judged),
        absent=tuple(name for part in parts for name in part.absent),
        unjudged=tuple(what for part in parts for what in part.unjudged),
    )


def _remarks(evidence: Evidence) -> Iterator[Finding]:
    """Which folders were taken, where nobody named one; memory in the place of storage; nodes that differ."""
    facts = [fact for fact in evidence.facts if fact.name == "folder" and fact.rank in evidence.ranks]
    unnamed = sorted({fact.value["path"] for fact in facts if not fact.value["named"]})
    if unnamed:
        what = f"no folder was named, so what was measured is {', '.join(unnamed[:4])}"
        yield _info(what, "name the folder where checkpoints will go: storage.folder.")
    in_memory = _nodes(evidence, (fact for fact in facts if fact.value["in_memory"]))
    if in_memory:
        kinds = ", ".join(sorted({fact.value["kind"] for fact in facts if fact.value["in_memory"]}))
        what = f"the folder is in memory ({kinds}) on {_names(in_memory)}: what is written there does not last"
        yield _info(what, "name a folder on storage that lasts: storage.folder.")
    kinds_of = {evidence.ranks[fact.rank].node: fact.value["kind"] for fact in facts if fact.rank is not None}
    ((usual, count),) = Counter(kinds_of.values()).most_common(1) or [("", 0)]
    odd = {node for node, kind in kinds_of.items() if kind != usual}
    if odd and 2 * count > len(kinds_of):
        kinds = ", ".join(sorted({kinds_of[node] or "unknown" for node in odd}))
        yield Finding(
            severity="warn",
            check="storage",
            what=f"the folder is on {usual or 'unknown'} on {count} nodes and on {kinds} on {_names(odd)}",
            culprit=node_culprit(evidence, odd),
            action="see whether the file system that is meant is mounted there.",
        )


def _judge_refused(evidence: Evidence) -> Ruling:
    """One finding for each folder and reason, with all its nodes."""
    groups: dict[tuple[bool, str, str, str, str], list[Fact]] = {}
    for fact in evidence.facts:
        if fact.rank not in evidence.ranks:
            continue
        seen = fact.value
        if fact.name == "refused":
            for folder, code, reason in seen["folders"]:
                groups.setdefault((seen["named"], folder, code, reason, "be written to"), []).append(fact)
        elif fact.name == "trouble":
            key = (seen["named"], seen["folder"], seen["code"], seen["reason"], f"be used ({seen['doing']})")
            groups.setdefault(key, []).append(fact)
    findings, unjudged = [], []
    for (named, folder, code, reason, what), facts in groups.items():
        nodes = _nodes(evidence, facts)
        sentence = f"{folder} on {_names(nodes)} cannot {what}: {reason}"
        if not named and code in _NO_PLACE:
            unjudged.append(f"storage: no folder was named, and {sentence}")
            continue
        findings.append(
            Finding(
                severity="fail",
                check="storage",
                what=sentence,
                culprit=node_culprit(evidence, nodes),
                measured=code,
                action=_ADVICE.get(code, _LOOK),
            )
        )
    return Ruling(findings=tuple(findings), unjudged=tuple(unjudged))


def _judge_room(evidence: Evidence, params: Params) -> Ruling:
    """Free bytes and inodes against what all ranks need that write to one file system."""
    needs = {fact.rank: fact.value for fact in evidence.facts if fact.name == "needs"}
    folders = {fact.rank: fact.value for fact in evidence.facts if fact.name == "folder"}
    judged: list[Judged] = []
    short: dict[tuple[bool, str, str], list[Judged]] = {}
    for figure in evidence.figures:
        key = {"free_bytes": "bytes", "free_inodes": "inodes"}.get(figure.name)
        if key is None or figure.rank not in needs or figure.rank not in folders:
            continue
        need = needs[figure.rank]
        origin = f"storage.size_bytes {params.size_bytes} for {need['sharers']} ranks that write there"
        limit = Limit(value=need[key], unit=figure.unit, origin=origin)
        entry = Judged(figure=figure, limit=limit, passed=figure.value >= limit.value)
        folder = folders[figure.rank]
        if entry.passed or folder["named"]:
            judged.append(entry)
        if not entry.passed:
            short.setdefault((folder["named"], folder["path"], key), []).append(entry)
    findings, unjudged = [], []
    for (is_named, path, key), entries in short.items():
        nodes = {evidence.ranks[entry.figure.rank].node for entry in entries if entry.figure.rank is not None}
        worst = min(entries, key=lambda entry: entry.figure.value)
        what = f"{path} on {_names(nodes)} has too few free {key}: {worst.figure.value:.0f} of {worst.limit.value:.0f}"
        if not is_named:
            unjudged.append(f"storage: no folder was named, and {what}")
            continue
        everybody = len(entries) > 1 and len(entries) == len(needs)
        findings.append(
            Finding(
                severity="fail",
                check="storage",
                what=what,
                culprit=_everybodys(evidence, path, worst, nodes) if everybody else node_culprit(evidence, nodes),
                measured=f"{worst.figure.value:.0f} {key} free",
                limit=worst.limit,
                action=_ADVICE["ENOSPC"],
            )
        )
    return Ruling(findings=tuple(findings), judged=tuple(judged), unjudged=tuple(unjudged))


def _everybodys(evidence: Evidence, path: str, worst: Judged, nodes: Collection[str]) -> Culprit:
    """Where all share one file system, no node is at fault for its being full."""
    shared = any(fact.name == "needs" and fact.value["sharers"] == len(evidence.ranks) for fact in evidence.facts)
    if shared and len(nodes) > 1:
        return Culprit(kind="none", name=f"the file system at {path}, which all ranks share")
    return node_culprit(evidence, nodes)


def _judge_sharing(evidence: Evidence, params: Params) -> Ruling:
    """Who sees whose token. More than half of the nodes, if they see one another alike, are right; the rest is named.

    A rank that could leave no token is told of by itself, and missed by nobody here.
    """
    views = {
        fact.rank: tuple((first, last) for first, last in fact.value)
        for fact in evidence.facts
        if fact.name == "sees" and fact.rank is not None and fact.rank in evidence.ranks
    }
    nodes = {rank: evidence.ranks[rank].node for rank in views}
    if params.shared == "no":
        return _judge_not_shared(evidence, views, nodes)
    groups: dict[View, list[int]] = {}
    for rank, view in sorted(views.items()):
        groups.setdefault(view, []).append(rank)
    whole = all(_holds(view, rank) for view in groups for rank in views)
    if params.shared == "any" and len(set(nodes.values())) > 1:
        words = "all ranks see one folder" if whole else "the folder is not the same for all ranks"
        return Ruling(findings=(_info(words, 'set shared = "yes" or "no" under [storage] to have it judged.'),))
    if params.shared == "any" or whole:
        return Ruling()
    # Each node has one vote, which its ranks share: a node with more ranks is not more often right.
    crowds = Counter(nodes.values())

    def votes(ranks: Iterable[int]) -> Fraction:
        return sum((Fraction(1, crowds[nodes[rank]]) for rank in ranks), start=Fraction())

    view, ranks = max(groups.items(), key=lambda item: votes(item[1]))
    path = next((fact.value["path"] for fact in evidence.facts if fact.name == "folder"), "the folder")
    together = [rank for rank in ranks if _holds(view, rank)]
    if 2 * votes(together) > len(crowds):
        odd = {nodes[rank] for rank in views if rank not in together}
        what = f"not on {_names(odd)}, but on the others, {path} is the folder that most nodes see"
        culprit = node_culprit(evidence, odd)
    else:
        what = f"the ranks do not see one folder at {path}, and no group of them is more than half of the nodes"
        culprit = Culprit(
            kind="none", name="which of them is right is not separable", nodes=tuple(sorted(set(nodes.values())))
        )
    finding = Finding(
        severity="fail",
        check="storage",
        what=what,
        culprit=culprit,
        measured=f"at most {len(together)} of {len(views)} ranks see one another",
        limit=Limit(value=len(views), unit="ranks", origin="user storage.shared yes"),
        evidence=tuple(
            f"{_ranks(members)} see{'s' if len(members) == 1 else ''} "
            f"{_ranks([rank for rank in views if _holds(seen, rank)])}"
            for seen, members in sorted(groups.items(), key=lambda item: -len(item[1]))[:4]
        ),
        action="see whether the shared file system is mounted there, at that path.",
    )
    return Ruling(findings=(finding,))


def _judge_not_shared(evidence: Evidence, views: Mapping[int, View], nodes: Mapping[int, str]) -> Ruling:
    """Each node's folder is to be its own."""
    seen = {view: {nodes[rank] for rank in views if _holds(view, rank)} for view in set(views.values())}
    sharing = {nodes[rank] for rank, view in views.items() if seen[view] - {nodes[rank]}}
    if not sharing:
        return Ruling()
    finding = Finding(
        severity="fail",
        check="storage",
        what=f"{_names(sharing)} see files of other nodes in the folder, although each was to have its own",
        culprit=node_culprit(evidence, sharing),
        measured=f"{len(sharing)} nodes",
        limit=Limit(value=0, unit="nodes", origin="user storage.shared no"),
        action='name a folder on a disk of the node, or say shared = "yes".',
    )
    return Ruling(findings=(finding,))


def _holds(view: View, rank: int) -> bool:
    return any(first <= rank <= last for first, last in view)


def _nodes(evidence: Evidence, facts: Iterable[Fact]) -> set[str]:
    return {evidence.ranks[fact.rank].node for fact in facts if fact.rank is not None}


def _names(nodes: Collection[str]) -> str:
    names = sorted(nodes)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"node{'s' if len(names) > 1 else ''} {', '.join(names[:8])}{more}"


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{f' and {len(ranks) - 8} more' if len(ranks) > 8 else ''}"


def _info(what: str, action: str) -> Finding:
    return Finding(severity="info", check="storage", what=what, culprit=_NOBODY, action=action)
