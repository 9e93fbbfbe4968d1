"""The judge of the diagnostics. It fails a device only for what rose during the trial or is documented as broken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from seatrial.checks.diagnostics.history import NAME, NodeHistory, histories, step_words
from seatrial.checks.diagnostics.host_words import is_lacking
from seatrial.checks.diagnostics.judge_device import device_findings, is_unread
from seatrial.checks.diagnostics.judge_fleet import unlike_most
from seatrial.checks.diagnostics.judge_handed import findings_of, handed_files, unjudged_of
from seatrial.checks.diagnostics.judge_kernel_log import kernel_findings, too_many_events
from seatrial.checks.diagnostics.params import Params
from seatrial.devices.network_ports import ERROR_COUNTERS
from seatrial.devices.state import DeviceState
from seatrial.evidence.evidence import Evidence, a_node
from seatrial.evidence.findings import NOBODY, Culprit, Finding, Limit, Ruling
from seatrial.evidence.statistics import median, minority
from seatrial.util.text import as_name

NO_STATE = "GPU diagnostics"
"""Begins what a PASS says of devices whose state is not known."""
_TRAINING = "training"
_LEAST_SAMPLES = 3
_FEW_DEVICES = 3
"""The least number of devices whose usual number of links is known: of two, neither number is."""
_MOST_REASONS = 64
"""Values that could not be read, of which each has a line."""
_FAILS_PORT = ("link_downed",)


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Rule about the devices of all nodes. Not applicable where no node has any."""
    nodes, unread = histories(evidence.facts, evidence.ranks, evidence.nodes)
    names = {node: evidence.nodes.get(node, f"node {node}") for node in unread}
    heard = {*(history.node for history in nodes), *names.values()}
    silent = [name for name in evidence.nodes.values() if name not in heard]
    ruling = _judge_readable(evidence, nodes, silent, params)
    absent = tuple(f"a readable state of the devices of {names[node]} ({error})" for node, error in unread.items())
    return Ruling.merge((ruling, Ruling(absent=absent))) if absent else ruling


def _judge_readable(
    evidence: Evidence, nodes: tuple[NodeHistory, ...], silent: Sequence[str], params: Params
) -> Ruling:
    """Rule about the nodes that can be read. ``silent``: names of those that reported nothing at all."""
    handed, damaged = handed_files(evidence, nodes)
    of_files = Ruling(
        findings=tuple(finding for entry in handed for finding in findings_of(entry)),
        absent=damaged,
        unjudged=tuple(what for entry in handed for what in unjudged_of(entry)),
    )
    if not any(history.before.devices or history.before.not_checked for history in nodes):
        if evidence.device_type != "cuda" and len(nodes) == len(evidence.nodes):
            return replace(of_files, not_applicable="" if handed or damaged else "no node has a GPU")
        return Ruling.merge((Ruling(unjudged=(f"{NO_STATE}: no driver showed a device",)), of_files))
    places = evidence.places_of_nodes
    findings = [finding for history in nodes for finding in _of_node(history, params)]
    findings += [
        *_utilization(nodes, params),
        *_links(nodes, places),
        *_cliques(nodes, places),
        *unlike_most(nodes, places),
    ]
    # Without the last state nobody knows what rose: that node may have had any fault.
    unread = [*silent, *(each.node for each in nodes if not each.before.devices or each.after is None)]
    named = {*unread}
    read = [history for history in nodes if history.node not in named]
    unread += [
        f"GPU {device.index} of {a_node(history.node)}"
        for history in read
        for device in history.before.devices
        if device.uuid in history.used and is_unread(history, device)
    ]
    unread += [f"the device of rank {rank} on {a_node(history.node)}" for history in read for rank in history.unwatched]
    unread += [f"the NVLinks of {a_node(history.node)}" for history in read if _no_longer_connected(history)]
    state = Ruling(
        findings=(*findings, *_not_checked(nodes)),
        absent=tuple(what for history in nodes if (what := too_many_events(history))),
        unjudged=(f"{NO_STATE} of {_names(unread)} not checked",) if unread else (),
    )
    return Ruling.merge((state, of_files))


