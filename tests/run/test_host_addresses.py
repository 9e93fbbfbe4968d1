"""The addresses from which agents may connect, where the request names hosts."""

from __future__ import annotations

import socket

import pytest

from seatrial.conductor.node_addresses import may_be
from seatrial.run.host_addresses import addresses_of


def test_each_node_has_the_addresses_of_its_name() -> None:
    nodes = addresses_of(["192.0.2.7", "localhost", "no-such-host.invalid", "192.0.2.7", "2001:DB8::7"])
    assert nodes.keys() == {0, 1, 3, 4}
    assert (nodes[0], nodes[3], nodes[4]) == ({"192.0.2.7"}, {"192.0.2.7"}, {"2001:db8::7"})
    assert "127.0.0.1" in nodes[1]
    assert addresses_of([]) == {}


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.9"])
def test_this_machine_reaches_itself_by_any_address(source: str) -> None:
    # Debian's /etc/hosts leads the name of the machine to 127.0.1.1.
    nodes = addresses_of(["127.0.1.1", "192.0.2.7"])
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), 5.0, (source, 0)),
        listener.accept()[0] as connection,
    ):
        # Nothing is known about node 2.
        assert [may_be(connection, node, nodes) for node in range(3)] == [True, False, True]


def test_a_listener_on_all_addresses_sees_the_same_address() -> None:
    with (
        socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener,
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), 5.0, ("127.0.0.3", 0)),
        listener.accept()[0] as connection,
    ):
        assert connection.getpeername()[0] == "::ffff:127.0.0.3"
        assert may_be(connection, 0, {0: {"127.0.0.3"}})
        assert not may_be(connection, 0, {0: {"127.0.0.4"}})


def test_no_name_is_looked_up_later_than_it_may_be() -> None:
    assert addresses_of(["127.0.0.1"], within_s=60.0)
    assert addresses_of(["127.0.0.1"], within_s=-1.0) == {}
