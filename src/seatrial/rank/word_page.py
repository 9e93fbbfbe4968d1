"""The page of words of a rank: what it says to the rank that it is about to meet, read-only.

A store that one rank keeps is that rank's word about all others. Here each rank answers for itself, at an address that
the conductor passes on, and nobody else can write there. A page answers each connection at once with all its words and
closes it, and reads nothing, so no reader holds up another one.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Mapping

from seatrial.probe.tcp import drops
from seatrial.rank.groups import UNREACHABLE, how_unreachable
from seatrial.rank.meeting import UnmetError

MOST_BYTES = 8_192
"""Bytes of a page. The kernel takes as many for a new connection at once, so no answer waits for its reader."""
_MOST_WAITING = 4_096
"""Connections that the kernel keeps until they are answered; its own limit may be lower."""
_POLL_S = 0.03
"""Seconds between two readings of a page."""
_READING_S = 2.0
"""Seconds for one reading: TCP sends the first packet of a connection twice in it. After that a new connection is
sooner there than its next attempt."""
_WAKE_S = 0.1
"""The longest time between two looks at the clock while a page is open."""
_STILL_S = 0.2
"""The time between two such looks from which on this process stood still: it may only have waited for a core."""
_PAUSE_S = 0.05
"""Seconds after which a page listens again that could not: this process may have no descriptor left."""
_MOST_READINGS = 150
"""The readings in one second from which on a page is crowded. A peer reads it 30 times; to delay that, readers have to
come as fast as they are answered, thousands of times a second."""


class _Readings:
    """The number of readings in each second of one meeting."""

    def __init__(self) -> None:
        self._second, self._number = 0, 0
        self.most = 0
        """The most in one second."""

    def count(self) -> None:
        """Count one more reading."""
        second = int(time.monotonic())
        self._number = self._number + 1 if second == self._second else 1
        self._second = second
        self.most = max(self.most, self._number)


class WordPage:
    """The words of this rank. A thread answers between ``open`` and ``shut``; in between nothing costs any time."""

    def __init__(self, address: str) -> None:
        """Listen on a free port. ``address``: that of this node, which a router may translate, so all are listened on.

        Raises OSError.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._server = socket.create_server(("", 0), family=family, backlog=_MOST_WAITING)
        self.port: int = self._server.getsockname()[1]
        self._words: Mapping[str, bytes] = {}
        self._text = b"{}"
        self._readings, self._dropped = _Readings(), drops(self._server)
        self._looked_at, self._still_s = time.monotonic(), 0.0
        self._answers, self._is_closed = threading.Event(), False
        self._server.settimeout(_WAKE_S)
        self._thread = threading.Thread(target=self._answer, name="words", daemon=True)
        self._thread.start()

    def open(self) -> None:
        """Answer from now on."""
        self.watch()
        self._answers.set()

    def shut(self) -> None:
        """Answer no more; at most one connection is still answered."""
        self._answers.clear()

    def close(self) -> None:
        """Listen no more."""
        self._is_closed = True
        self._answers.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()

    def begin(self) -> None:
        """Take all words back: a meeting begins or was in vain."""
        self._words, self._text = {}, b"{}"
        self._readings, self._dropped = _Readings(), drops(self._server)

    def say(self, key: str, value: bytes) -> None:
        """Add a word. Raises ValueError if the page would have more than ``MOST_BYTES``."""
        words = {**self._words, key: value}
        text = json.dumps({name: base64.b64encode(word).decode() for name, word in words.items()}).encode()
        if len(text) > MOST_BYTES:
            raise ValueError(f"a page of {len(text)} bytes is too large")
        self._words, self._text = words, text

    def watch(self) -> None:
        """Look from now on whether this process stands still."""
        self._looked_at, self._still_s = time.monotonic(), 0.0

    @property
    def stood_still_s(self) -> float:
        """The time since ``watch`` in which this process, or its machine, did nothing: each time counts."""
        since_s = time.monotonic() - self._looked_at
        return self._still_s + (since_s if since_s > _STILL_S else 0.0)

    def said(self, key: str) -> bytes | None:
        """Return a word of this page; None: it has no such word."""
        return self._words.get(key)

    @property
    def is_crowded(self) -> bool:
        """Whether others read it since ``begin``, so often that the peer may have come through late or not at all."""
        return self._readings.most > _MOST_READINGS or drops(self._server).has_grown(self._dropped)

    def _answer(self) -> None:
        while True:
            self._answers.wait()
            self._still_s, self._looked_at = self.stood_still_s, time.monotonic()
            try:
                reader, _ = self._server.accept()
            except TimeoutError:
                continue
            except OSError:
                if self._is_closed:
                    return
                time.sleep(_PAUSE_S)
                continue
            self._readings.count()
            with reader, contextlib.suppress(OSError):
                reader.setblocking(False)
                reader.send(self._text)


