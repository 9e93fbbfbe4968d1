"""Where agents join from, and on which hosts munge made their credentials."""

from __future__ import annotations

import socket
import threading
from typing import cast

import pytest
from conductor.served import served as _served
from conductor.stub_agent import StubAgent
from conductor.test_server import _is_closed

from seatrial.conductor.node_addresses import place_of
from seatrial.protocol.events import THIS_MACHINE


def test_where_agents_join_from_is_in_the_events() -> None:
    """Two agents on one machine have one place, whatever the addresses of the machine."""
    with _served(nodes=2) as served:
        second = threading.Thread(target=StubAgent(served.server.port, 1, source="127.0.0.2").serve)
        second.start()
        StubAgent(served.server.port, 0).serve()
        second.join()
        served.over()
    (begun,) = (event for event in served.events if event["kind"] == "generation")
    assert begun["places_of_nodes"] == {"0": THIS_MACHINE, "1": THIS_MACHINE}


@pytest.mark.parametrize(
    ("source", "own", "place"),
    [
        ("127.0.0.6", "192.0.2.2", ""),
        ("::1", "2001:db8::2", ""),
        ("127.0.0.2", "127.0.0.1", THIS_MACHINE),
        ("192.0.2.2", "192.0.2.2", THIS_MACHINE),
        ("::ffff:192.0.2.3", "::ffff:192.0.2.2", "192.0.2.3"),
    ],
)
def test_what_a_process_of_this_machine_hands_on_has_no_place(source: str, own: str, place: str) -> None:
    assert place_of(cast("socket.socket", _ConnectionDouble(source, own))) == place


class _ConnectionDouble:
    """Stands for a socket: 192.0.2.2 is an address of no machine."""

    def __init__(self, peer: str, own: str) -> None:
        self._peer, self._own = peer, own

    def getpeername(self) -> tuple[str, int]:
        return self._peer, 1

    def getsockname(self) -> tuple[str, int]:
        return self._own, 2


@pytest.mark.parametrize(
    ("known", "made_at", "severities"),
    [
        # The addresses are unknown, of which munge knows more.
        ({0: {"192.0.2.7"}, 1: {"192.0.2.8"}}, {0: "192.0.2.7", 1: "192.0.2.8"}, []),
        ({0: {"192.0.2.7"}, 1: {"192.0.2.8"}}, {0: "192.0.2.8", 1: "192.0.2.7"}, ["error", "error", "info"]),
        ({0: {"192.0.2.7"}, 1: {"192.0.2.8"}}, {0: "192.0.2.9", 1: ""}, ["info"]),
        ({0: {"192.0.2.7"}, 1: {"192.0.2.8"}}, {0: "192.0.2.7", 1: "192.0.2.7"}, ["error", "info"]),
        ({}, {0: "192.0.2.7", 1: "192.0.2.7"}, ["info"]),
        # Somebody between the nodes can send from their addresses.
        ({0: {"127.0.0.1"}, 1: {"127.0.0.2"}}, {0: "127.0.0.2", 1: "127.0.0.2"}, ["error"]),
        ({0: {"127.0.0.1"}, 1: {"127.0.0.2"}}, {0: "192.0.2.9", 1: ""}, []),
        ({0: {"127.0.0.1"}, 1: {"127.0.0.2"}}, {0: None, 1: "127.0.0.2"}, ["error"]),
        ({}, {0: None, 1: None}, ["error", "error", "info"]),
    ],
)
def test_a_credential_of_another_host_is_a_finding(
    known: dict[int, set[str]], made_at: dict[int, str | None], severities: list[str]
) -> None:
    with _served(nodes=2) as served:
        served.server._credential = "of the controller"
        second = threading.Thread(target=StubAgent(served.server.port, 1, "127.0.0.2", "of the second").serve)
        second.start()
        StubAgent(served.server.port, 0, credential="of the first").serve()
        second.join()
        served.over()
    assert [made for _, made in served.server.credentials.values()] == ["of the second", "of the first"]
    notes = served.server.address_notes(known, made_at)
    assert [note["severity"] for note in notes] == severities
    told = [note["text"] for note in notes if note["severity"] == "error"]
    assert all("joined with a credential " in text for text in told), told


def test_an_agent_without_a_credential_is_sent_away() -> None:
    """With the token from munge alone it could be any node of the run."""
    with _served() as served:
        served.server._credential = "of the controller"
        with StubAgent(served.server.port).socket as impostor:
            assert _is_closed(impostor)
        StubAgent(served.server.port, credential="sound").serve()
        served.over()
    assert served.outcomes() == ["done", "done"]
    (note,) = (event for event in served.events if event["kind"] == "note")
    assert note["severity"] == "error"
    assert "claims to be node 0 without a credential of munge, and was sent away" in note["text"]
