"""The kernel's counters of TCP connections, with a real connection over the loopback."""

from __future__ import annotations

import socket
import threading

from seatrial.probe import tcp

_BYTES = 1 << 20
_LARGEST = 65_536
"""No segment is larger."""


def test_an_open_connection_is_counted_and_stays_open() -> None:
    before, again_before = tcp.segments()
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        with sender, receiver:
            thread = threading.Thread(target=sender.sendall, args=(bytes(_BYTES),))
            thread.start()
            left = _BYTES
            while left:
                left -= len(receiver.recv(left))
            thread.join()
            sent, again = tcp.segments()
            assert sent - before >= _BYTES // _LARGEST
            assert 0 <= again - again_before <= sent - before
            receiver.sendall(b"x")
            assert sender.recv(1) == b"x"