class PeerPage:
    """The page of another rank, as this rank reads it in one meeting."""

    def __init__(self, rank: int, address: tuple[str, int]) -> None:
        self.rank = rank
        self._address = address
        self._is_reached = False
        """A connection was made, whatever came over it."""
        self._is_held_here = False
        """This host could not even try, for want of a port or of memory: that says nothing of the other one."""
        self._problem = ""
        self.late_s = 0.0
        """The time by which the words that this rank waited for may have been there before it read them: the peer may
        have waited as long for this rank."""
        self.held_s = 0.0
        """The part of it for which this host may be the reason."""

    def word(self, key: str, until: float, *, reached_until: float | None = None, value: bytes | None = None) -> bytes:
        """Return a word as soon as the page has it. ``until``, ``reached_until``: monotonic seconds.

        ``value``: the only one that counts; None: any one does. Raises UnmetError at ``until``, and at
        ``reached_until`` if no connection to the page could be made.
        """
        absent_at = time.monotonic()
        try:
            while True:
                began_at = time.monotonic()
                found = self.read(until).get(key)
                now = time.monotonic()
                if found is not None and value in (None, found):
                    return found
                if not self._problem:
                    absent_at = began_at
                if not self._is_reached and reached_until is not None and now >= min(until, reached_until):
                    text = f"no connection to the page of rank {self.rank} ({self._problem})"
                    raise UnmetError(text, unreachable=not self._is_held_here)
                if now >= until:
                    raise UnmetError(self._problem or f"rank {self.rank} did not come in time")
                time.sleep(_POLL_S)
        finally:
            late_s = time.monotonic() - absent_at
            self.late_s += late_s
            self.held_s += late_s if self._is_held_here else 0.0

    def read(self, until: float) -> Mapping[str, bytes]:
        """Return the words that the page has now; none if it cannot be read by then."""
        try:
            text = self._text(max(_POLL_S, min(_READING_S, until - time.monotonic())))
            words = json.loads(text)
            found = {str(key): base64.b64decode(word, validate=True) for key, word in words.items()}
        except OSError as error:
            self._problem = how_unreachable(error)
            self._is_held_here |= self._problem not in UNREACHABLE
        except (AttributeError, RecursionError, TypeError, ValueError):
            self._problem = f"the page of rank {self.rank} cannot be read"
        else:
            self._problem = ""
            return found
        return {}

    def _text(self, timeout_s: float) -> bytes:
        """Return what the page answers. Raises OSError, and ValueError for more bytes than a page has."""
        until, text = time.monotonic() + timeout_s, b""
        # Not by create_connection: the innermost frame of a rank that waits here has to be in this file.
        with socket.socket(socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET) as connection:
            connection.settimeout(timeout_s)
            connection.connect(self._address)
            self._is_reached = True
            while True:
                # One that sends byte by byte never waits for as long as the limit.
                if (left_s := until - time.monotonic()) <= 0:
                    raise TimeoutError
                connection.settimeout(left_s)
                data = connection.recv(MOST_BYTES)
                if not data:
                    return text
                text += data
                if len(text) > MOST_BYTES:
                    raise ValueError("more than a page")
