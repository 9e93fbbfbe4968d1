"""One line format for everything that is said between our programs and for everything that is kept.

A line is ``@seatrial1 CRC32 {json}`` and at most 4,000 bytes long with its newline: lines up to 4,096 bytes stay whole
when several processes write to one pipe, so the same lines survive in shared launcher output. The checksum is over
the JSON bytes; a line that was cut, mixed with another or changed is not taken for an event. A payload that does not
fit is split into numbered parts.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

__all__ = ["MAX_LINE_BYTES", "PREFIX", "Decoder", "encode"]

PREFIX = b"@seatrial1 "
MAX_LINE_BYTES = 4_000
_MAX_PARTS = 4_096
_OPEN_PARTIALS = 64
_OPEN_CHARS = 16 << 20
"""Split messages that may be incomplete at once, and their length; the oldest is given up (bounded memory against
hostile input)."""
_DEEPEST = 64
"""Nesting of a message; ours have six. Who passes one on must not meet the recursion limit in the writing of it."""


def encode(message: dict[str, Any]) -> list[bytes]:
    """The lines of one message, each with its newline, each to be written by one ``write``.

    Raises ValueError for what JSON does not know (NaN and infinity included: they are told as text).
    """
    body = json.dumps(message, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    line = _line(body.encode())
    if len(line) <= MAX_LINE_BYTES:
        return [line]
    key = f"{zlib.crc32(body.encode()):08x}{len(body)}"
    # Quoting a piece of JSON inside JSON at most doubles it (every quote and backslash is escaped).
    step = (MAX_LINE_BYTES - 120) // 2
    pieces = [body[start : start + step] for start in range(0, len(body), step)]
    if len(pieces) > _MAX_PARTS:
        raise ValueError(f"a message of {len(body)} bytes is too large to be sent")
    return [
        _line(json.dumps({"part": [number, len(pieces), key], "text": piece}, separators=(",", ":")).encode())
        for number, piece in enumerate(pieces)
    ]


def _line(body: bytes) -> bytes:
    return PREFIX + f"{zlib.crc32(body):08x} ".encode() + body + b"\n"


class Decoder:
    """Turns lines into messages. Lines that are not ours, cut or damaged are counted and passed over."""

    def __init__(self) -> None:
        self.damaged = 0
        """Lines that began as ours and were not whole."""
        self._partial: OrderedDict[str, dict[int, str]] = OrderedDict()
        self._held = 0
        """Characters in ``_partial``."""

    def line(self, line: bytes) -> dict[str, Any] | None:
        """The message that this line completes, if any. Our prefix may stand anywhere in the line."""
        start = line.find(PREFIX)
        if start < 0:
            return None
        message = _parse(line[start + len(PREFIX) :])
        if message is None:
            self.damaged += 1
            return None
        return self._join(message) if "part" in message else message

    def lines(self, text: bytes) -> Iterator[dict[str, Any]]:
        """The messages of a whole text, such as a log file."""
        for line in text.split(b"\n"):
            message = self.line(line)
            if message is not None:
                yield message

    def _join(self, message: dict[str, Any]) -> dict[str, Any] | None:
        try:
            number, count, key = message["part"]
            text = message["text"]
            if not (isinstance(text, str) and isinstance(key, str) and type(number) is type(count) is int):
                raise ValueError
            if not 0 <= number < count <= _MAX_PARTS:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            self.damaged += 1
            return None
        pieces = self._partial.setdefault(key, {})
        self._held += len(text) - len(pieces.get(number, ""))
        pieces[number] = text
        if len(pieces) < count:
            while len(self._partial) > _OPEN_PARTIALS or self._held > _OPEN_CHARS:
                self._forget(next(iter(self._partial)))
            return None
        self._forget(key)
        body = "".join(pieces[number] for number in sorted(pieces))
        if not key.startswith(f"{zlib.crc32(body.encode()):08x}"):
            self.damaged += 1
            return None
        return _loads(body)

    def _forget(self, key: str) -> None:
        self._held -= sum(map(len, self._partial.pop(key).values()))


def _parse(rest: bytes) -> dict[str, Any] | None:
    checksum, _, body = rest.rstrip(b"\r\n").partition(b" ")
    try:
        if len(checksum) == 8 and int(checksum, 16) == zlib.crc32(body):
            return _loads(body.decode())
    except (ValueError, UnicodeDecodeError):
        pass
    return None


def _refuse(constant: str) -> None:
    """JSON has no NaN and no infinity; what Python would read as such is not ours."""
    raise ValueError(constant)


def _finite(text: str) -> float:
    """Python reads 1e999 as infinity, which it would not write again."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def _loads(body: str) -> dict[str, Any] | None:
    try:
        message = json.loads(body, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and not _is_too_deep(message) else None


def _is_too_deep(message: dict[str, Any]) -> bool:
    level: list[Any] = [message]
    for _ in range(_DEEPEST):
        inner = (entry for value in level for entry in (value.values() if isinstance(value, dict) else value))
        level = [entry for entry in inner if isinstance(entry, (dict, list))]
        if not level:
            return False
    return True
