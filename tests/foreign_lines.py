"""Lines that our own encoder would not write."""

from __future__ import annotations

import json
import zlib
from typing import Any

from seatrial.protocol.wire import PREFIX, encode


def line_of(body: dict[str, Any] | str) -> bytes:
    """A line with a right checksum, whatever it holds: lone surrogates, NaN, megabytes."""
    text = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"))
    raw = text.encode(errors="surrogatepass")
    return PREFIX + f"{zlib.crc32(raw):08x} ".encode() + raw + b"\n"


def parts_of(text: str, chars: int = 1_900) -> bytes:
    """The lines of a split message, whatever its JSON is."""
    key = f"{zlib.crc32(text.encode()):08x}{len(text)}"
    pieces = [text[start : start + chars] for start in range(0, len(text), chars)]
    return b"".join(
        line
        for number, piece in enumerate(pieces)
        for line in encode({"part": [number, len(pieces), key], "text": piece})
    )


def nested(levels: int) -> list[Any]:
    """A list in a list, so many times in all."""
    inner: list[Any] = []
    for _ in range(levels - 1):
        inner = [inner]
    return inner
