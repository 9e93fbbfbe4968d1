"""``seatrial launch``: any PyTorch script, unmodified."""

from __future__ import annotations

from seatrial.cli._options import command
from seatrial.launch.options import SUBCOMMANDS

__all__ = ["launch"]

launch = command("launch", SUBCOMMANDS["launch"])
