"""Reading of the JSON of the API server, no field of which is taken for granted. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from seatrial.util.text import as_name, quoted

_MAX_MESSAGE = 300
"""Characters of a message of the cluster that are quoted."""


def get(thing: Any, *path: str) -> Any:
    """Return what is at this path; None if anything on it is missing."""
    for key in path:
        thing = thing.get(key) if isinstance(thing, dict) else None
    return thing


def text(thing: Any, *path: str) -> str:
    """Return the string at this path; empty if there is none."""
    value = get(thing, *path)
    return value if isinstance(value, str) else ""


def items_of(thing: Any, *path: str) -> Iterable[Any]:
    """Return the list at this path; empty if there is none."""
    value = get(thing, *path)
    return value if isinstance(value, list) else []


def one_line(text: str) -> str:
    return " ".join(text.split())[:_MAX_MESSAGE].rstrip(" .")


def said(message: str, otherwise: str = "") -> str:
    """Return the message of a kubelet in quotes: its node may be the one that lies, and these are no words of ours."""
    return quoted(one_line(message)) if message else otherwise


def name_said(name: str) -> str:
    """Return a name or a reason that a kubelet gave; in quotes if it is no name."""
    return as_name(one_line(name)) if name else ""
