"""The rules of the storage check for the folder of each rank: can it be used, and is there room. Pure."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator

from seatrial.checks.storage.node_names import node_names, nodes_of
from seatrial.checks.storage.params import Params
from seatrial.checks.storage.rules import room_rule
from seatrial.checks.storage.ways import Ways
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Judged, Ruling
from seatrial.evidence.measurement import Fact
from seatrial.util.text import as_name, quoted

_NOBODY = Culprit(kind="none", name="nobody could be named")
_UNSUITABLE = ("EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "ENOENT", "ENOTDIR")
"""Errors that only show that this folder is full or closed to the user: no fault if the user did not name it."""
_TAKEN = "EEXIST"
"""A name that the trial has chosen at random is taken: no fault of the node."""
_DENIED = ("EACCES", "EPERM")
"""With other words than the kernel's a link or a mount of another user leads there (``start.open_named_folder``)."""
_ACTIONS = {
    "EACCES": "give the user of the ranks the right to write there, or name another folder.",
    "EPERM": "give the user of the ranks the right to write there, or name another folder.",
    "EROFS": "mount it for writing; a file system that became read-only by itself has met errors, see the kernel log.",
    "ENOSPC": "make room there, or name another folder.",
    "EDQUOT": "raise the quota of the user of the ranks, or name another folder.",
    "ENOENT": "create the folder, or check that its file system is mounted on that node.",
    "ENOTDIR": "name a folder, not a file.",
}
_REASONS = frozenset(map(os.strerror, errno.errorcode))
"""The reasons of the kernel; any other one is in quotes."""
_OWN_WAY = "name a folder with a way that only this user and root can change"
_CHECK_NODE = "check the kernel log of the node and the health of the file system."


def folder_remarks(evidence: Evidence, ways: Ways) -> Iterator[Finding]:
    """Yield remarks on the chosen folders: not named by the user, in memory, or on different file systems."""
    # The last one of each rank: it may report any number of them.
    folders = {
        fact.rank: fact
        for fact in evidence.facts
        if fact.name == "folder" and fact.rank is not None and fact.rank in evidence.ranks
    }
    facts = list(folders.values())
    unnamed = sorted({fact.value["path"] for fact in facts if not fact.value["named"]})
    if unnamed:
        what = f"no folder was named, so the check measured {', '.join(map(as_name, unnamed[:4]))}"
        yield storage_info(what, "name the folder where checkpoints will go: storage.folder.")
    exchanged = [fact for rank, fact in folders.items() if (rank, fact.value["path"]) in ways.exchanged]
    if exchanged:
        paths = ", ".join(map(as_name, sorted({fact.value["path"] for fact in exchanged})[:4]))
        what = f"another user can exchange {paths} on {node_names(nodes_of(evidence, exchanged))}"
        yield storage_info(f"{what}: what was measured may be another folder", f"{_OWN_WAY}: storage.folder.")
    in_memory = nodes_of(evidence, (fact for fact in facts if fact.value["in_memory"]))
    if in_memory:
        kinds = ", ".join(sorted({as_name(fact.value["kind"]) for fact in facts if fact.value["in_memory"]}))
        what = f"the folder is in memory ({kinds}) on {node_names(in_memory)}: files there do not last"
        yield storage_info(what, "name a folder on storage that lasts: storage.folder.")
    kind_by_node = {evidence.ranks[rank].node: fact.value["kind"] for rank, fact in folders.items()}
    ((usual, count),) = Counter(kind_by_node.values()).most_common(1) or [("", 0)]
    odd_nodes = {node for node, kind in kind_by_node.items() if kind != usual}
    if odd_nodes and 2 * count > len(kind_by_node):
        most = as_name(usual or "unknown")
        kinds = ", ".join(sorted({as_name(kind_by_node[node] or "unknown") for node in odd_nodes}))
        yield Finding(
            severity="warn",
            check="storage",
            what=f"the folder is on {most} on {count} nodes and on {kinds} on {node_names(odd_nodes)}",
            culprit=ways.culprit(
                evidence,
                [
                    (rank, fact.value["path"])
                    for rank, fact in folders.items()
                    if evidence.ranks[rank].node in odd_nodes
                ],
            ),
            action="check that the intended file system is mounted there.",
        )


