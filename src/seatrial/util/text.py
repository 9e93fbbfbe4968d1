"""Text for people: escapes whatever a rank or a host sent before it reaches a terminal or a page."""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

_LONGEST = 2_000
_MAX_NAMED = 8
_OF_MANY = r"(?:;5;[0-9]{1,3}|:5:[0-9]{1,3}|;2(?:;[0-9]{1,3}){3}|:2(?::[0-9]{0,3}){3,4})"
_STYLE = rf"(?:0*(?:[0-479]|2[1-5789]|3[0-79]|49|9[0-7]|38{_OF_MANY}))?"
"""A number of a color, of bold, faint, italic, underlined, inverse or crossed out, or of its end; none is a reset."""
_BACKGROUND = rf"0*(?:4[0-7]|10[0-7]|48{_OF_MANY})"
_ANY = rf"(?:{_BACKGROUND}|{_STYLE})"
_COLOR = re.compile(rf"(\x1b\[{_ANY}(?:;{_ANY})*m)")
_SHOWN = re.compile(rf"\x1b\[{_STYLE}(?:;{_STYLE})*m")
_NO_COLOR = "\x1b[0m"
_LONGEST_WORD = 24
"""Most characters that a cut takes back to end after a word: a longer one, such as a path, is cut in its middle."""
_NAME = re.compile(r"[\w./@%+=:~<>*-]{1,400}")
_BLANK = re.compile("[\u115f\u1160\u2800\u3164\uffa0]")
"""Letters that look like a space, and are none to Python: where a terminal breaks such words, a line of ours begins."""
_OUTSIDE_A_LABEL = re.compile(r"(\((?:R|TM|C)\))|[^\w .+/@:-]", re.IGNORECASE)
"""Signs that no model or address of a device has, but for the marks of vendors."""
_LONGEST_IN_LABEL = 120
_OUTSIDE_A_HOST_NAME = re.compile(r"[^A-Za-z0-9._:-]")
_NUMBER_AT_END = re.compile(r"(^|\s)[\d.,]+\s*$")


def printable(text: str, longest: int = _LONGEST) -> str:
    """Return the text as one line, with every control, format, unassigned and blank character escaped (``\\x1b``).

    A host name can therefore not color, erase or forge a line of ours, and the result is valid in XML 1.0. Texts of
    more than ``longest`` characters are cut.
    """
    cut = text if len(text) <= longest else text[:longest] + " ... (cut)"
    spaced = cut.replace("\t", "    ")
    escaped = spaced if spaced.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in spaced)
    return _BLANK.sub(lambda found: _escape(found[0]), escaped)


def printable_in_color(text: str) -> str:
    """Return ``printable(text)``, in which the colors of a terminal stay: ``ESC [ numbers m``, ended with the line.

    Numbers that hide the text, or let it blink, are escaped. A color of the background resets all of them instead: it
    could be that of the text.
    """
    parts = _COLOR.split(text[:_LONGEST])
    if len(parts) == 1:
        return printable(text)
    shown = (part if _SHOWN.fullmatch(part) else _NO_COLOR for part in parts[1::2])
    colored = "".join(next(shown) if number % 2 else printable(part) for number, part in enumerate(parts))
    return f"{colored}{_NO_COLOR}{' ... (cut)' if len(text) > _LONGEST else ''}"


def quoted(text: str, longest: int = 600) -> str:
    """Return the words of a rank or host in quotes, escaped and cut: they stay its words in a sentence of ours."""
    inner = printable(text, longest).replace('"', "'")
    return f'"{inner}"'


def as_name(text: str) -> str:
    """Return a name, path or number of a rank or host as it is, and other words in quotes: they may be a sentence."""
    return text if _NAME.fullmatch(text) and not _BLANK.search(text) else quoted(text)


def in_label(text: str) -> str:
    """Return the model or address of a device as a part of the name of its rank, ``rank 3 (MODEL, ADDRESS, ...)``.

    The rank says it: without these signs its words cannot end that part and name another rank or node.
    """
    return _OUTSIDE_A_LABEL.sub(lambda found: found[1] or "?", text[:_LONGEST_IN_LABEL])


def cleaned(name: str, longest: int = 80) -> str:
    """Return a name that a host gives itself, or foreign events give it, without what is no part of a name."""
    return _OUTSIDE_A_HOST_NAME.sub("?", name)[:longest]


def fitted(text: str, width: int) -> str:
    """Return the text, cut to this many characters if it is longer: after a word, and not between number and unit."""
    if len(text) <= width:
        return text
    cut = text[: width - 3]
    words = cut if text[width - 3].isspace() else cut.rpartition(" ")[0]
    words = _NUMBER_AT_END.sub("", words)
    return f"{(words if len(cut) - len(words) <= _LONGEST_WORD else cut).rstrip()}..."


def named_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 3`` or ``ranks 0, 1, 2``; of many the first eight and how many more there are."""
    numbers = ", ".join(str(rank) for rank in ranks[:_MAX_NAMED])
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {numbers}{more}"


def all_named(word: str, names: Sequence[str]) -> str:
    """Return ``node a``, ``nodes a and b``, or ``nodes a, b and c``; of many the first eight and how many more."""
    shown = [*names[:_MAX_NAMED], *([f"{len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else [])]
    return f"{word}{'' if len(names) == 1 else 's'} {and_list(shown)}"


def and_list(names: Sequence[str]) -> str:
    """Return ``a``, ``a and b``, or ``a, b and c``; of names with commas in them ``a, and b``."""
    before = ", ".join(names[:-1])
    return f"{before}{',' if any(', ' in name for name in names) else ''} and {names[-1]}" if before else names[-1]


def all_of(count: int, word: str) -> str:
    """Return ``both ranks`` or ``all 3 ranks``."""
    return f"both {word}s" if count == 2 else f"all {count} {word}s"


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def format_number(value: float) -> str:
    """Return a number with four significant digits, without an exponent from 0.0001 to 10**12."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value)}"
    return (
        f"{value:.4g}" if 1e-4 <= abs(value) < 1e4 else f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.3e}"
    )


def format_size(size_bytes: int) -> str:
    """Return a size in powers of two: ``8 B``, ``64 MiB``."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


def format_seconds(seconds: float) -> str:
    """Return a duration for people: ``3.2 s``, ``25 s``."""
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"


def format_time(seconds: float) -> str:
    """Return a time, in seconds since the epoch, as ``YYYY-MM-DD HH:MM:SS`` in UTC."""
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def plan_value(value: Any) -> str:
    """Return a value as a plan file writes it, in one printable line; ``none`` for a parameter that is off."""
    if value is None:
        return "none"
    if isinstance(value, bool | str):
        text = json.dumps(value, ensure_ascii=False)
        # TOML has no \\x, and takes four digits or eight.
        return "".join(char if char.isprintable() else _escape(char).replace("\\x", "\\u00") for char in text)
    if isinstance(value, tuple | list):
        return f"[{', '.join(plan_value(item) for item in value)}]"
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)


def signal_words(number: int) -> str:
    """Return the signal with its name: ``signal 15 (SIGTERM)``."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def out_of_memory_words(limit_bytes: int | None) -> str:
    """Return that the kernel's out-of-memory killer ended something, and what was allowed. None: no limit."""
    allowed = "no limit is set there, so the host ran out of memory"
    if limit_bytes is not None:
        allowed = f"its control group allows {format_size(limit_bytes)}"
    return f"the kernel's out-of-memory killer ended it or a process that it started ({allowed})"
