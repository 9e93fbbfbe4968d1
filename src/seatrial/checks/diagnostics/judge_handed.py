"""The files of other tools, which a person handed over: they count where they are about a device or node of a trial."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from seatrial.checks.diagnostics.history import NAME, NodeHistory
from seatrial.devices.handed import HandedFile, HandedResult
from seatrial.devices.plain_json import from_json
from seatrial.devices.state import DeviceState
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import NOBODY, Culprit, Finding
from seatrial.evidence.measurement import HANDED
from seatrial.util.text import as_name

Device: TypeAlias = tuple[NodeHistory, DeviceState]
Place = TypeVar("Place", str, int)
_SHOWN = 3
_LOOPBACK = ("127.", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """One file, and what it has to do with this trial."""

    file: HandedFile
    unused: str = ""
    """Why it counts for nothing, as a clause; empty: it counts."""
    has_disputed_name: bool = False
    """Whether it counts for nothing because several hosts give themselves the name by which it was handed over."""
    devices: Mapping[int, Device] = field(default_factory=dict)
    """Number of a device in the file -> that device of this trial."""
    disputed: Mapping[int, tuple[Device, ...]] = field(default_factory=dict)
    """Number of a device in the file -> a device of each host that says it has its serial number."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Machine as the file names it -> the node; "": all of the file is about that node."""


def handed_files(evidence: Evidence, histories: Iterable[NodeHistory]) -> tuple[tuple[Handed, ...], tuple[str, ...]]:
    """Return each file with what it is about, and what is wrong with those that are not as we write them."""
    nodes, files, damaged = tuple(histories), list[HandedFile](), dict[str, None]()
    for fact in evidence.facts:
        if (fact.check, fact.name) == HANDED:
            try:
                files.append(from_json(HandedFile, fact.value))
            except ValueError as error:
                name = fact.value.get("name") if isinstance(fact.value, Mapping) else None
                which = as_name(name) if name and isinstance(name, str) else "a file"
                damaged[f"what {which} says, which was handed over ({error})"] = None
    trial = _known(evidence, nodes)
    placed = (_placed(file, trial) for file in sorted(files, key=lambda file: (file.name, file.key())))
    return tuple(placed), tuple(damaged)


def findings_of(handed: Handed) -> Iterator[Finding]:
    """Yield the findings of a file about this trial, or the reason for which it counts for nothing."""
    file = handed.file
    if handed.unused:
        what = f"{file.name}, which was handed over, counts for nothing: {handed.unused}"
        # One host must not have the failures of another one left out.
        is_open = handed.has_disputed_name and any(result.verdict == "broken" for result in file.results)
        finding = Finding(severity="warn", check=NAME, what=what, culprit=NOBODY, evidence=_lines(file))
        yield replace(finding, severity="error") if is_open else finding
        return
    left_out = defaultdict[str, list[str]](list)
    for result in file.results:
        culprit = _culprit(handed, result)
        if culprit is None:
            continue
        if result.verdict == "not checked":
            left_out[result.what].append(culprit.name)
            continue
        if result.gpu in handed.disputed:
            yield _of_disputed(handed, result, culprit)
            continue
        used = _is_used(handed, result)
        yield Finding(
            severity="fail" if result.verdict == "broken" and used else "warn",
            check=NAME,
            what=f"{culprit.name} {result.what}{'' if used else '; no rank used it'} ({file.name})",
            culprit=culprit,
            evidence=(f"{file.form}, handed over as {file.name}:", *result.lines),
            action=_action(file, result),
        )
    for what, names in left_out.items():
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        where = f" on {', '.join(names[:_SHOWN])}{more}" if any(names) else ""
        yield Finding(severity="info", check=NAME, what=f"not checked: {what}{where} ({file.name})", culprit=NOBODY)


def unjudged_of(handed: Handed) -> tuple[str, ...]:
    """Return what a file says that was not judged."""
    if handed.unused:
        return (f"{handed.file.name} not used",)
    count = sum(result.verdict == "broken" and _culprit(handed, result) is None for result in handed.file.results)
    failures = f"{count} failure{'s' if count > 1 else ''}"
    what = f"{handed.file.name}: {failures} of a device or machine that is not known to this trial"
    return (what,) if count else ()


def _of_disputed(handed: Handed, result: HandedResult, culprit: Culprit) -> Finding:
    """Return the finding for a device whose serial number several have: any of them may only say so."""
    file = handed.file
    serial = as_name(file.serials[str(result.gpu)])
    return Finding(
        severity="error" if result.verdict == "broken" else "warn",
        check=NAME,
        what=f"GPU {result.gpu} of {file.name} {result.what}, and several devices have its serial number {serial}:"
        f" {culprit.name}",
        culprit=replace(NOBODY, nodes=culprit.nodes),
        evidence=(f"{file.form}, handed over as {file.name}:", *result.lines),
        action=f"say whose file it is with --evidence NODE={file.name}",
    )


