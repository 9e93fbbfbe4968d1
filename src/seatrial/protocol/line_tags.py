"""The tags by which each line of a control connection proves, after the handshake, that it was written with the token.

A line is ``TAG LINE``. The tag is a keyed BLAKE2b over all lines of this direction so far, this one included, each with
its newline. The key of each direction follows from the token and from both random texts of the handshake, so a line
that was injected, changed, repeated, left out or moved fails, on this connection and on every other one. Over ssh,
which does all of that itself, there are no tags.
"""

from __future__ import annotations

import hashlib
import hmac
import json

CHANGED = "a line of its control connection was changed, repeated or left out on the way"
"""How the conductor lost a node whose tag was wrong: by that node, or by anybody in the path to it."""
_TAG_BYTES = 16
TAG_CHARS = 2 * _TAG_BYTES + 1
"""The tag in hexadecimal digits, and the space after it."""


class LineTags:
    """The tags of one direction of one connection."""

    def __init__(self, token: str, role: str, nonce: str, challenge: str, node_rank: int) -> None:
        """``role``: who writes the lines, ``agent`` or ``conductor``; the others as in ``handshake.proof``."""
        subject = json.dumps(["lines", role, nonce, challenge, node_rank]).encode()
        key = hmac.digest(token.encode(), subject, "sha256")
        self._lines = hashlib.blake2b(key=key, digest_size=_TAG_BYTES)
        """The keyed hash of all lines so far, each with its newline."""

    def add(self, line: bytes) -> bytes:
        """Return the next line with its tag. ``line`` ends in a newline."""
        self._lines.update(line)
        return self._tag() + line

    def remove(self, line: bytes) -> bytes | None:
        """Return the next line without its tag, or None where the tag is wrong: then no later one can be right.

        ``line`` has no newline.
        """
        bare = line[TAG_CHARS:]
        self._lines.update(bare)
        self._lines.update(b"\n")
        return bare if hmac.compare_digest(line[:TAG_CHARS], self._tag()) else None

    def _tag(self) -> bytes:
        return self._lines.copy().hexdigest().encode() + b" "
