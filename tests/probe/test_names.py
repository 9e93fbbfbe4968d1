"""Addresses of a host name, in bounded time."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from seatrial.probe.names import is_loopback, resolve


def _answers(*addresses: str) -> Any:
    rows = [(socket.AF_INET6 if ":" in each else socket.AF_INET, 1, 6, "", _where(each)) for each in addresses]
    return lambda name, port, **options: rows


def _where(address: str) -> tuple[Any, ...]:
    return (address, 0, 0, 0) if ":" in address else (address, 0)


def test_the_first_own_address_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _answers("192.0.2.77", "127.0.0.1", "127.0.0.2", "127.0.0.1"))
    found = resolve("n0", 5.0)
    assert found.addresses == ("192.0.2.77", "127.0.0.1", "127.0.0.2")
    assert found.own == "127.0.0.1"


def test_addresses_of_others_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _answers("192.0.2.77", "2001:db8::77"))
    found = resolve("n0", 5.0)
    assert (found.addresses, found.own) == (("192.0.2.77", "2001:db8::77"), None)


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 70, "a..b", ""])
def test_an_unknown_name_has_no_address(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.endswith("invalid"):  # no name server is to be asked

        def unknown(*arguments: Any, **options: Any) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    found = resolve(name, 20.0)
    assert found.own is None or name == ""
    assert found.addresses == () or name == ""


def test_a_resolver_that_hangs_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    release, ended = threading.Event(), threading.Event()

    def hang(*arguments: Any, **options: Any) -> list[Any]:
        release.wait(50)
        ended.set()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        found = resolve("n0", 0.05)
        assert not ended.is_set()
        assert (found.addresses, found.own) == (None, None)
    finally:
        release.set()
        assert ended.wait(20)


@pytest.mark.parametrize(
    ("address", "loops"),
    [
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("fe80::1%lo", False),
        ("10.0.0.1", False),
        ("::", False),
        ("", False),
        ("n0", False),
    ],
)
def test_what_never_leaves_its_host(address: str, loops: bool) -> None:
    assert is_loopback(address) == loops
