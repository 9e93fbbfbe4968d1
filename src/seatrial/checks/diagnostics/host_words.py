"""The texts in what a node reported, as findings may have them: it may write what it likes there.

Models and identities stand in the name of a device, before that of its node, so they keep no sign that could end that
part. The states that our readers know stay as they are. Any other text with a space is in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from seatrial.checks.diagnostics.rules import FAIL_ACTIONS, PROBLEM_ACTIONS
from seatrial.devices.nvml_fields import RECOVERY_ACTIONS
from seatrial.devices.readers import TWIN, short_bus
from seatrial.devices.state import BROKEN, DeviceState, DeviceWindow, KernelEvent, NodeState, NodeWindow
from seatrial.protocol.fields import CHECK_NAME, STAGE_NAME
from seatrial.util.text import as_name, in_label

NEWER = "a state that is newer than this seatrial"
_FAILED = "failed: "
_LACKING = (
    *("not supported", "not known to this driver", "this driver is too old", "this driver has another version"),
    *("no longer supported", "not found", "no data", "a virtual GPU without ECC", "nvidia-smi has none"),
    *("amd-smi counts it in ticks", TWIN),
)
"""Beginnings of the reasons for a value that a device or driver lacks; any other is of one that it ought to have."""
_SOURCE = r"[\w-]{1,40}(?:,? (?:driver )?\d[\w.+-]{0,40})?(?: in sysfs)?"
_PART = re.compile(
    "(?:NVIDIA|AMD) devices|NVLinks|(?:a part of the )?kernel log|samples of each second"
    rf"|(?:devices by|samples of) {_SOURCE}"
)
"""The names of what a node could not read, ``NodeState.not_checked``."""
_PHRASES = {
    *_LACKING,
    *PROBLEM_ACTIONS,
    *FAIL_ACTIONS,
    *RECOVERY_ACTIONS.values(),
    *("exclusive process", "exclusive thread"),
    *("not supported", "not started", "in progress"),
}
"""The known words for ``problem``, ``recovery_action``, ``compute_mode``, ``fabric_state`` and ``unavailable``."""


def is_lacking(why: str) -> bool:
    """Return whether a device or driver lacks a value, by its reason in ``DeviceState.unavailable``."""
    return why.removeprefix('"').startswith(_LACKING)


def state_in_known_words(state: NodeState) -> NodeState:
    """Return a snapshot with the texts that findings may have."""
    return replace(
        state,
        devices=tuple(map(_device, state.devices)),
        topology={pair: _word(how) for pair, how in state.topology.items()},
        kernel_events=tuple(map(_event, state.kernel_events)),
        visible=None if state.visible is None else tuple(map(in_label, state.visible)),
        not_checked={
            what if _PART.fullmatch(what) else as_name(what): _word(why) for what, why in state.not_checked.items()
        },
    )


def window_in_known_words(window: NodeWindow) -> NodeWindow:
    """Return a window with the texts that findings may have. Raises ValueError for a check that has no name of one."""
    if not (CHECK_NAME.fullmatch(window.check) or not window.check) or not STAGE_NAME.fullmatch(window.stage):
        raise ValueError("check or stage: not as it must be")
    return replace(
        window,
        devices=tuple(map(_changes, window.devices)),
        kernel_events=tuple(map(_event, window.kernel_events)),
    )


def _device(device: DeviceState) -> DeviceState:
    fabric = device.fabric_state
    if fabric and fabric.startswith(_FAILED):
        fabric = _FAILED + as_name(fabric.removeprefix(_FAILED))
    else:
        fabric = fabric and _word(fabric)
    return replace(
        device,
        uuid=in_label(device.uuid),
        bus=short_bus(device.bus),
        model=in_label(device.model),
        driver=_word(device.driver),
        vbios=_word(device.vbios),
        problem=_word(device.problem),
        broken=_broken(device.broken),
        recovery_action=device.recovery_action and _word(device.recovery_action),
        fabric_state=fabric,
        compute_mode=device.compute_mode and _word(device.compute_mode),
        unavailable={as_name(name): _word(why) for name, why in device.unavailable.items()},
    )


def _changes(changes: DeviceWindow) -> DeviceWindow:
    uuid = in_label(changes.uuid)
    if uuid == changes.uuid and not (changes.problem or changes.broken or changes.recovery_action):
        return changes  # a copy takes longer than all else here
    return replace(
        changes,
        uuid=uuid,
        problem=_word(changes.problem),
        broken=_broken(changes.broken),
        recovery_action=changes.recovery_action and _word(changes.recovery_action),
    )


def _event(event: KernelEvent) -> KernelEvent:
    return replace(event, bus=short_bus(event.bus))


def _broken(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of ``BROKEN``, and one for all others: each becomes a finding."""
    return tuple(dict.fromkeys(name if name in BROKEN else NEWER for name in names))


def _word(text: str) -> str:
    return text if not text or text in _PHRASES else as_name(text)
