"""The calling end of a connection of the network check, and peers that answer wrongly or not at all, on loopback."""

from __future__ import annotations

import asyncio
import errno

import pytest

from seatrial.checks.network import endpoint
from seatrial.checks.network.params import PAYLOAD_BYTES

OURS, OTHER = bytes(range(16)), bytes(16)


@pytest.mark.parametrize("payload_bytes", [PAYLOAD_BYTES, 0])
@pytest.mark.parametrize(("answer", "failure"), [(OURS, "silent"), (b"", "silent"), (OTHER, "another answers")])
def test_a_connection_that_is_accepted_and_leads_elsewhere(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, failure: str, payload_bytes: int
) -> None:
    """A load balancer accepts, and reads what it gets, while its other side is dead."""
    gone = asyncio.Event()
    monkeypatch.setattr(endpoint, "_PATIENCE_S", 0.3)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    async def call() -> endpoint.Reached:
        server = await asyncio.start_server(accept, "127.0.0.1")
        async with server:
            port = server.sockets[0].getsockname()[1]
            reached = await endpoint.reach("127.0.0.1", port, OURS, 0.3, payload_bytes=payload_bytes)
            await gone.wait()
            return reached

    assert asyncio.run(call()).failure == failure


@pytest.mark.parametrize(
    ("number", "failure"),
    [
        (errno.ECONNREFUSED, "refused"),
        (errno.ECONNRESET, "refused"),
        (errno.EHOSTUNREACH, "no route"),  # an unreachable route, or no neighbor
        (errno.EACCES, "no route"),  # a route that prohibits
        (errno.EINVAL, "no route"),  # a blackhole route
        (errno.EADDRNOTAVAIL, "not tried"),  # no port left
        (errno.ETIMEDOUT, "no answer"),
    ],
)
def test_an_error_of_the_kernel_has_its_word(monkeypatch: pytest.MonkeyPatch, number: int, failure: str) -> None:
    """A double of the kernel's answer: routes cannot be changed here."""

    async def refuse(loop: object, connection: object, place: object) -> None:
        raise OSError(number, "")

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", refuse)
    assert asyncio.run(endpoint.reach("127.0.0.1", 1, OURS, 0.1)).failure == failure
