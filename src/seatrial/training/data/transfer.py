"""One request for one file: over HTTP or HTTPS, resumed from a part, bounded in size and time."""

from __future__ import annotations

import collections
import contextlib
import http.client
import io
import re
import socket
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlsplit

from seatrial.files import open_to_append, open_to_overwrite, remove, status_behind_links
from seatrial.resolver import query

_CHUNK_BYTES = 2**18
_RETRIED_CODES = (408, 425, 429)
"""4xx codes that may succeed later, as do all 5xx."""
_MOST_ADDRESSES = 8
"""Addresses of a name in each family that are tried: who answers for a DNS server may send thousands."""


class BrokenTransferError(Exception):
    """A failure that may be gone at the next try: no answer, a broken connection, an overloaded server."""


class RefusedTransferError(Exception):
    """A failure that will not change: this mirror does not have the expected file."""


def transfer(
    url: str, part: Path, size_bytes: int, *, idle_s: float, ends_at: float, on_bytes: Callable[[int], None]
) -> None:
    """Download ``url`` until ``part`` has ``size_bytes`` bytes, continuing from its present content if the server can.

    Received bytes stay in ``part``. Raises BrokenTransferError or RefusedTransferError, and OSError when ``part``
    cannot be written.

    Args:
        url: Address of the file.
        part: File to fill.
        size_bytes: Size of the complete file.
        idle_s: Seconds to wait for an answer and for each next byte.
        ends_at: Moment of ``time.monotonic()`` at which the transfer is given up.
        on_bytes: Called with the number of bytes in ``part``.
    """
    start = size_of(part) or 0
    if start >= size_bytes:
        start = 0
    with _answer(url, start, idle_s, ends_at) as answer:
        if answer.status == 200:  # also from a server that does not support ranges
            start = 0
        _check_headers(answer, start, size_bytes)
        with io.BufferedWriter(open_to_append(part) if start else open_to_overwrite(part)) as file:
            on_bytes(start)
            while chunk := _next_bytes(answer, idle_s, ends_at):
                start += len(chunk)
                if start > size_bytes:
                    remove(part)
                    raise RefusedTransferError(f"sends more than the {size_bytes} bytes that the file has")
                file.write(chunk)
                on_bytes(start)
                if time.monotonic() > ends_at:
                    break
    if time.monotonic() > ends_at and start < size_bytes:
        raise BrokenTransferError("the time limit of the download is over")
    if start < size_bytes:
        raise BrokenTransferError(f"the connection ended at byte {start} of {size_bytes}")


def size_of(path: Path) -> int | None:
    """Return the size of a regular file, which a link may lead to; None: there is none that can be read."""
    with contextlib.suppress(OSError):
        status = status_behind_links(path)
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    return None


