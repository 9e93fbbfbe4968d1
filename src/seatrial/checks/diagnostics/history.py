"""What the nodes reported about their devices, in order, with the ranks that used them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from seatrial.checks.diagnostics.measure import AFTER, BEFORE, WINDOW
from seatrial.devices.plain_json import from_json
from seatrial.devices.readers import short_bus
from seatrial.devices.state import DeviceState, DeviceWindow, NodeState, NodeWindow
from seatrial.evidence.evidence import RankRecord
from seatrial.evidence.findings import Culprit
from seatrial.evidence.measurement import Fact

NAME = "diagnostics"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """One machine from the first snapshot to the last one."""

    node: str
    """Name of the node."""
    node_rank: int
    before: NodeState
    windows: tuple[NodeWindow, ...]
    after: NodeState | None
    """None: the last snapshot is missing, or a source did not answer for it."""
    ranks: Mapping[str, int]
    """UUID of a device -> the rank that used it."""
    used: frozenset[str]
    """UUIDs of the devices that the trial used, as far as that is known: those of ranks, else the visible ones."""

    def windows_of(self, uuid: str) -> Iterator[tuple[NodeWindow, DeviceWindow]]:
        """Yield each step with what the device did in it."""
        for window in self.windows:
            for device in window.devices:
                if device.uuid == uuid:
                    yield window, device

    def culprit(self, device: DeviceState) -> Culprit:
        """Return a device as a finding names it."""
        rank = self.ranks.get(device.uuid)
        model = f"{device.model}, " if device.model else ""
        name = f"GPU {device.index} ({model}{device.bus or device.uuid}) of {self.node}"
        return Culprit(kind="device", name=name, ranks=() if rank is None else (rank,), nodes=(self.node,))


def readable(facts: tuple[Fact, ...]) -> tuple[tuple[Fact, ...], dict[int, str]]:
    """Return the facts of the nodes of which all can be read, and what is wrong with those of each other node."""
    unread: dict[int, str] = {}
    for fact in facts:
        if fact.node_rank is None or fact.check != NAME or fact.name not in (BEFORE, AFTER, WINDOW):
            continue
        try:
            from_json(NodeWindow if fact.name == WINDOW else NodeState, fact.value)
        except ValueError as error:
            unread.setdefault(fact.node_rank, str(error))
    return tuple(fact for fact in facts if fact.node_rank not in unread), unread


def histories(
    facts: tuple[Fact, ...], ranks: Mapping[int, RankRecord], nodes: Mapping[int, str]
) -> tuple[NodeHistory, ...]:
    """Return the history of each machine. Facts that are not as we write them raise ValueError."""
    found = []
    for node_rank in sorted({fact.node_rank for fact in facts if fact.node_rank is not None}):
        own = [fact for fact in facts if fact.node_rank == node_rank and fact.check == NAME]
        states = {fact.name: from_json(NodeState, fact.value) for fact in own if fact.name in (BEFORE, AFTER)}
        if BEFORE not in states:
            continue
        before, after = states[BEFORE], states.get(AFTER)
        users = _users(before, [record for record in ranks.values() if record.node_rank == node_rank])
        visible = before.visible if before.visible is not None else [device.uuid for device in before.devices]
        found.append(
            NodeHistory(
                node=nodes.get(node_rank, f"node {node_rank}"),
                node_rank=node_rank,
                before=before,
                windows=tuple(from_json(NodeWindow, fact.value) for fact in own if fact.name == WINDOW),
                after=None if after is None or after.silent else after,
                ranks=users,
                used=frozenset(users) or frozenset(visible),
            )
        )
    return _without_copies(found)


def _users(state: NodeState, ranks: list[RankRecord]) -> dict[str, int]:
    """Return UUID -> rank, by the identity that the rank's own device has; nobody where a rank did not say it."""
    users = {}
    for record in ranks:
        identity = record.device_id.removeprefix("GPU-")
        uuid = next(
            (
                device.uuid
                for device in state.devices
                if identity and (device.uuid.removeprefix("GPU-") == identity or device.bus == short_bus(identity))
            ),
            None,
        )
        if uuid is None:
            return {}
        users[uuid] = record.rank
    return users


def _without_copies(found: list[NodeHistory]) -> tuple[NodeHistory, ...]:
    """Return each machine once: several nodes of a job may share one, and then report the same devices."""
    kept = list[NodeHistory]()
    for history in found:
        serials = {(device.uuid, device.serial) for device in history.before.devices}
        if not serials or not any(
            serials == {(device.uuid, device.serial) for device in other.before.devices} and other.node == history.node
            for other in kept
        ):
            kept.append(history)
    return tuple(kept)


def step_words(window: NodeWindow) -> str:
    """Return when a window was, as a finding says it."""
    if not window.check:
        return "before the first check of the ranks"
    return f"in {window.check}" if window.stage in ("measure", window.check) else f"in {window.check}/{window.stage}"