def _of_node(history: NodeHistory, params: Params) -> Iterator[Finding]:
    found = list[Finding]()
    for device in history.before.devices:
        found += device_findings(history, device, params)
    lost = {finding.culprit.name: finding for finding in found if " was lost " in finding.what}
    for finding in kernel_findings(history):
        if finding.culprit.name in lost:  # the log says why
            known = lost[finding.culprit.name]
            evidence = (*known.evidence, finding.what, *finding.evidence)
            found[found.index(known)] = lost[finding.culprit.name] = replace(known, evidence=evidence)
        else:
            found.append(finding)
    yield from found
    if not any(device.nvlinks_active is not None for device in history.before.devices):
        yield from _connections(history)
    yield from _ports(history)
    if history.after is None and history.before.devices:
        yield Finding(
            severity="warn",
            check=NAME,
            what=f"the driver of {a_node(history.node)} did not answer at the end of the trial,"
            " so what changed is not known",
            culprit=Culprit(kind="node", name=history.node, nodes=(history.node,)),
            action="look at the kernel log there",
        )


def _connections(history: NodeHistory) -> Iterator[Finding]:
    """Yield pairs of devices with fewer NVLinks than before the trial, where no device counts its links."""
    after = history.after.topology if history.after else {}
    names = {str(device.index): device for device in history.before.devices}
    for pair, before in history.before.topology.items():
        one, _, other = pair.partition("-")
        now = after.get(pair, before)
        if one not in names or other not in names or _nvlinks(now) >= _nvlinks(before):
            continue
        ends = (names[one], names[other])
        ranks = tuple(rank for end in ends for rank in history.culprit(end).ranks)
        name = f"NVLink between GPU {one} and GPU {other} of {a_node(history.node)}"
        used = all(end.uuid in history.used for end in ends)
        yield Finding(
            severity="fail" if used else "warn",
            check=NAME,
            what=f"{name} changed from {before} to {now} by the end of the trial{'' if used else '; no rank used it'}",
            culprit=Culprit(kind="link", name=name, ranks=ranks, nodes=(history.node,)),
            measured=str(_nvlinks(now)),
            limit=Limit(value=_nvlinks(before), unit="1", origin="exact, before the trial"),
            action="check the NVLinks and what they lead to",
        )


def _no_longer_connected(history: NodeHistory) -> bool:
    """Return whether only the table of connections has told of NVLinks before the trial, and nothing has after it."""
    counted = any(device.nvlinks_active is not None for device in history.before.devices)
    had = any(_nvlinks(connection) for connection in history.before.topology.values())
    return had and not counted and history.after is not None and not history.after.topology


def _nvlinks(connection: str) -> int:
    """Return 18 for ``NV18``."""
    count = connection.removeprefix("NV")
    return int(count) if count != connection and count.isdecimal() and len(count) < 4 else 0


def _ports(history: NodeHistory) -> Iterator[Finding]:
    """Yield a finding for each port and what happened to it, however often it did.

    A port that no rank can open may be that of another container, which may end or stop it at any time.
    """
    others = {port.name for port in history.before.ports if not port.usable}
    seen = defaultdict[tuple[str, str], list[str]](list)
    for window in history.windows:
        for name in window.ports_down:
            seen["fail", name].append(f"went down {step_words(window)}")
        for name, changes in window.ports.items():
            counted = [
                f"{count} {ERROR_COUNTERS.get(counter) or as_name(counter)}" for counter, count in changes.items()
            ]
            severity = "fail" if changes.keys() & set(_FAILS_PORT) else "warn"
            seen[severity, name].append(f"counted {', '.join(counted)} {step_words(window)}")
    for (severity, name), times in seen.items():
        more = f", and again in {len(times) - 1} later step{'' if len(times) == 2 else 's'}" if len(times) > 1 else ""
        unused = "; no rank can open it" if name in others else ""
        yield _port(history, "warn" if unused else severity, name, f"{times[0]}{more}{unused}")


def _port(history: NodeHistory, severity: str, name: str, what: str) -> Finding:
    culprit = Culprit(kind="node", name=f"port {as_name(name)} of {a_node(history.node)}", nodes=(history.node,))
    return Finding(
        severity="fail" if severity == "fail" else "warn",
        check=NAME,
        what=f"{culprit.name} {what}",
        culprit=culprit,
        action="check the cable, the transceiver and the port of the switch",
    )


