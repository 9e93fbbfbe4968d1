"""The line format of all messages between our programs and of all events in files.

A line is ``@seatrial1 CRC32 {json}`` and at most 4,000 bytes long with its newline: lines up to 4,096 bytes (PIPE_BUF)
stay whole when several processes write to one pipe, so the same lines survive in shared launcher output. The checksum
is over the JSON bytes; a line that was cut, mixed with another or changed is rejected. A message that does not fit is
split into numbered parts.

A message has one form, the one that ``encode`` writes, and each other one is damage. So whoever passes a message on, or
keeps it, writes what came, and each later reader takes it at the same cost.
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

PREFIX = b"@seatrial1 "
MAX_LINE_BYTES = 4_000
_MOST_LINE_BYTES = MAX_LINE_BYTES + 1
"""Bytes of a line as a log may hold it: with a carriage return before its newline."""
_MAX_PARTS = 4_096
"""Parts of a message. One of an agent has half as many, and is half as deep: the first pod puts it into another one."""
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
"""Nesting of a message; ours have fewer than ten. None must not reach the recursion limit when it is encoded again."""

_text = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=True).encode
"""A function from a message to its JSON."""


def encode(message: Mapping[str, object]) -> list[bytes]:
    """Return the lines of one message, each with its newline, each to be written by one ``write``.

    Raises ValueError for a value that JSON does not have, such as NaN, and for a message that is too large or too deep.
    """
    if _is_too_deep(message, _DEEPEST):
        raise ValueError(f"a message is nested deeper than {_DEEPEST}")
    body = _text(message)
    line = _line(body.encode())
    if len(line) <= MAX_LINE_BYTES:
        return [line]
    key = f"{zlib.crc32(body.encode()):08x}{len(body)}"
    pieces = [body[start : start + _PART_CHARS] for start in range(0, len(body), _PART_CHARS)]
    if len(pieces) > _MAX_PARTS:
        raise ValueError(f"a message of {len(body)} bytes is too large to be sent")
    return [
        _line(_text({"part": [number, len(pieces), key], "text": piece}).encode())
        for number, piece in enumerate(pieces)
    ]


def _line(body: bytes) -> bytes:
    return PREFIX + f"{zlib.crc32(body):08x} ".encode() + body + b"\n"


class Decoder:
    """Turns lines into messages. Other lines are ignored; damaged ones are counted."""

    def __init__(self, may_decode: Callable[[int], bool] = lambda kept_bytes: True, *, of_agent: bool = False) -> None:
        """Begin without a message.

        Args:
            may_decode: asked with the ``kept_bytes`` of each split message before it is decoded, which takes about as
                long as it costs to keep it; one that may not be decoded is damage.
            of_agent: an agent sent the lines, so that another message must be able to hold each one.
        """
        self._may_decode = may_decode
        self._most_parts, self._deepest = (limit // (1 + of_agent) for limit in (_MAX_PARTS, _DEEPEST))
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
            message = self._parse(line[start + len(PREFIX) :])
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
            if not 0 <= number < count <= self._most_parts:
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
        merged = self._loads(body) if self._may_decode(self.kept_bytes) else None
        if merged is None or "part" in merged:  # in one line it would be a part
            self.damaged += 1
            return None
        return merged

    def _parse(self, rest: bytes) -> dict[str, Any] | None:
        checksum, _, body = rest.rstrip(b"\r\n").partition(b" ")
        try:
            if len(checksum) == 8 and int(checksum, 16) == zlib.crc32(body):
                return self._loads(body.decode())
        except ValueError:
            pass
        return None

    def _loads(self, body: str) -> dict[str, Any] | None:
        try:
            message = json.loads(body, parse_int=_bounded)
            # Of a key that comes twice Python keeps one; NaN and 1e999, which it reads, raise ValueError here.
            is_ours = isinstance(message, dict) and _text(message) == body
        except (ValueError, RecursionError):
            return None
        may_be_deep = body.count("[") + body.count("{") > self._deepest
        return message if is_ours and not (may_be_deep and _is_too_deep(message, self._deepest)) else None

    def _forget(self, key: str) -> None:
        self._partial_chars -= sum(map(len, self._partial.pop(key).values()))


def _kept_bytes(body: bytes) -> int:
    return len(body) + _VALUE_BYTES * (body.count(b",") + body.count(b"[") + body.count(b"{"))


def _bounded(text: str) -> int:
    """Reject an integer that no float can hold: arithmetic with it raises OverflowError."""
    if len(text) > _MOST_DIGITS:
        raise ValueError(text)
    return int(text)


def _is_too_deep(message: Mapping[str, object], deepest: int) -> bool:
    level: list[Any] = [message]
    for _ in range(deepest):
        inner = (entry for value in level for entry in (value.values() if isinstance(value, dict) else value))
        level = [entry for entry in inner if isinstance(entry, (dict, list, tuple))]
        if not level:
            return False
    return True
