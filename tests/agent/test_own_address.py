"""The address by which a node says that others reach it, where one of its peers lies or cannot be reached."""

from __future__ import annotations

import errno

import pytest

from seatrial.agent import agent_main
from seatrial.errors import SeatrialError

ROUTES = {
    "10.0.0.2": "10.0.0.1",
    "10.0.0.3": "10.0.0.1",
    "172.17.0.9": "172.17.0.1",  # behind a bridge that only this host has
    "127.0.0.1": "127.0.0.1",
}


_REAL_ROUTE_TO = agent_main._route_to


@pytest.fixture(autouse=True)
def kernel_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double of the kernel's routes: they cannot be changed here."""

    def route_to(peer: str, timeout_s: float) -> str:
        if peer not in ROUTES:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")
        return ROUTES[peer]

    monkeypatch.setattr(agent_main, "_route_to", route_to)
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 5 10.0.0.1 22")


@pytest.mark.parametrize("lie", ["172.17.0.9", "127.0.0.1", "2001:db8::1"])
@pytest.mark.parametrize("honest", [["10.0.0.2"], ["10.0.0.2", "10.0.0.3"]])
def test_one_peer_that_lies_changes_nothing(lie: str, honest: list[str]) -> None:
    for at in range(len(honest) + 1):
        assert agent_main._address([*honest[:at], lie, *honest[at:]], needed=True) == "10.0.0.1"


def test_most_routes_count_more_than_the_way_of_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "172.17.0.9 5 172.17.0.1 22")
    assert agent_main._address(["172.17.0.9", "10.0.0.2", "10.0.0.3"], needed=True) == "10.0.0.1"


def test_a_launcher_that_names_the_peers_has_the_first_route() -> None:
    assert agent_main._address(["172.17.0.9", "10.0.0.2"], needed=False) == "172.17.0.1"


def test_without_any_route_the_first_peer_is_named() -> None:
    with pytest.raises(SeatrialError, match=r"has no route to 192\.0\.2\.1, another node of this job"):
        agent_main._address(["192.0.2.1", "2001:db8::1"], needed=True)
    assert agent_main._address(["192.0.2.1"], needed=False) == ""


@pytest.mark.parametrize("peer", ["a" * 64, "node1..cluster"])
def test_a_name_that_no_resolver_takes_is_no_bug(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_main, "_route_to", _REAL_ROUTE_TO)
    assert agent_main._address([peer, "127.0.0.1"], needed=False) == ""