def _utilization(nodes: tuple[NodeHistory, ...], params: Params) -> Iterator[Finding]:
    """Yield a warning for each device that worked less than half as much as the median one while training ran."""
    shares = {}
    for history in nodes:
        for device in history.before.devices:
            values = [
                changes.utilization_percent
                for window, changes in history.windows_of(device.uuid)
                if window.check == _TRAINING
                and changes.samples >= _LEAST_SAMPLES
                and changes.utilization_percent is not None
            ]
            if values and device.uuid in history.used:
                shares[history.node_rank, device.uuid] = (max(values), history, device)
    if len(shares) < 2:
        return
    middle = median([share for share, _, _ in shares.values()])
    origin = f"fleet, {params.min_utilization_share:g} x its median of {middle:.0f} %"
    limit = Limit(value=params.min_utilization_share * middle, unit="%", origin=origin)
    for share, history, device in shares.values():
        if share < limit.value:
            culprit = history.culprit(device)
            what = f"{culprit.name} was busy {share:.0f} % of the training"
            measured = f"{share:.0f} %"
            yield Finding(severity="warn", check=NAME, what=what, culprit=culprit, measured=measured, limit=limit)


def _links(nodes: tuple[NodeHistory, ...], places: Mapping[int, str]) -> Iterator[Finding]:
    """Yield a warning for each device with fewer active links than most others of its model."""
    counts = defaultdict[str, list[tuple[int, NodeHistory, DeviceState]]](list)
    for history in nodes:
        for device in history.before.devices:
            if device.nvlinks_active is not None and device.uuid in history.used and not device.problem:
                counts[device.model].append((device.nvlinks_active, history, device))
    for model, entries in counts.items():
        hosts = {number: history.host(places) for number, (_, history, _) in enumerate(entries)}
        usual = minority({number: active for number, (active, _, _) in enumerate(entries)}, hosts).majority
        for active, history, device in entries:
            if len(entries) >= _FEW_DEVICES and isinstance(usual, int) and active < usual:
                culprit = history.culprit(device)
                yield Finding(
                    severity="warn",
                    check=NAME,
                    what=f"{culprit.name} has {active} active NVLinks",
                    culprit=culprit,
                    measured=str(active),
                    limit=Limit(value=usual, unit="1", origin=f"fleet, most of {len(entries)} {model}"),
                    action="check the NVLinks and the fabric manager",
                )


def _cliques(nodes: tuple[NodeHistory, ...], places: Mapping[int, str]) -> Iterator[Finding]:
    """Yield a warning for devices of a fabric that cannot reach most others of it by NVLink (NVL72: several nodes)."""
    fabrics = defaultdict[str, list[tuple[str, NodeHistory, DeviceState]]](list)
    for history in nodes:
        for device in history.before.devices:
            fabric, _, clique = device.fabric_clique.rpartition(".")
            if fabric and device.uuid in history.used and not device.problem:
                fabrics[fabric].append((clique, history, device))
    for entries in fabrics.values():
        hosts = {number: history.host(places) for number, (_, history, _) in enumerate(entries)}
        usual = minority({number: clique for number, (clique, _, _) in enumerate(entries)}, hosts).majority
        for clique, history, device in entries:
            if len(entries) >= _FEW_DEVICES and usual is not None and clique != usual:
                culprit = history.culprit(device)
                yield Finding(
                    severity="warn",
                    check=NAME,
                    what=f"{culprit.name} is in clique {as_name(clique)} of its NVLink fabric, and most others are in"
                    f" {as_name(str(usual))}",
                    culprit=culprit,
                    action="check the partitions of the fabric manager, and IMEX",
                )


def _not_checked(nodes: tuple[NodeHistory, ...]) -> Iterator[Finding]:
    """Yield what could not be read, each with its reason and the nodes."""
    places = defaultdict[tuple[str, str], list[str]](list)
    for history in nodes:
        for what, why in {**history.before.not_checked, **(history.after.not_checked if history.after else {})}.items():
            places[what, why].append(history.node)
        for device in history.before.devices:
            refused = defaultdict[str, list[str]](list)
            for name, why in device.unavailable.items():
                if not is_lacking(why) and name != "device":
                    refused[why].append(name)
            for why, names in refused.items():
                places[", ".join(names), why].append(f"GPU {device.index} of {a_node(history.node)}")
    for (what, why), where in islice(places.items(), _MOST_REASONS):
        yield Finding(
            severity="info", check=NAME, what=f"not checked: {what} of {_names(where)} ({why})", culprit=NOBODY
        )
    if len(places) > _MOST_REASONS:
        rest = [node for where in islice(places.values(), _MOST_REASONS, None) for node in where]
        what = f"not checked: {len(places) - _MOST_REASONS} more values, of {_names(rest)}"
        yield Finding(severity="info", check=NAME, what=what, culprit=NOBODY)


def _names(names: list[str]) -> str:
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - 3} more" if len(distinct) > 3 else ""
    return ", ".join(distinct[:3]) + more
