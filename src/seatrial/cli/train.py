"""``seatrial train``: reference distributed training."""

from __future__ import annotations

from seatrial.cli._options import command
from seatrial.launch.options import SUBCOMMANDS

__all__ = ["train"]

train = command("train", SUBCOMMANDS["train"])
