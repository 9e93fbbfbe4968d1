"""``seatrial run``: the acceptance trial."""

from __future__ import annotations

from seatrial.cli._options import command
from seatrial.launch.options import SUBCOMMANDS

__all__ = ["run"]

run = command("run", SUBCOMMANDS["run"])
