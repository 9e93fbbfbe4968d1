"""The variable by which a user plants faults for a drill, and by which they get to the ranks of all nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_VARIABLE = "SEATRIAL_PLANT"
_SEPARATOR = ";"


def planted_faults(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the faults that an environment plants, as typed: ``kill@training:1``."""
    return tuple(filter(None, environ.get(_VARIABLE, "").split(_SEPARATOR)))


def planting(faults: Iterable[str]) -> dict[str, str]:
    """Return the variable that plants these faults; nothing where there are none."""
    text = _SEPARATOR.join(faults)
    return {_VARIABLE: text} if text else {}
