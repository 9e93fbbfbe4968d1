"""One request for one file: over HTTP or HTTPS, resumed where a part is there, bounded in size and time."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlsplit

__all__ = ["BrokenTransferError", "RefusedTransferError", "transfer"]

_CHUNK_BYTES = 2**18
_RETRIED_CODES = (408, 425, 429)
"""Of the 4xx, those that ask for patience; with all 5xx."""


class BrokenTransferError(Exception):
    """What may be over at the next try: no answer, a connection that broke, a server that is overloaded."""


class RefusedTransferError(Exception):
    """What trying again will not change: this mirror has not the file that is expected."""


def transfer(
    url: str, part: Path, size_bytes: int, *, idle_s: float, ends_at: float, on_bytes: Callable[[int], None]
) -> None:
    """Bring ``part`` to ``size_bytes`` bytes: what it holds stays if the server can go on from there.

    ``idle_s`` bounds the wait for an answer and for each next byte; ``ends_at`` (``time.monotonic()``) bounds all.
    ``on_bytes`` is told how many bytes are there. What was received stays in ``part``. Raises BrokenTransferError or
    RefusedTransferError, and OSError for what ``part`` cannot take.
    """
    start = part.stat().st_size if part.exists() else 0
    if start >= size_bytes:
        start = 0
    with _answer(url, start, idle_s, ends_at) as answer:
        if answer.status == 200:  # also of a server that knows no ranges
            start = 0
        _see_that_it_fits(answer, start, size_bytes)
        with part.open("ab" if start else "wb") as file:
            on_bytes(start)
            while chunk := _next_bytes(answer, idle_s):
                start += len(chunk)
                if start > size_bytes:
                    part.unlink()
                    raise RefusedTransferError(f"sends more than the {size_bytes} bytes that the file has")
                file.write(chunk)
                on_bytes(start)
                if time.monotonic() > ends_at:
                    raise BrokenTransferError("the time that a fetch may take is over")
    if start < size_bytes:
        raise BrokenTransferError(f"the connection ended at byte {start} of {size_bytes}")


@contextlib.contextmanager
def _answer(url: str, start: int, idle_s: float, ends_at: float) -> Iterator[http.client.HTTPResponse]:
    """The answer to one request, with headers read. Redirects are followed as far as they are no step down."""
    request = urllib.request.Request(url, headers={"User-Agent": "seatrial", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    opened: list[http.client.HTTPConnection] = []
    # A socket's timeout is for each byte: a server that sends its headers one by one would be waited for for ever.
    patience_s = min(2 * idle_s, max(0.1, ends_at - time.monotonic()))
    slow = f"gave no complete answer within {patience_s:g} s"
    given_up = threading.Event()
    timer = threading.Timer(patience_s, _break, args=(opened, given_up))
    timer.daemon = True
    timer.start()
    try:
        answer = cast(http.client.HTTPResponse, _opener(opened).open(request, timeout=idle_s))
    except urllib.error.HTTPError as error:
        with error:
            raise _code(error.code, error.reason) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        # ValueError: what a header says cannot be understood.
        if given_up.is_set():
            raise BrokenTransferError(slow) from None
        raise BrokenTransferError(_why(error, idle_s)) from None
    finally:
        timer.cancel()
        timer.join()
    with answer:
        # Headers that were cut off by us pass for complete ones.
        if given_up.is_set():
            raise BrokenTransferError(slow)
        yield answer


def _see_that_it_fits(answer: http.client.HTTPResponse, start: int, size_bytes: int) -> None:
    """Raises RefusedTransferError where headers promise anything but the bytes from ``start`` to the end."""
    if answer.status == 206:
        given = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", answer.headers.get("Content-Range", ""))
        expected = (str(start), str(size_bytes - 1))
        if given is None or given.groups()[:2] != expected or given[3] not in (str(size_bytes), "*"):
            told = answer.headers.get("Content-Range", "nothing")
            raise RefusedTransferError(f"was asked for bytes {start} to {size_bytes - 1} and offers {_plain(told)}")
    elif answer.status != 200:
        raise RefusedTransferError(f"answers with HTTP {answer.status}")
    length = answer.headers.get("Content-Length")
    if length is not None and answer.length != size_bytes - start:
        raise RefusedTransferError(f"offers {_plain(length)} bytes where {size_bytes - start} are expected")


def _next_bytes(answer: http.client.HTTPResponse, idle_s: float) -> bytes:
    """What is there next, without waiting until a chunk is full; nothing at the end."""
    try:
        return answer.read1(_CHUNK_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BrokenTransferError(_why(error, idle_s)) from None


def _code(code: int, reason: object) -> Exception:
    told = f"answers with HTTP {code} {_plain(reason)}".rstrip()
    return BrokenTransferError(told) if code >= 500 or code in _RETRIED_CODES else RefusedTransferError(told)


def _why(error: Exception, idle_s: float) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"sent nothing for {idle_s:g} s"
    if isinstance(reason, socket.gaierror):
        return "has a name that this machine cannot resolve"
    return f"cannot be read ({_plain(reason) or type(reason).__name__})"


def _plain(text: object) -> str:
    """What others sent, fit for a terminal."""
    return ascii(str(text))[1:-1][:200]


def _break(opened: list[http.client.HTTPConnection], given_up: threading.Event) -> None:
    given_up.set()
    for connection in opened:
        if connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)


def _opener(opened: list[http.client.HTTPConnection]) -> urllib.request.OpenerDirector:
    """HTTP and HTTPS, with proxies from the environment, and nothing else: urllib's own would open files and FTP."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        _Redirects(),
        _Http(opened),
        _Https(opened),
    ):
        opener.add_handler(handler)
    return opener


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        here, there = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if there not in ("http", "https") or (here, there) == ("https", "http"):
            fp.close()
            raise RefusedTransferError(f"redirects from {here} to {there}, which is not followed")
        return super().redirect_request(req, fp, code, msg, cast(Any, headers), newurl)


def _noted(
    connect: Callable[..., http.client.HTTPConnection], opened: list[http.client.HTTPConnection]
) -> Callable[..., Any]:
    """Makes connections as ``connect`` does, and keeps them in ``opened``."""

    def make(*args: Any, **options: Any) -> http.client.HTTPConnection:
        connection = connect(*args, **options)
        opened.append(connection)
        return connection

    return make


class _Http(urllib.request.HTTPHandler):
    def __init__(self, opened: list[http.client.HTTPConnection]) -> None:
        super().__init__()
        self._opened = opened

    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> http.client.HTTPResponse:
        return super().do_open(_noted(http_class, self._opened), req, **options)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, opened: list[http.client.HTTPConnection]) -> None:
        super().__init__()
        self._opened = opened

    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> http.client.HTTPResponse:
        return super().do_open(_noted(http_class, self._opened), req, **options)
