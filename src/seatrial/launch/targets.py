"""The targets by name. A new target is one new file and its line here."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.launch import local
from seatrial.launch.job import Render

__all__ = ["TARGETS"]

TARGETS: Mapping[str, Render] = {"local": local.render}
