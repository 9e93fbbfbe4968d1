"""Nodes that fell silent or were cut off: which of them, or the network between them and who listens. Pure.

What conducts hears over a network too. Whom it no longer hears may be gone, or cut off; only where it hears another
node over that network is its own way known to be good.
"""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.verdict.findings import Culprit, Finding
from seatrial.verdict.scene import NOBODY, Scene, seconds
from seatrial.verdict.trial import TroubleSeen

__all__ = ["explain_silence"]


def explain_silence(scene: Scene) -> list[Finding]:
    """The findings of what the conductor saw of whole nodes; none if it saw nothing of the kind."""
    entries = {entry.node: entry for entry in scene.troubles if entry.node is not None}
    if not entries:
        return []
    heard = {node for rank in scene.ranks if (node := scene.node_of(rank)) is not None} - entries.keys()
    here = _conducting(scene)
    if any(entry.how != "silent" for entry in entries.values()) or (here and entries.keys() <= here):
        return _each(scene, entries)
    if not heard:
        return [_all(scene, entries)]
    # Of several that are heard one at least is elsewhere, wherever the conductor is.
    its_way_is_good = len(heard) > 1 or (here is not None and not heard & here)
    if len(entries) > 1 and len(heard) == 1:
        return [_all_but_one(scene, entries, min(heard), its_way_is_good=its_way_is_good)]
    return _each(scene, entries) if its_way_is_good else [_one_of_two(scene, *entries.items(), other=min(heard))]


def _conducting(scene: Scene) -> frozenset[int] | None:
    """The nodes that are the machine of the conductor; None: that is not known."""
    name = scene.trial.conductor_hostname
    found = [seen for seen in scene.trial.nodes if seen.hostname == name]
    # Several machines of one name: it may be any of them. And what was lost may be where it is.
    known = bool(name) and len({seen.address for seen in found}) < 2 and not scene.trial.missing
    return frozenset(seen.node for seen in found) if known else None


def _each(scene: Scene, entries: Mapping[int, TroubleSeen]) -> list[Finding]:
    found = []
    for node, entry in sorted(entries.items()):
        name = scene.trial.hostname(node)
        ranks = tuple(rank for rank in scene.ranks if scene.node_of(rank) == node)
        came = any(seen.node == node for seen in scene.trial.nodes)
        # The phase of one of its ranks would be as old as the last word from there.
        where = "" if scene.check == "trial" else f" in {scene.check}"
        words = "fell silent" if entry.how == "silent" else "was lost"
        what = f"node {name} {words}{where}{seconds(entry)}" if came else f"node {name} was never reached"
        finding = Finding(
            severity="fail" if came else "error",
            check=scene.check,
            what=what + (f": {entry.detail}" if entry.detail else ""),
            culprit=Culprit(kind="node", name=f"node {name}", ranks=ranks, nodes=(name,)) if came else NOBODY,
            evidence=scene.waiting(ranks),
            action=f"see whether {name} is up and reachable, and whether something ended its agent",
        )
        found.append(finding)
    return found


def _all(scene: Scene, entries: Mapping[int, TroubleSeen]) -> Finding:
    names = [scene.trial.hostname(node) for node in sorted(entries)]
    who = f"all {len(names)} nodes fell silent at once" if len(names) > 1 else f"the only node, {names[0]}, fell silent"
    return Finding(
        severity="error",
        check=scene.check,
        what=f"{who}{_when(scene, entries)}",
        culprit=NOBODY,
        action=f"look at the network of what conducts, then at {_shared(names)}",
    )


def _all_but_one(scene: Scene, entries: Mapping[int, TroubleSeen], node: int, *, its_way_is_good: bool) -> Finding:
    """It was not they who fell silent one by one."""
    others, name = [scene.trial.hostname(other) for other in sorted(entries)], scene.trial.hostname(node)
    own, first = f"the link of {name}, or ", f"the NIC, cable and switch port of {name}, then at "
    if its_way_is_good:
        own = first = ""
    return Finding(
        severity="fail",
        check=scene.check,
        what=f"all {len(others)} nodes but {name} fell silent at once{_when(scene, entries)}: {own}{_shared(others)}",
        culprit=Culprit(kind="fabric", name=f"the network between node {name} and the others"),
        evidence=scene.waiting(()),
        action=f"look at {first}{_shared(others)}",
    )


def _one_of_two(scene: Scene, silent: tuple[int, TroubleSeen], *, other: int) -> Finding:
    """The other may be where the trial is conducted, and nobody else hears either of them."""
    node, entry = silent
    gone, left = scene.trial.hostname(node), scene.trial.hostname(other)
    nodes, lost = tuple(sorted((gone, left))), bool(scene.trial.missing)
    link = Culprit(kind="link", name=f"link {nodes[0]}–{nodes[1]}, endpoints not separable", nodes=nodes)
    why = "; events were lost, so where the trial is conducted is not known" if lost else ""
    return Finding(
        severity="error" if lost else "fail",
        check=scene.check,
        what=f"node {gone} fell silent{_when(scene, {node: entry})}: it, or the network between it and {left}{why}",
        culprit=NOBODY if lost else link,
        evidence=scene.waiting(()),
        action=f"see whether {gone} is up, and whether something ended its agent; then look at the NICs, cables and "
        "switch ports of both",
    )


def _when(scene: Scene, entries: Mapping[int, TroubleSeen]) -> str:
    return ("" if scene.check == "trial" else f" in {scene.check}") + seconds(next(iter(entries.values())))


def _shared(names: list[str]) -> str:
    return f"what {', '.join(names[:8])} share" if len(names) > 1 else names[0]
