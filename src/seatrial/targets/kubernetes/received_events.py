"""The events that the first pod of a run sends: whether what is read of them here is there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.protocol import fields

MALFORMED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What readers of a message raise where a field of it cannot be."""
_HOWS = ("ended", "failed", "refused", "absent", "interrupted")


def require_sound(event: Mapping[str, Any]) -> None:
    """Raise DamageError for an event that lacks what is read of it here, or after a program. The judge reads more."""
    fields.whole(event, "seq"), fields.number(event, "t", time=True)
    kind = event["kind"]
    if not (isinstance(kind, str) and isinstance(event["src"], str)):
        raise fields.DamageError("kind or src")
    # -1: before the first generation.
    if kind in ("generation", "outcome", "result", "step", "trouble") and fields.integer(event, "gen") is None:
        raise fields.DamageError("gen")
    if kind == "generation" and not isinstance(event["ranks"], list):
        raise fields.DamageError("ranks")
    if kind == "node":
        fields.whole(event, "node")
        if not fields.text(event, "hostname"):
            raise fields.DamageError("hostname")
    elif kind == "outcome":
        fields.whole(event, "restarts"), fields.integer(event, "code"), fields.text(event, "text")
        fields.texts(event, "last_lines"), fields.texts(event, "notes")
        if event["how"] not in _HOWS or not isinstance(event["text"], str) or not isinstance(event["last_lines"], list):
            raise fields.DamageError("how, text or last_lines")
    elif kind == "result":
        fields.whole(event, "rank"), fields.texts(event, "lines")
    elif kind == "step":
        fields.whole(event, "step")
    elif kind == "trouble":
        for suspect in event["seen"]:
            fields.integer(suspect, "node"), fields.integer(suspect, "rank")
