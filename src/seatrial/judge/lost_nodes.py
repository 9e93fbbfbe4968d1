"""Nodes that fell silent or were cut off: a node, the network between nodes, or that of the conductor. Pure.

The conductor reaches the nodes over a network too. A node that it no longer hears may be down or cut off; only where
the conductor still hears another node over that network does its own connection work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from seatrial.evidence.findings import NOBODY, Culprit, Finding
from seatrial.judge.step_view import StepView, waited
from seatrial.judge.trial import TroubleRecord
from seatrial.protocol.launchers import may_have_ended, starts_all_nodes
from seatrial.protocol.line_tags import CHANGED
from seatrial.util.text import all_named, all_of

_HEARD_S = 5.0
"""A node that was heard this short a time before is called silent for an answer that it did not give."""


def blame_lost_nodes(view: StepView) -> list[Finding]:
    """Return the findings about nodes that the conductor lost; none if it lost no node."""
    entries = {entry.node: entry for entry in view.troubles if entry.node is not None}
    if not entries:
        return []
    reachable = {node for rank in view.ranks if (node := view.node_of(rank)) is not None} - entries.keys()
    here = _conducting(view)
    lost = {node: entry for node, entry in entries.items() if entry.how == "lost"}
    all_lost = len(lost) == len(entries) and not reachable
    if (all_lost and len(lost) > 1) or (lost and _launcher_may_have_ended(view)):
        return [_lost_at_once(view, lost, sorted({*entries, *reachable} - lost.keys()))]
    if any(entry.how != "silent" for entry in entries.values()) or (here and entries.keys() <= here):
        return _each(view, entries)
    if not reachable:
        return [_all(view, entries)]
    # Agents of one host share its network: where another one of them is heard, that is not what is wrong.
    hosts = _hosts(view, {*entries, *reachable})
    heard = {hosts[node] for node in reachable}
    alone = {node: entry for node, entry in entries.items() if hosts[node] in heard}
    cut_off = {node: entry for node, entry in entries.items() if node not in alone}
    # Of several hosts that are heard at least one is not the conductor's own machine.
    network_works = len(heard) > 1 or (here is not None and not reachable & here)
    if len({hosts[node] for node in cut_off}) > 1 and len(heard) == 1:
        return [*_each(view, alone), _all_but_one(view, cut_off, min(reachable), network_works=network_works)]
    if network_works or not cut_off:
        return _each(view, entries)
    return [*_each(view, alone), _one_of_two(view, min(cut_off.items()), other=min(reachable))]


def _hosts(view: StepView, nodes: Collection[int]) -> dict[int, str]:
    """Return the host of each node: each rank may have a separate agent. A node whose place is not known is one."""
    return {node: view.trial.places_of_nodes.get(node) or f"node {node}" for node in nodes}


def _conducting(view: StepView) -> frozenset[int] | None:
    """Return the nodes that are the conductor's own machine; None where that is not known."""
    name = view.trial.conductor_hostname
    nodes = [entry for entry in view.trial.nodes if entry.hostname == name]
    if not nodes and view.trial.conductor_in_container:
        return None
    # It may be any of several machines of one name, and its event may be among those lost.
    known = bool(name) and len({view.trial.machine_of(entry) for entry in nodes}) < 2 and not view.trial.missing
    return frozenset(entry.node for entry in nodes) if known else None


def _each(view: StepView, entries: Mapping[int, TroubleRecord]) -> list[Finding]:
    findings = []
    ranks_of: dict[int | None, list[int]] = {}
    for rank in view.ranks:
        ranks_of.setdefault(view.node_of(rank), []).append(rank)
    present = {record.node for record in view.trial.nodes}
    # Agents of one name are one machine, about which there is one finding.
    alike: dict[tuple[str, bool, str], list[int]] = {}
    for node, entry in sorted(entries.items()):
        end: str = "changed" if entry.detail == CHANGED else entry.how
        alike.setdefault((view.trial.place(node), node in present, end), []).append(node)
    for (name, came, end), nodes in alike.items():
        entry, ranks = entries[nodes[0]], tuple(sorted(rank for node in nodes for rank in ranks_of.get(node, ())))
        if end == "changed":
            findings.append(_changed_on_the_way(view, name))
            continue
        # Not the phase of one of its ranks, which would be as old as the last message from there.
        words = f"fell silent{_when(view, entry)}" if end == "silent" else f"was lost{_where(view)}"
        what = f"{_as_node(name)} {words if came else 'was never reached'}"
        finding = Finding(
            severity="fail" if came else "error",
            check=view.check,
            what=what + (f": {entry.detail}" if entry.detail else ""),
            culprit=Culprit(kind="node", name=f"node {name}", ranks=ranks, nodes=(view.trial.host_name(nodes[0]),))
            if came
            else NOBODY,
            evidence=view.waiting(ranks),
            action=f"check that {name} is up and reachable (ssh, ping), and what ended seatrial's process there"
            " (dmesg -T | grep -iE 'killed process|oom')",
        )
        findings.append(finding)
    return findings


def _changed_on_the_way(view: StepView, name: str) -> Finding:
    """Return a finding that names nobody: whoever is in the path can do that to a healthy node."""
    return Finding(
        severity="error",
        check=view.check,
        what=f"node {name} was lost{_where(view)}: {CHANGED}, by that node or by somebody in the network between it and"
        " the controller",
        culprit=NOBODY,
        action=f"find who can change packets between {name} and the controller (ip neigh, on both), then repeat the"
        " trial; if it happens again over another network, leave that node out",
    )


