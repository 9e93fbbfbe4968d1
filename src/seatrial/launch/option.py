"""What an option is, as data; and the one that most targets take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["NODES", "Option", "is_given", "retyped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a command, or one argument without a name."""

    flags: tuple[str, ...]
    """``--epochs``; empty: an argument that is told by its place, and may be left out."""
    name: str
    """The key of its value in what the command is called with."""
    help: str
    type: type | tuple[str, ...] = str
    """``str``, ``int``, ``float``, ``Path``, or the words to choose from."""
    default: Any = None
    metavar: str | None = None
    flag: bool = False
    """It takes no value; True when it is given, else False."""
    multiple: bool = False
    """It may be given several times; the value is a tuple."""
    rest: bool = False
    """It takes all words from its place on, whatever they look like; the value is a tuple."""


NODES = Option(flags=("--nodes",), name="nodes", help="How many nodes.", type=int, metavar="N")


def is_given(option: Option, value: Any) -> bool:
    """Whether somebody has typed it. 0 is given, too, and equals False."""
    return value is not None and value is not False and value != () and value != option.default


def retyped(options: Iterable[Option], values: Mapping[str, Any]) -> tuple[str, ...]:
    """The words that a command must be called with elsewhere to get these values; those told by their place come last.

    For a target whose cluster calls the command again, such as a pod.
    """
    named: list[str] = []
    placed: list[str] = []
    for option in options:
        value = values[option.name]
        if not option.flags:
            placed += value if option.rest else [] if value is None else [str(value)]
        elif is_given(option, value):
            each = value if option.multiple else (value,)
            named += [option.flags[0]] if option.flag else [f"{option.flags[0]}={one}" for one in each]
    return (*named, "--", *placed) if placed else tuple(named)
