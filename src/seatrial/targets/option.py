"""The options of the commands as data, and two options that several targets share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.targets.hidden_values import HIDDEN, is_secret, shown_environment, shown_launcher_arguments

_UNITS_S = {"s": 1, "m": 60, "h": 3600}


def duration_s(text: str) -> float:
    """Return the seconds of ``90``, ``90s``, ``5m`` or ``2h``. Raises ValueError for all other words."""
    unit_s = _UNITS_S.get(text[-1:])
    seconds = float(text) if unit_s is None else float(text[:-1]) * unit_s
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError("a duration is finite and not below 0")
    return seconds


PROCESSES_BY = ("auto", "gpu", "cpu")
"""Words for a number of processes, as torchrun has them."""


def process_count(text: str) -> int | str:
    """Return a number of processes, or the word by which each node decides it. Raises ValueError for all others."""
    if text in PROCESSES_BY:
        return text
    if int(text) < 1:
        raise ValueError("no process would run")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a command, or one positional argument."""

    flags: tuple[str, ...]
    """The spellings, such as ``--epochs``; empty for a positional argument, which may be left out."""
    name: str
    """The key of its value."""
    help: str
    """One sentence for help, or a noun phrase with a full stop."""
    type: type | tuple[str, ...] | Callable[[str], Any] = str
    """``str``, ``int``, ``float``, ``Path``, the values to choose from, or a function that reads the text and raises
    ValueError (``duration_s``)."""
    default: Any = None
    """The value where the option is not given."""
    metavar: str | None = None
    """The name of its value in help. Default: one that the parser makes."""
    flag: bool = False
    """Whether it takes no value; it is then True when given, else False."""
    multiple: bool = False
    """It may be repeated; the value is a tuple."""
    for_launcher: bool = False
    """Its values are arguments of mpirun or sbatch, which may set variables of the ranks."""
    is_list: bool = False
    """It may be repeated; the values are one list with commas, so none of them is lost."""
    required: bool = False
    """A positional argument that must be given."""
    rest: bool = False
    """A positional argument that takes all remaining words, options included; the value is a tuple."""
    rare: bool = False
    """Most people never need it: only the help of one target shows it (``cli/help_sections.py``)."""
    only_typed: bool = False
    """It gives up a protection, so a person must type it: no variable and no file may set it."""

    @property
    def default_value(self) -> Any:
        """The value where the option is not given, as commands get it."""
        return False if self.flag else () if self.multiple or self.rest else self.default


NODES = Option(flags=("--nodes", "--nnodes"), name="nodes", help="Number of nodes.", type=int, metavar="N")
OVERSUBSCRIBE = Option(
    flags=("--oversubscribe",),
    name="oversubscribe",
    help="Start more CPU processes than the cores and the memory of a machine can serve.",
    flag=True,
)
MPIRUN = Option(
    flags=("--mpirun",),
    name="mpirun",
    help="Path of mpirun. Default: the one on PATH.",
    default="mpirun",
    metavar="PATH",
)


def is_given(option: Option, value: Any) -> bool:
    """Return whether the user has typed the option. 0 counts as typed, although it equals False."""
    return value is not None and value is not False and value != () and value != option.default


def retyped(options: Iterable[Option], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the given options as a person types them, with secrets hidden; without positional arguments."""
    words: list[str] = []
    for option in options:
        value = values[option.name]
        if not option.flags or not is_given(option, value):
            continue
        if option.flag:
            words.append(option.flags[0])
            continue
        typed = [_as_typed(word) for word in (value if option.multiple else (value,))]
        for word in shown_launcher_arguments(typed) if option.for_launcher else typed:
            name, _, text = word.partition("=")
            if option.name == "env":
                word = f"{name}={shown_environment({name: text})[name]}"
            elif is_secret("", word):
                word = HIDDEN
            words += [f"{option.flags[0]}={word}"] if word.startswith("-") else [option.flags[0], word]
    return tuple(words)


def _as_typed(value: Any) -> str:
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def to_argv(options: Iterable[Option], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words that give these values when the command runs elsewhere; positional arguments come last.

    For a target whose cluster runs the command again, such as a pod. ``values`` has every option by its name.
    """
    named: list[str] = []
    positional: list[str] = []
    for option in options:
        value = values[option.name]
        if not option.flags:
            positional += value if option.rest else [] if value is None else [str(value)]
        elif is_given(option, value):
            words = value if option.multiple else (value,)
            named += [option.flags[0]] if option.flag else [f"{option.flags[0]}={_as_typed(word)}" for word in words]
    return (*named, "--", *positional) if positional else tuple(named)
