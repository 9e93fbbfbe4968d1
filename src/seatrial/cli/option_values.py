"""From the text of an option to its value: the same for click and for argparse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seatrial.errors import RequestError
from seatrial.targets.option import Option, duration_s, process_count

_EXPECTED: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    duration_s: "a time such as 90 (seconds), 90s, 5m or 2h",
    process_count: "a number from 1, or auto, gpu or cpu",
}
_MEANINGS = {"cuda": "cuda (NVIDIA)", "rocm": "rocm (AMD)"}


def read_value(option: Option, text: str) -> Any:
    """Return the value of an option that was typed as ``text``. Raises RequestError for a wrong one."""
    typed = f"{shown_name(option)} {text or repr(text)}"
    if isinstance(option.type, tuple):
        if text not in option.type:
            words = ", ".join(_MEANINGS.get(word, word) for word in option.type)
            raise RequestError(f"{typed}: expected one of {words}.")
        return text
    if option.type is Path and not text:
        # The folder or file "" would be the current folder: a variable of a shell that is not set.
        raise RequestError(f"{typed}: expected a path.")
    try:
        return option.type(text)
    except ValueError:
        raise RequestError(f"{typed}: expected {_EXPECTED[option.type]}.") from None


def key_of(option: Option) -> str:
    """Return the option as a variable or a file names it: ``nproc_per_node``; empty where it has no long spelling."""
    long = [flag for flag in option.flags if flag.startswith("--")]
    return long[0][2:].replace("-", "_") if long else ""


def shown_name(option: Option) -> str:
    """Return the option as it is typed: ``--epochs``, or ``PLAN`` for an argument."""
    long = [flag for flag in option.flags if flag.startswith("--")]
    return (long or option.flags or ((option.metavar or option.name).upper().strip("[]"),))[0]
