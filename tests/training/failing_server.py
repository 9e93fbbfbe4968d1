"""A real HTTP server that fails as the test says, request by request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import ClassVar


@dataclass
class FailingServer:
    """Serves ``files`` by path. Each request takes the next of ``faults``; when none is left, it is served well."""

    files: dict[str, bytes]
    faults: list[str] = field(default_factory=list)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range of each."""
    ends: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> FailingServer:
        handler = type("Handler", (_Handler,), {"behaviour": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._lock = threading.Lock()
        # Threads of connections are waited for when the server is closed.
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ends.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def next_fault(self, path: str, asked: str | None) -> str:
        with self._lock:
            self.requests.append((path, asked))
            return self.faults.pop(0) if self.faults else ""


class _Handler(BaseHTTPRequestHandler):
    behaviour: FailingServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has in the base class
        pass

    def do_GET(self) -> None:
        self.close_connection = True
        asked = self.headers.get("Range")
        fault, _, detail = self.behaviour.next_fault(self.path, asked).partition(" ")
        content = self.behaviour.files.get(self.path.rpartition("/")[2])
        if fault == "status":
            self._head(int(detail), 0)
        elif fault == "redirect":
            self._head(302, 0, Location=detail)
        elif fault == "redirect-without-end":
            self._head(302, None, Location=detail)
            self._drip(1_000_000 * b"x")
        elif content is None:
            self._head(404, 0)
        else:
            try:
                self._serve(fault, detail, content, asked)
            except OSError:  # who asked has gone
                return

    def _serve(self, fault: str, detail: str, content: bytes, asked: str | None) -> None:
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        rest = {"Content_Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        half = content[: len(content) // 2]
        if fault in self._ANSWERS_WITHOUT_RANGE:
            length, body = self._ANSWERS_WITHOUT_RANGE[fault](content)
            self._head(200, length)
            self._send(body)
        elif fault == "stalled":
            self._head(200, len(content))
            self._send(half)
            self.behaviour.ends.wait()
        elif fault == "silent":
            self.behaviour.ends.wait()
        elif fault == "slow-head":
            self._drip(b"HTTP/1.1 200 OK\r\nX-Long: " + 10_000 * b"x")
        elif fault == "slow-body":
            self._head(200, len(content))
            self._drip(content)
        elif fault == "nonsense":
            self._send(b"SMTP ready\r\n\r\n")
        elif fault == "range":
            self._head(206, len(content) - start, Content_Range=detail)
        else:
            assert fault in ("", "bit")
            self._head(206 if asked else 200, len(content) - start, **(rest if asked else {}))
            self._send(content[start : start + 50_000] if fault == "bit" else content[start:])

    _ANSWERS_WITHOUT_RANGE: ClassVar[dict[str, Callable[[bytes], tuple[int | None, bytes]]]] = {
        "no-range": lambda content: (len(content), content),
        "short": lambda content: (len(content), content[: len(content) // 2]),
        "short-unsaid": lambda content: (None, content[: len(content) // 2]),
        "long": lambda content: (None, content + b"more"),
        "long-said": lambda content: (len(content) + 4, b""),
        "other": lambda content: (len(content), bytes(byte ^ 1 for byte in content)),
    }

    def _head(self, code: int, length: int | None, **headers: str) -> None:
        self.send_response(code)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Connection", "close")
        self.end_headers()

    def _send(self, content: bytes) -> None:
        self.wfile.write(content)
        self.wfile.flush()

    def _drip(self, content: bytes) -> None:
        for byte in content:
            self._send(bytes([byte]))
            if self.behaviour.ends.wait(0.02):
                return