def judge_refused(evidence: Evidence, ways: Ways) -> Ruling:
    """Return one finding for each folder and reason, with all nodes where the folder could not be used."""
    groups: dict[tuple[bool, str, str, str, str, bool], list[Fact]] = {}
    heard: set[tuple[int, str, str]] = set()
    for fact in evidence.facts:
        if fact.name not in ("refused", "trouble") or fact.rank is None or fact.rank not in evidence.ranks:
            continue
        # Each stage of a rank reports such a fact once.
        source = fact.rank, fact.name, fact.stage
        if source in heard:
            continue
        heard.add(source)
        value = fact.value
        if fact.name == "refused":
            purpose, entries = "be written to", value["folders"]
        else:
            purpose, entries = (
                f"be used ({_doing(value['doing'])})",
                [(value["folder"], value["code"], value["reason"])],
            )
        for folder, code, reason in entries:
            key = value["named"], folder, code, reason, purpose, ways.is_own(fact.rank, folder)
            groups.setdefault(key, []).append(fact)
    findings, unjudged, absent = [], [], []
    for (is_named, folder, code, reason, purpose, _), facts in groups.items():
        nodes = nodes_of(evidence, facts)
        said = reason if reason in _REASONS else quoted(reason)
        what = f"{as_name(folder)} on {node_names(nodes)} cannot {purpose}: {said}"
        if not is_named and code in _UNSUITABLE:
            unjudged.append(f"storage: no folder was named, and {what}")
            continue
        if code == _TAKEN:
            unjudged.append(f"storage: {what} (another user may have put a file in the place of ours)")
            continue
        if code in _DENIED and reason not in _REASONS:
            absent.append(f"a folder: {what}; name another one")
            continue
        findings.append(
            Finding(
                severity="fail",
                check="storage",
                what=what,
                culprit=ways.culprit(evidence, [(fact.rank, folder) for fact in facts if fact.rank is not None]),
                measured=as_name(code),
                action=_ACTIONS.get(code, _CHECK_NODE),
            )
        )
    return Ruling(findings=tuple(findings), unjudged=tuple(unjudged), absent=tuple(absent))


def _doing(words: str) -> str:
    return words if re.fullmatch("[a-z ]{1,16}", words) else quoted(words)


def judge_room(evidence: Evidence, params: Params, ways: Ways) -> Ruling:
    """Compare free bytes and inodes with the need of all ranks that write to one file system."""
    needs = {fact.rank: fact.value for fact in evidence.facts if fact.name == "needs"}
    folders = {fact.rank: fact.value for fact in evidence.facts if fact.name == "folder"}
    judged: list[Judged] = []
    short: dict[tuple[bool, str, str, bool], list[Judged]] = {}
    for measurement in evidence.measurements:
        key = {"free_bytes": "bytes", "free_inodes": "inodes"}.get(measurement.name)
        if key is None or measurement.rank is None or measurement.rank not in needs or measurement.rank not in folders:
            continue
        entry = room_rule(params, measurement.name, needs[measurement.rank]["sharers"]).judge(measurement)
        folder = folders[measurement.rank]
        if entry.passed or folder["named"]:
            judged.append(entry)
        if not entry.passed:
            is_own = ways.is_own(measurement.rank, folder["path"])
            short.setdefault((folder["named"], folder["path"], key, is_own), []).append(entry)
    findings, unjudged = [], []
    for (is_named, path, key, _), entries in short.items():
        ranks = {entry.measurement.rank for entry in entries if entry.measurement.rank is not None}
        nodes = {evidence.ranks[rank].node for rank in ranks}
        worst = min(entries, key=lambda entry: entry.measurement.value)
        amounts = f"{worst.measurement.value:.0f} of {worst.limit.value:.0f}"
        what = f"{as_name(path)} on {node_names(nodes)} has too few free {key}: {amounts}"
        if not is_named:
            unjudged.append(f"storage: no folder was named, and {what}")
            continue
        findings.append(
            Finding(
                severity="fail",
                check="storage",
                what=what,
                culprit=ways.culprit(evidence, [(rank, path) for rank in sorted(ranks)]),
                measured=f"{worst.measurement.value:.0f} {key} free",
                limit=worst.limit,
                action=_ACTIONS["ENOSPC"],
            )
        )
    return Ruling(findings=tuple(findings), judged=tuple(judged), unjudged=tuple(unjudged))


def storage_info(what: str, action: str) -> Finding:
    """Return a remark that accuses nobody."""
    return Finding(severity="info", check="storage", what=what, culprit=_NOBODY, action=action)
