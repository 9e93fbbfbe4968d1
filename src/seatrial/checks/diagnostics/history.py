"""What the nodes reported about their devices, in order, with the ranks that used them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from seatrial.checks.diagnostics.host_words import state_in_known_words, window_in_known_words
from seatrial.checks.diagnostics.measure import AFTER, BEFORE, WINDOW
from seatrial.devices.plain_json import from_json
from seatrial.devices.readers import short_bus
from seatrial.devices.state import DeviceState, DeviceWindow, NodeState, NodeWindow
from seatrial.evidence.evidence import RankRecord, a_node
from seatrial.evidence.findings import Culprit
from seatrial.evidence.measurement import Fact

NAME = "diagnostics"
_MOST_DEVICES = 128
"""More than any machine has, as in ``inventory``."""
_MOST_PORTS = 256
"""More ports than any machine has."""
_MOST_WINDOWS = 4_096
"""More steps than any trial has: each round of a check is one."""
_Snapshot = TypeVar("_Snapshot", NodeState, NodeWindow)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """One machine from the first snapshot to the last one."""

    node: str
    """Name of the node."""
    node_rank: int
    before: NodeState
    windows: tuple[NodeWindow, ...]
    windows_by_device: Mapping[str, Sequence[tuple[NodeWindow, DeviceWindow]]]
    """UUID of a device -> each step with what the device did in it."""
    after: NodeState | None
    """None: the last snapshot is missing, or a source did not answer for it."""
    ranks: Mapping[str, int]
    """UUID of a device -> the rank that used it."""
    used: frozenset[str]
    """UUIDs of the devices that the trial used, as far as that is known: those of ranks, else the visible ones."""
    unwatched: tuple[int, ...] = ()
    """Ranks whose device is none of this state: the agent that reads it may not see those of other ranks."""

    def windows_of(self, uuid: str) -> Sequence[tuple[NodeWindow, DeviceWindow]]:
        """Return each step with what the device did in it."""
        return self.windows_by_device.get(uuid, ())

    def host(self, places_of_nodes: Mapping[int, str]) -> str:
        """Return the host, as the controller knows it where it does: one vote, under whatever names."""
        return places_of_nodes.get(self.node_rank) or self.node

    def culprit(self, device: DeviceState) -> Culprit:
        """Return a device as a finding names it."""
        rank = self.ranks.get(device.uuid)
        model = f"{device.model}, " if device.model else ""
        name = f"GPU {device.index} ({model}{device.bus or device.uuid}) of {a_node(self.node)}"
        return Culprit(kind="device", name=name, ranks=() if rank is None else (rank,), nodes=(self.node,))


def histories(
    facts: tuple[Fact, ...], ranks: Mapping[int, RankRecord], nodes: Mapping[int, str]
) -> tuple[tuple[NodeHistory, ...], dict[int, str]]:
    """Return the history of each machine, and what is wrong with the facts of each node that cannot be read.

    Where each rank has a separate agent, one of them reports the devices of all: agents of one machine have one name.
    """
    facts_of: dict[int, list[Fact]] = {}
    for fact in facts:
        if fact.node_rank is not None and fact.check == NAME and fact.name in (BEFORE, AFTER, WINDOW):
            facts_of.setdefault(fact.node_rank, []).append(fact)
    records_of, agents_of = defaultdict[str, list[RankRecord]](list), defaultdict[str, set[int]](set)
    for record in ranks.values():
        records_of[record.node].append(record)
        agents_of[record.node].add(record.node_rank)
    found, unread, agents = list[NodeHistory](), dict[int, str](), Counter[str]()
    for node_rank, own in sorted(facts_of.items()):
        try:
            states = {
                fact.name: _plausible(state_in_known_words(from_json(NodeState, fact.value)))
                for fact in own
                if fact.name != WINDOW
            }
            windows = tuple(
                _plausible(window_in_known_words(from_json(NodeWindow, fact.value)))
                for fact in own
                if fact.name == WINDOW
            )
            _require_few(windows)
        except ValueError as error:
            unread[node_rank] = str(error)
            continue
        if BEFORE not in states:
            continue
        before, after = states[BEFORE], states.get(AFTER)
        node = nodes.get(node_rank, f"node {node_rank}")
        agents[node] += bool(before.devices)
        if agents[node] > _MOST_DEVICES:
            unread[node_rank] = f"agents of {a_node(node)}: more than {_MOST_DEVICES}, the most devices of a machine"
            continue
        records = records_of.get(node, [])
        users, unwatched = _users(before, records, node_rank)
        visible = before.visible
        if visible is None or agents_of.get(node, {node_rank}) != {node_rank}:
            # Another agent may have another variable.
            visible = tuple(device.uuid for device in before.devices)
        found.append(
            NodeHistory(
                node=node,
                node_rank=node_rank,
                before=before,
                windows=windows,
                windows_by_device=_by_device(windows),
                after=None if after is None or after.silent else after,
                ranks=users,
                used=frozenset(users) or frozenset(visible),
                unwatched=unwatched,
            )
        )
    watched = {(history.node, rank) for history in found for rank in history.ranks.values()}
    found = [
        replace(each, unwatched=tuple(rank for rank in each.unwatched if (each.node, rank) not in watched))
        for each in found
    ]
    return _without_copies(found), unread


def _plausible(read: _Snapshot) -> _Snapshot:
    """Return a snapshot or a window as it is. Raises ValueError for more devices than a machine has, and for twins."""
    _require_at_most(_MOST_DEVICES, len(read.devices), "devices")
    if len({device.uuid for device in read.devices}) < len(read.devices):
        raise ValueError("devices: two have one UUID")
    return read


def _require_few(windows: Sequence[NodeWindow]) -> None:
    """Raise ValueError for more steps, and more ports in them, than a machine has: each may become a finding."""
    _require_at_most(_MOST_PORTS, len({name for each in windows for name in (*each.ports_down, *each.ports)}), "ports")
    _require_at_most(_MOST_WINDOWS, len(windows), "steps")


def _require_at_most(most: int, count: int, what: str) -> None:
    if count > most:
        raise ValueError(f"{what}: {count}, and no machine has more than {most}")


def _by_device(windows: tuple[NodeWindow, ...]) -> dict[str, list[tuple[NodeWindow, DeviceWindow]]]:
    by_device: dict[str, list[tuple[NodeWindow, DeviceWindow]]] = {}
    for window in windows:
        for device in window.devices:
            by_device.setdefault(device.uuid, []).append((window, device))
    return by_device


def _users(state: NodeState, ranks: list[RankRecord], node_rank: int) -> tuple[dict[str, int], tuple[int, ...]]:
    """Return UUID -> rank, by the identity that the rank's own device has, and the ranks with another device.

    Nobody where the device of a rank is not known, or is none of those that its agent sees.
    """
    if not state.devices:
        return {}, ()
    users, unwatched, is_complete = dict[str, int](), list[int](), True
    # Of two devices the first one counts.
    by_uuid = {device.uuid.removeprefix("GPU-"): number for number, device in reversed([*enumerate(state.devices)])}
    by_bus = {device.bus: number for number, device in reversed([*enumerate(state.devices)]) if device.bus}
    for record in ranks:
        identity = record.device_id.removeprefix("GPU-")
        known = (by_uuid.get(identity), by_bus.get(short_bus(identity))) if identity else ()
        number = min((number for number in known if number is not None), default=None)
        if number is not None:
            users[state.devices[number].uuid] = record.rank
            continue
        # Another agent may see other devices.
        is_complete = is_complete and bool(identity) and record.node_rank != node_rank
        if identity:
            unwatched.append(record.rank)
    # Where torch tells no addresses, a slice (MIG) or a device of AMD has a UUID that its driver does not know.
    is_comparable = bool(users) or any(short_bus(record.device_id) for record in ranks)
    return users if is_complete else {}, tuple(unwatched) if is_comparable else ()


def _without_copies(found: list[NodeHistory]) -> tuple[NodeHistory, ...]:
    """Return each machine once: several nodes of a job may share one, and then report the same devices."""
    kept: dict[tuple[str, object], NodeHistory] = {}
    for history in found:
        serials = frozenset((device.uuid, device.serial) for device in history.before.devices)
        kept.setdefault((history.node, serials or history.node_rank), history)
    return tuple(kept.values())


def step_words(window: NodeWindow) -> str:
    """Return when a window was, as a finding says it."""
    if not window.check:
        return "before the first check of the ranks"
    return f"in {window.check}" if window.stage in ("measure", window.check) else f"in {window.check}/{window.stage}"
