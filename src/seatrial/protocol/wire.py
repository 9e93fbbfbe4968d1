"""The line format of all messages between our programs and of all events in files.

A line is ``@seatrial1 CRC32 {json}`` and at most 4,000 bytes long with its newline: lines up to 4,096 bytes (PIPE_BUF)
stay whole when several processes write to one pipe, so the same lines survive in shared launcher output. The checksum
is over the JSON bytes; a line that was cut, mixed with another or changed is rejected. A message that does not fit is
split into numbered parts.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

PREFIX = b"@seatrial1 "
MAX_LINE_BYTES = 4_000
_MOST_LINE_BYTES = MAX_LINE_BYTES + 1
"""Bytes of a line as a log may hold it: with a carriage return before its newline."""
_MAX_PARTS = 4_096
_PART_CHARS = (MAX_LINE_BYTES - 120) // 2
"""Quoting a piece of JSON inside JSON at most doubles it (every quote and backslash is escaped)."""
_OPEN_PARTIALS = 64
_OPEN_CHARS = 16 << 20
"""Split messages that may be incomplete at once, and their characters; beyond that the oldest is dropped, to bound the
memory under hostile input."""
_MOST_DIGITS = 300
"""Characters of an integer; each one up to that length can be converted to a float."""
_VALUE_BYTES = 16
"""Bytes that each value of a message counts in addition. ``[],`` takes 64 bytes as an object and so counts as 35; the
events of a trial count as twice their text."""
_DEEPEST = 64
"""Nesting of a message; ours have six. A message must not reach the recursion limit when it is encoded again."""


def encode(message: Mapping[str, object]) -> list[bytes]:
    """Return the lines of one message, each with its newline, each to be written by one ``write``.

    Raises ValueError for a value that JSON does not have, such as NaN, and for a message that is too large.
    """
    body = json.dumps(message, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    line = _line(body.encode())
    if len(line) <= MAX_LINE_BYTES:
        return [line]
    key = f"{zlib.crc32(body.encode()):08x}{len(body)}"
    pieces = [body[start : start + _PART_CHARS] for start in range(0, len(body), _PART_CHARS)]
    if len(pieces) > _MAX_PARTS:
        raise ValueError(f"a message of {len(body)} bytes is too large to be sent")
    return [
        _line(json.dumps({"part": [number, len(pieces), key], "text": piece}, separators=(",", ":")).encode())
        for number, piece in enumerate(pieces)
    ]


def _line(body: bytes) -> bytes:
    return PREFIX + f"{zlib.crc32(body):08x} ".encode() + body + b"\n"


class Decoder:
    """Turns lines into messages. Other lines are ignored; damaged ones are counted."""

    def __init__(self, may_decode: Callable[[int], bool] = lambda kept_bytes: True) -> None:
        """Begin without a message.

        ``may_decode``: asked with the ``kept_bytes`` of each split message before it is decoded, which takes about as
        long as it costs to keep it; one that may not be decoded is damage.
        """
        self._may_decode = may_decode
        self.damaged = 0
        """Lines with our prefix that were cut or changed."""
        self.kept_bytes = 0
        """The cost of the last message, sound or damaged: the bytes of its JSON, and some for each value, since small
        values take far more memory as objects than as text."""
        self.num_parts = 1
        """Lines of the last message."""
        self._partial: OrderedDict[str, dict[int, str]] = OrderedDict()
        self._partial_chars = 0
        """Characters in ``_partial``."""

    def line(self, line: bytes) -> dict[str, Any] | None:
        """Return the message that this line completes, or None. The prefix may be anywhere in the line."""
        start = line.find(PREFIX)
        if start < 0:
            return None
        message, self.num_parts = None, 1
        if len(line) - start > _MOST_LINE_BYTES:  # of others: decoding it could take any time and memory
            self.kept_bytes = len(line) - start
        else:
            self.kept_bytes = _kept_bytes(line[start + len(PREFIX) :])
            message = _parse(line[start + len(PREFIX) :])
        if message is None:
            self.damaged += 1
            return None
        return self._merge(message) if "part" in message else message

    def lines(self, text: bytes) -> Iterator[dict[str, Any]]:
        """Yield the messages of a whole text, such as a log file."""
        for line in text.split(b"\n"):
            message = self.line(line)
            if message is not None:
                yield message

    def _merge(self, message: dict[str, Any]) -> dict[str, Any] | None:
        try:
            number, count, key = message["part"]
            text = message["text"]
            if not (isinstance(text, str) and isinstance(key, str) and type(number) is type(count) is int):
                raise ValueError
            # Pieces of ``encode`` are in ASCII and no longer; a lone surrogate has no bytes.
            if len(text) > _PART_CHARS or not text.isascii():
                raise ValueError
            if not 0 <= number < count <= _MAX_PARTS:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            self.damaged += 1
            return None
        pieces = self._partial.setdefault(key, {})
        self._partial_chars += len(text) - len(pieces.get(number, ""))
        pieces[number] = text
        if len(pieces) < count:
            while len(self._partial) > _OPEN_PARTIALS or self._partial_chars > _OPEN_CHARS:
                self._forget(next(iter(self._partial)))
            return None
        self._forget(key)
        body = "".join(pieces[number] for number in sorted(pieces))
        if not key.startswith(f"{zlib.crc32(body.encode()):08x}"):
            self.damaged += 1
            return None
        self.kept_bytes, self.num_parts = _kept_bytes(body.encode()), count
        merged = _loads(body) if self._may_decode(self.kept_bytes) else None
        self.damaged += merged is None
        return merged

    def _forget(self, key: str) -> None:
        self._partial_chars -= sum(map(len, self._partial.pop(key).values()))


def _kept_bytes(body: bytes) -> int:
    return len(body) + _VALUE_BYTES * (body.count(b",") + body.count(b"[") + body.count(b"{"))


def _parse(rest: bytes) -> dict[str, Any] | None:
    checksum, _, body = rest.rstrip(b"\r\n").partition(b" ")
    try:
        if len(checksum) == 8 and int(checksum, 16) == zlib.crc32(body):
            return _loads(body.decode())
    except (ValueError, UnicodeDecodeError):
        pass
    return None


def _refuse(constant: str) -> None:
    """Reject NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(constant)


def _finite(text: str) -> float:
    """Reject a number such as 1e999, which Python reads as infinity and would not encode again."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def _bounded(text: str) -> int:
    """Reject an integer that no float can hold: arithmetic with it raises OverflowError."""
    if len(text) > _MOST_DIGITS:
        raise ValueError(text)
    return int(text)


def _loads(body: str) -> dict[str, Any] | None:
    try:
        message = json.loads(body, parse_constant=_refuse, parse_float=_finite, parse_int=_bounded)
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