@contextlib.contextmanager
def _answer(url: str, start: int, idle_s: float, ends_at: float) -> Iterator[http.client.HTTPResponse]:
    """Yield the response to one request, with headers read. Redirects are followed unless they leave HTTPS."""
    request = urllib.request.Request(url, headers={"User-Agent": "seatrial", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    opened: list[socket.socket] = []
    # A socket timeout is per byte: with it alone, a server that sends its headers byte by byte could hold us forever.
    patience_s = min(2 * idle_s, max(0.1, ends_at - time.monotonic()))
    slow = f"gave no complete answer within {patience_s:g} s"
    until = time.monotonic() + patience_s
    given_up = threading.Event()
    timer = _start_timer(patience_s, opened, given_up)
    try:
        answer = cast(http.client.HTTPResponse, _opener(opened, given_up, until).open(request, timeout=idle_s))
    except urllib.error.HTTPError as error:
        error.close()  # of a redirect, closed already
        raise _http_error(error.code, error.reason) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        # ValueError: a header is malformed.
        if given_up.is_set() or time.monotonic() >= until:
            raise BrokenTransferError(slow) from None
        raise BrokenTransferError(_reason(error, idle_s)) from None
    finally:
        timer.cancel()
        timer.join()
    with answer:
        # http.client accepts headers that our timer cut off.
        if given_up.is_set():
            raise BrokenTransferError(slow)
        # Neither does each chunk bound what http.client reads beside the content (trailers).
        timer = _start_timer(max(0.0, ends_at - time.monotonic()), opened, given_up)
        try:
            yield answer
        finally:
            timer.cancel()
            timer.join()


def _check_headers(answer: http.client.HTTPResponse, start: int, size_bytes: int) -> None:
    """Raise RefusedTransferError where the headers offer anything but the bytes from ``start`` to the end."""
    if answer.status == 206:
        content_range = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", answer.headers.get("Content-Range", ""))
        expected = (str(start), str(size_bytes - 1))
        if (
            content_range is None
            or content_range.groups()[:2] != expected
            or content_range[3] not in (str(size_bytes), "*")
        ):
            offered = answer.headers.get("Content-Range", "nothing")
            raise RefusedTransferError(f"was asked for bytes {start} to {size_bytes - 1} and offers {_plain(offered)}")
    elif answer.status != 200:
        raise RefusedTransferError(f"answers with HTTP {answer.status}")
    length = answer.headers.get("Content-Length")
    if length is not None and answer.length != size_bytes - start:
        raise RefusedTransferError(f"offers {_plain(length)} bytes where {size_bytes - start} are expected")


def _next_bytes(answer: http.client.HTTPResponse, idle_s: float, ends_at: float) -> bytes:
    """Return the next bytes, without waiting for a full chunk; empty at the end, and when the time is over."""
    try:
        return answer.read1(_CHUNK_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if time.monotonic() > ends_at:
            return b""
        raise BrokenTransferError(_reason(error, idle_s)) from None


def _http_error(code: int, reason: object) -> Exception:
    failure = f"answers with HTTP {code} {_plain(reason)}".rstrip()
    return BrokenTransferError(failure) if code >= 500 or code in _RETRIED_CODES else RefusedTransferError(failure)


def _reason(error: Exception, idle_s: float) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"sent nothing for {idle_s:g} s"
    if isinstance(reason, socket.gaierror):
        return "has a name that this machine cannot resolve"
    return f"cannot be read ({_plain(reason) or type(reason).__name__})"


def _plain(text: object) -> str:
    """Return text from a server, made safe for a terminal."""
    return ascii(str(text))[1:-1][:200]


def _start_timer(after_s: float, opened: list[socket.socket], given_up: threading.Event) -> threading.Timer:
    """Return a timer that ends all connections, so that no read waits on."""
    timer = threading.Timer(after_s, _break, args=(opened, given_up))
    timer.daemon = True
    timer.start()
    return timer


def _break(opened: list[socket.socket], given_up: threading.Event) -> None:
    # First of all: a connection that is opened from now on is not in the list, and ends because of this.
    given_up.set()
    for opened_socket in opened:
        _end(opened_socket)


def _end(opened_socket: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not the method of TLS, which would remove what another thread reads by.
        socket.socket.shutdown(opened_socket, socket.SHUT_RDWR)


def _opener(opened: list[socket.socket], given_up: threading.Event, until: float) -> urllib.request.OpenerDirector:
    """Return an opener for HTTP and HTTPS, with proxies from the environment; urllib's default would also open files
    and FTP."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        _Redirects(),
        _Http(opened, given_up, until),
        _Https(opened, given_up, until),
    ):
        opener.add_handler(handler)
    return opener


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        here, there = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        # urllib would read all of what comes with the redirect, which may have no end.
        fp.close()
        if there not in ("http", "https") or (here, there) == ("https", "http"):
            raise RefusedTransferError(f"redirects from {here} to {there}, which is not followed")
        return super().redirect_request(req, fp, code, msg, cast(Any, headers), newurl)


def _recording(
    http_class: type[http.client.HTTPConnection], opened: list[socket.socket], given_up: threading.Event, until: float
) -> Any:
    """Return a class of connections that are made by ``until``, a moment of ``time.monotonic()``.

    It also appends their sockets to ``opened``, because urllib soon takes them away, and ends those that come after
    ``given_up``.
    """

    class Recording(http_class):  # type: ignore[misc, valid-type]
        def __init__(self, *address: Any, **options: Any) -> None:
            super().__init__(*address, **options)
            # That of the library tries all addresses of a name, each with the whole timeout.
            self._create_connection = lambda place, timeout, source: _connect(place, timeout, until)

        def connect(self) -> None:
            super().connect()
            self.sock.settimeout(self.timeout)

        def _tunnel(self) -> None:
            super()._tunnel()
            # The time that the proxy took is not left for the handshake of TLS, in which the timer ends nothing: the
            # socket that it knows is detached by then, and the one of TLS comes after the handshake.
            self.sock.settimeout(_wait_s(self.timeout, until))

        def __setattr__(self, name: str, value: object) -> None:
            if name == "sock" and isinstance(value, socket.socket):
                opened.append(value)
                if given_up.is_set():
                    _end(value)
            super().__setattr__(name, value)

    return Recording


def _connect(place: tuple[str, int], timeout_s: float, until: float) -> socket.socket:
    """Return a connection to the first address that takes one by ``until``. Raises OSError.

    ``place``: name and port. ``timeout_s``: for the name and for each address. The timeout of the connection ends by
    ``until`` too.
    """
    problem, tried = OSError("its name has no address"), collections.Counter[int]()
    for family, kind, protocol, _, address in query(*place, timeout_s=_wait_s(timeout_s, until)):
        tried[family] += 1
        if tried[family] > _MOST_ADDRESSES:
            continue
        wait_s = _wait_s(timeout_s, until)
        with contextlib.ExitStack() as unless_connected:
            try:
                connection = unless_connected.enter_context(socket.socket(family, kind, protocol))
                connection.settimeout(wait_s)
                connection.connect(address)
                connection.settimeout(_wait_s(timeout_s, until))
            except OSError as error:
                problem = error
                continue
            unless_connected.pop_all()
            return connection
    raise problem


def _wait_s(timeout_s: float, until: float) -> float:
    """Return the seconds to wait, which end by ``until``. Raises TimeoutError: it is over."""
    if (left_s := until - time.monotonic()) <= 0:
        raise TimeoutError
    return min(timeout_s, left_s)


class _Http(urllib.request.HTTPHandler):
    def __init__(self, *bounds: Any) -> None:
        super().__init__()
        self._bounds = bounds

    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> http.client.HTTPResponse:
        return super().do_open(_recording(http_class, *self._bounds), req, **options)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, *bounds: Any) -> None:
        super().__init__()
        self._bounds = bounds

    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> http.client.HTTPResponse:
        return super().do_open(_recording(http_class, *self._bounds), req, **options)