def _action(file: HandedFile, result: HandedResult) -> str:
    if file.gpus or (result.gpu is not None and not result.host):
        return "do what the lines of DCGM ask for, and run dcgmi diag again"
    return "look at the output of that process, and at the kernel log of its machine"


def _lines(file: HandedFile) -> tuple[str, ...]:
    """Return what a file says that counts for nothing: somebody may know better."""
    said = [f"{result.what}: {'; '.join(result.lines)}" for result in file.results if result.verdict != "not checked"]
    return tuple(said[:10])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The nodes and devices of a trial as files may name them, made once for any number of files."""

    numbers: Mapping[str, int]
    """Everything that a node is called -> its number."""
    disputed: Set[str]
    """Names that several hosts give themselves."""
    names: Mapping[int, str]
    """Number of a node -> its name."""
    histories: Mapping[str, NodeHistory]
    """Name of a node -> its devices."""
    places: Mapping[int, str]
    """The places of the nodes, as ``Evidence`` has them."""
    holders: _Holders


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holders:
    """Devices by their serial number, which any number of hosts may say that theirs has."""

    of_hosts: Mapping[str, tuple[Device, ...]]
    """A device of each host."""
    at: Mapping[tuple[str, int], Device]
    """By serial number and number of the device: those of one board may share the former."""


def _known(evidence: Evidence, histories: Sequence[NodeHistory]) -> _Known:
    return _Known(
        numbers=_known_names(evidence),
        disputed={*evidence.disputed_names, *_disputed(evidence)},
        names=evidence.nodes,
        # Of several agents of one machine one reports its devices.
        histories={history.node: history for history in reversed(histories)},
        places=evidence.places_of_nodes,
        holders=_holders(histories, evidence.places_of_nodes),
    )


def _holders(histories: Iterable[NodeHistory], places: Mapping[int, str]) -> _Holders:
    of_hosts, at = defaultdict[str, dict[str, Device]](dict), dict[tuple[str, int], Device]()
    for history in histories:
        host = history.host(places)
        for device in history.before.devices:
            of_hosts[device.serial][host] = (history, device)
            at.setdefault((device.serial, device.index), (history, device))
    return _Holders(of_hosts={serial: tuple(devices.values()) for serial, devices in of_hosts.items()}, at=at)


def _placed(file: HandedFile, trial: _Known) -> Handed:
    if file.problem:
        return Handed(file=file, unused=file.problem)
    known, names = trial.numbers, trial.names
    if file.node and file.node not in known and file.node in trial.disputed:
        why = f"several hosts of this trial call themselves {file.node}; name the node as the report does"
        return Handed(file=file, unused=why, has_disputed_name=True)
    if file.node and file.node not in known:
        return Handed(file=file, unused=f"no node of this trial is called {file.node}")
    node = known.get(file.node)
    if file.gpus:
        name = None if node is None else names.get(node, "")
        return _placed_devices(file, trial, name)
    if node is not None:
        return Handed(file=file, nodes={"": names.get(node, file.node)})
    if not file.hosts:
        return Handed(file=file, unused=f"it names no node; say whose it is with --evidence NODE={file.name}")
    found = {
        host: names[known[host]]
        for host in file.hosts
        if not (host.startswith(_LOOPBACK) and len(names) > 1) and known.get(host) in names
    }
    if not found:
        shown = ", ".join(map(as_name, file.hosts[:_SHOWN]))
        return Handed(
            file=file,
            unused=f"it is about {shown}{' and others' if len(file.hosts) > _SHOWN else ''}, and no node of this trial"
            f" has such a name or address; if it is one, say so with --evidence NODE={file.name}",
        )
    return Handed(file=file, nodes=found)


def _known_names(evidence: Evidence) -> dict[str, int]:
    """Return everything that a node is called -> its number; without its domain too, where only one node is so."""
    given = {name: node for node, name in evidence.nodes.items()}
    short = _short_names(given)
    # What a host calls itself counts after the names of the controller, whole and short.
    disputed, claims = _disputed(evidence), {**_shortest(evidence.other_names), **evidence.other_names}
    claimed = {name: node for name, node in claims.items() if name not in disputed}
    return {**{name: node for name, node in claimed.items() if name not in short}, **_only(short), **given}


def _disputed(evidence: Evidence) -> set[str]:
    """Return the short names that hosts of several places claim, whole or with a domain: any may only say so."""
    places = {name: evidence.places_of_nodes.get(node) or f"node {node}" for name, node in evidence.other_names.items()}
    short = {name for name, of in _short_names(places).items() if len(of) > 1}
    return short | _short_names(dict.fromkeys(evidence.disputed_names, 0)).keys()


def _shortest(names: Mapping[str, int]) -> dict[str, int]:
    """Return each short name with the first of its nodes."""
    return {name: min(nodes) for name, nodes in _short_names(names).items()}


def _short_names(names: Mapping[str, Place]) -> dict[str, set[Place]]:
    short = defaultdict[str, set[Place]](set)
    for name, node in names.items():
        if not name.replace(".", "").isdigit():
            short[name.partition(".")[0]].add(node)
    return short


def _only(names: Mapping[str, set[int]]) -> dict[str, int]:
    return {name: min(nodes) for name, nodes in names.items() if len(nodes) == 1}


def _placed_devices(file: HandedFile, trial: _Known, node: str | None) -> Handed:
    own = None if node is None else trial.histories.get(node)
    if node is not None and own is None:
        return Handed(file=file, unused=f"the devices of {file.node} are not known to seatrial")
    holders = trial.holders if own is None else _holders((own,), trial.places)
    found = dict[int, Device]()
    disputed = dict[int, tuple[Device, ...]]()
    for gpu in file.gpus:
        serial = file.serials.get(str(gpu), "")
        if serial:
            devices = holders.of_hosts.get(serial, ())
            if len(devices) > 1:
                disputed[gpu] = devices
            elif devices:
                found[gpu] = holders.at.get((serial, gpu), devices[-1])
        elif own is not None:
            device = next((device for device in own.before.devices if device.index == gpu), None)
            if device is not None and device.vendor == "nvidia":
                found[gpu] = (own, device)
    drivers = {device.driver for _, device in found.values() if device.driver}
    if disputed and not found:
        return Handed(file=file, disputed=disputed)
    if not found and file.serials:
        return Handed(
            file=file, unused=f"it is about other devices (serial number {as_name(next(iter(file.serials.values())))})"
        )
    if not found and node is None:
        return Handed(
            file=file,
            unused="it names no serial number, so nobody knows whose devices it is about; say it with"
            f" --evidence NODE={file.name}",
        )
    if not found:
        return Handed(file=file, unused=f"{file.node} has no device {', '.join(map(str, file.gpus[:_SHOWN]))}")
    if not file.serials and file.driver and drivers and file.driver not in drivers:
        return Handed(
            file=file,
            unused=f"it was written with driver {as_name(file.driver)}, and {file.node} has"
            f" {', '.join(sorted(drivers))}",
        )
    return Handed(file=file, devices=found, disputed=disputed, nodes={"": own.node} if own else _only_node(found))


def _only_node(found: Mapping[int, Device]) -> dict[str, str]:
    nodes = {history.node for history, _ in found.values()}
    return {"": next(iter(nodes))} if len(nodes) == 1 else {}


def _culprit(handed: Handed, result: HandedResult) -> Culprit | None:
    """Return whom a result is about; None: nobody of this trial."""
    if handed.file.gpus:
        if result.gpu is None:
            node = handed.nodes.get("")
            return None if node is None else Culprit(kind="node", name=node, nodes=(node,))
        if result.gpu in handed.disputed:
            places = handed.disputed[result.gpu]
            names = [history.culprit(device).name for history, device in places[:_SHOWN]]
            more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
            nodes = tuple(dict.fromkeys(history.node for history, _ in places[:_SHOWN]))
            return replace(NOBODY, name=f"{', '.join(names)}{more}", nodes=nodes)
        if result.gpu not in handed.devices:
            return None
        history, device = handed.devices[result.gpu]
        return history.culprit(device)
    if result.verdict == "not checked":
        return Culprit(kind="none", name="")
    node = handed.nodes.get(result.host) if result.host else None
    if node is None and "" not in handed.nodes:
        return None
    place = [f"GPU {result.gpu}"] if result.gpu is not None else []
    place += [f"process {result.pid}"] if result.pid is not None else []
    machine = node or (as_name(result.host) if result.host else handed.nodes[""])
    where = f"{', '.join(place)} of {machine}" if place else f"of a job on {machine}"
    name = f"rank {result.rank} of a job ({where})" if result.rank is not None else f"a rank ({where})"
    return Culprit(kind="rank", name=name, nodes=(node,) if node else ())


def _is_used(handed: Handed, result: HandedResult) -> bool:
    if not handed.file.gpus or result.gpu is None:
        return True
    history, device = handed.devices[result.gpu]
    return device.uuid in history.used
