"""The action that NVIDIA documents for each XID, as data.

Source: NVIDIA's XID catalog of 2025-10-29 (XID 1 to 172), by way of leptonai/gpud ``catalog_generated.go``. It names no
action for 162 to 172.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Action = Literal[
    "ignore",
    "restart program",
    "reset",
    "restart machine",
    "mechanics",
    "firmware",
    "workflow",
    "support",
    "unnamed",
    "unknown",
]

_CODES: Mapping[Action, tuple[tuple[int, int], ...]] = {
    "ignore": (
        (14, 14), (37, 38), (43, 44), (63, 63), (66, 67), (92, 93), (106, 108), (121, 121), (137, 137), (141, 141),
        (152, 154), (157, 157), (160, 161),
    ),
    "restart program": (
        (8, 8), (11, 11), (13, 13), (25, 25), (31, 32), (39, 41), (60, 60), (68, 72), (75, 77), (80, 80), (82, 86),
        (88, 89), (94, 94), (96, 105), (126, 135), (139, 139),
    ),
    "reset": ((46, 46), (62, 62), (64, 64), (95, 95), (109, 110), (119, 120), (136, 136), (140, 140), (143, 143),
              (155, 156), (158, 158)),
    "restart machine": ((79, 79),),
    "mechanics": ((54, 54),),
    "firmware": ((78, 78),),
    "workflow": ((45, 45), (48, 48), (74, 74), (144, 151), (159, 159)),
    "unnamed": ((162, 172),),
    "support": ((1, 161),),
}  # fmt: skip
_WORDS: Mapping[Action, str] = {
    "ignore": "NVIDIA asks for no action",
    "restart program": "NVIDIA: restart the program; if it comes again with another program, replace the GPU",
    "reset": "NVIDIA: reset the GPU",
    "restart machine": "NVIDIA: restart the machine",
    "mechanics": "NVIDIA: check the power cables and the seat of the GPU",
    "firmware": "NVIDIA: update the firmware",
    "workflow": "NVIDIA: follow the workflow of this XID",
    "support": "NVIDIA: contact its support",
    "unnamed": "NVIDIA's XID catalog names no action for it",
    "unknown": "this XID is newer than seatrial's table; look it up in NVIDIA's XID catalog",
}
_OWN_WORDS: Mapping[int, str] = {
    48: "NVIDIA: uncorrectable memory error; reset the GPU, and replace it if rows can no longer be remapped",
    74: "NVIDIA: NVLink error; check the link and what it leads to, then reset the GPU",
    79: "NVIDIA: the GPU has fallen off the bus; restart the machine, then check power, cooling and seat",
    **dict.fromkeys(range(144, 151), "NVIDIA: NVLink 5 error; drain and reset the GPU, then check its link partner"),
}
APPLICATION = frozenset((13, 31, 43, 45))
"""XIDs that a program may cause by itself: they accuse no device."""
NVLINK_5 = range(144, 151)
PARTNER_AT_FAULT = frozenset((21, *range(32, 38)))
"""Subcodes of XID 149 by which the device at the other end of the link is at fault."""


def action(code: int) -> Action:
    """Return what NVIDIA asks for; to contact its support, for each XID of the catalog that no other action names."""
    return next(
        (name for name, ranges in _CODES.items() if any(low <= code <= high for low, high in ranges)), "unknown"
    )


def advice(code: int) -> str:
    """Return NVIDIA's action in words."""
    return _OWN_WORDS.get(code, _WORDS[action(code)])
