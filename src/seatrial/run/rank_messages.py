"""The messages of ranks that somebody reads besides the conductor: whether what is read of them is there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.protocol import fields
from seatrial.protocol.commands import MOST_OUTPUT_CHARS, Output, RankLog, TrainingProgress

READ = {"log": RankLog, "output": Output, "progress": TrainingProgress}
"""Messages that somebody reads besides the conductor. What nobody reads must not fill the log of a pod."""


def require_sound(message: Mapping[str, Any], world_size: int, generations: int) -> None:
    """Raise DamageError for one of these messages that lacks what is read of it, has more, or is of no rank or
    generation of the run; ``RankLogs`` reads pieces of output.

    Only the conductor knows who sent it. A controller outside of its pod takes it for a message of that pod, and keeps
    something of each rank and generation.

    Args:
        message: what a rank sent.
        world_size: how many ranks the run has.
        generations: how many it can have.
    """
    if unknown := message.keys() - READ[message["kind"]].__annotations__.keys():
        raise fields.DamageError(min(unknown))
    for key, number in (("rank", world_size), ("gen", generations)):
        if fields.whole(message, key) >= number:
            raise fields.DamageError(key)
    if message["kind"] == "output":
        fields.whole(message, "left_out")
        if not isinstance(message.get("lines"), list):
            raise fields.DamageError("lines")
        fields.texts(message, "lines")
        if sum(len(line) + 1 for line in message["lines"]) > MOST_OUTPUT_CHARS:
            raise fields.DamageError("lines")
    elif message["kind"] == "progress":
        for key in ("step", "num_steps", "epoch", "num_epochs"):
            fields.whole(message, key)
        for key in ("loss", "accuracy", "samples_per_s", "left_s"):
            value = message[key]
            if isinstance(value, bool) or not (value is None or isinstance(value, (int, float))):
                raise fields.DamageError(key)