def _all(view: StepView, entries: Mapping[int, TroubleRecord]) -> Finding:
    names = _names(view, sorted(entries))
    nodes = (
        f"{all_of(len(names), 'node')} fell silent at once"
        if len(names) > 1
        else f"the only node, {names[0]}, fell silent"
    )
    return Finding(
        severity="error",
        check=view.check,
        what=f"{nodes}{_when(view, next(iter(entries.values())))}",
        culprit=NOBODY,
        action=f"look at the network of the conductor's machine, then at {_shared(names)}",
    )


def _launcher_may_have_ended(view: StepView) -> bool:
    job = view.trial.job
    if not starts_all_nodes(job.get("target"), job.get("launcher")):
        return False
    # Of the whole trial: the launcher may need longer for some of them than we wait.
    lost = {entry.node for entry in view.trial.troubles if entry.node is not None and entry.how == "lost"}
    nodes = {node for generation in view.trial.generations for node in generation.nodes.values()}
    return may_have_ended(lost, _hosts(view, nodes | lost), ends_together=job.get("ends_together") is True)


def _lost_at_once(view: StepView, lost: Mapping[int, TroubleRecord], others: Sequence[int]) -> Finding:
    """Return one finding that names nobody: MPICH, Intel MPI and Slurm end the agents of all nodes with one of them."""
    names = _names(view, lost)
    left = [name for name in _names(view, others) if name not in names]
    how_many = f"{len(names)} of {len(names) + len(left)} nodes" if left else all_of(len(names), "node")
    gone = f"{how_many} were lost at once{_where(view)}, {_as_node(names[0])} first"
    if len(names) == 1:
        gone = f"{_as_node(names[0])} was lost{_where(view)}"
    after = f", {all_named('node', left)} {'was' if len(left) == 1 else 'were'} not" if left else ""
    hosts = f", at {', '.join(left[:8])}" if left else ""
    return Finding(
        severity="error",
        check=view.check,
        what=gone + after,
        culprit=NOBODY,
        evidence=tuple(entry.detail for entry in list(lost.values())[:1] if entry.detail),
        action=f"look at {_as_node(names[0])}, whose loss came first{hosts}, and at the output of the launcher, which"
        " may have ended the processes of all nodes",
    )


def _all_but_one(view: StepView, entries: Mapping[int, TroubleRecord], node: int, *, network_works: bool) -> Finding:
    """Return one finding for all of them: nodes do not fail independently at the same moment."""
    when = _when(view, next(iter(entries.values())))
    others, name = _names(view, sorted(entries)), view.trial.place(node)
    endpoint, start = f"the link of {name}, or ", f"the NIC, cable and switch port of {name}, then at "
    if network_works:
        endpoint = start = ""
    nodes = tuple(sorted({view.trial.host_name(end) for end in (node, *entries)}))
    return Finding(
        severity="fail",
        check=view.check,
        what=f"all {len(others)} nodes but {name} fell silent at once{when}: {endpoint}{_shared(others)}",
        culprit=Culprit(kind="fabric", name=f"the network between node {name} and the others", nodes=nodes),
        evidence=view.waiting(()),
        action=f"look at {start}{_shared(others)}",
    )


def _one_of_two(view: StepView, silent: tuple[int, TroubleRecord], *, other: int) -> Finding:
    """Return a finding for the link of two nodes: the other may be the conductor's own machine."""
    node, entry = silent
    gone, left = view.trial.place(node), view.trial.place(other)
    ends, lost = sorted((gone, left)), bool(view.trial.missing)
    nodes = tuple(sorted(view.trial.host_name(end) for end in (node, other)))
    link = Culprit(kind="link", name=f"link {ends[0]}–{ends[1]}, endpoints not separable", nodes=nodes)
    why = "; events were lost, so the node of the conductor is not known" if lost else ""
    return Finding(
        severity="error" if lost else "fail",
        check=view.check,
        what=f"node {gone} fell silent{_when(view, entry)}: it, or the network between it and {left}{why}",
        culprit=NOBODY if lost else link,
        evidence=view.waiting(()),
        action=f"check that {gone} is up, and whether something ended seatrial's agent there; then look at the NICs, "
        "cables and switch ports of both",
    )


def _names(view: StepView, nodes: Iterable[int]) -> list[str]:
    """Return the names of these nodes: the agents of one machine have one."""
    return list(dict.fromkeys(view.trial.place(node) for node in nodes))


def _when(view: StepView, entry: TroubleRecord) -> str:
    """Return where a node fell silent, and for how long: `` in training and sent nothing more for 16 s``."""
    seconds = waited(entry)
    if (entry.waited_s or _HEARD_S) < _HEARD_S:
        return f"{_where(view)} and did not answer the command to end its ranks"
    return _where(view) + (f" and sent nothing more{seconds}" if seconds else "")


def _as_node(name: str) -> str:
    """Return ``node gpu-1``; a node without a known name is called ``node 1`` already."""
    return name if name.startswith("node ") else f"node {name}"


def _where(view: StepView) -> str:
    return "" if view.check == "trial" else f" in {view.check}"


def _shared(names: list[str]) -> str:
    return f"what {', '.join(names[:8])} share" if len(names) > 1 else names[0]
