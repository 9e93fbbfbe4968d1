"""The ``mpi://`` rendezvous, with a double of MPI that keeps what rank 0 sends the others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from seatrial.mpi_backend.addresses import (
    Place,
    addresses_of_first,
    first_that_answers,
    nearest_first,
    place_of,
    this_place,
)

_DOUBLE = """
import sys
from types import SimpleNamespace
from seatrial.errors import RequestError
from seatrial.mpi_backend import addresses, register

class DoubleOfWorld:
    # Two ranks on two hosts, of which this is the first one. The other one is never there.
    rank, size = 0, 2

    def Gather(self, line, lines, root):
        half = len(lines[0]) // 2
        lines[0][:half], lines[0][half:] = line[0], sys.argv[2].encode().ljust(half, bytes(1))

    def Bcast(self, buffer, root):
        print(*bytes(buffer[0]).rstrip(bytes(1)).decode().split()[2:])

addresses.this_place = lambda: addresses.place_of(sys.argv[1])
register.load_mpi = lambda: SimpleNamespace(COMM_WORLD=DoubleOfWorld(), BYTE=None)
try:
    next(register._rendezvous("mpi://"))
except RequestError as error:
    print(error)
"""
_REFUSED = "rank 0 has no address for the other hosts: each one of its interfaces"


@pytest.mark.parametrize(
    ("first", "other", "master", "told"),
    [
        ("a 10.9.0.5/24", "b 10.9.0.6/24", "", "10.9.0.5/24"),
        ("a 10.9.0.5/24", "b 10.9.0.6/24", "node0", "10.9.0.5/24"),
        ("a 10.0.2.15/24", "b 10.0.2.15/24", "10.0.2.15", _REFUSED),
        ("a", "b 10.9.0.6/24", "127.0.0.1", _REFUSED),
        ("a", "b", "10.9.0.5", "10.9.0.5"),
    ],
)
def test_other_hosts_get_an_address_that_is_their_own_for_none(first: str, other: str, master: str, told: str) -> None:
    """They got 127.0.0.1 of a host with no default route, or a number that each of them had."""
    done = subprocess.run(
        [sys.executable, "-c", _DOUBLE, first, other],
        env={**os.environ, "MASTER_ADDR": master},
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    sent, *refused = done.stdout.splitlines()
    if told == _REFUSED:
        assert (sent, refused[0][: len(_REFUSED)]) == ("", _REFUSED)
    else:
        assert (sent, refused) == (told, [])


def _places(*lines: str) -> list[Place]:
    return [place_of(line) for line in lines]


_VAGRANT = ("a 10.0.2.15/24 192.168.56.10/24", "b 10.0.2.15/24 192.168.56.11/24", "c 10.0.2.15/24 192.168.56.12/24")
_DOCKER = ("a 172.17.0.1/16 10.9.0.5/24", "b 172.17.0.1/16 10.9.0.6/24")
_DOCKER_ON_FIRST = ("a 172.17.0.1/16 10.9.0.5/24", "b 10.9.0.6/24")
_INFINIBAND = ("a 10.1.0.1/16 10.2.0.1/16", "b 10.1.0.2/16 10.2.0.2/16")
_ONLY_INFINIBAND_SHARED = ("a 192.168.1.9/24 10.2.0.1/16", "b 192.168.7.9/24 10.2.0.2/16")
_IPV6 = ("a fd00::5/64", "b fd00::6/64")
_ROUTED_PODS = ("a 10.4.1.5/32", "b 10.4.2.7/32")
_TWO_NETWORKS = ("a 10.1.0.1/24 10.2.0.1/24", "b 10.1.0.2/24", "c 10.2.0.3/24")
_MORE_RANKS_OF_A_HOST = ("a 10.9.0.5/24", "a 10.9.0.5/24", "b 10.9.0.6/24")


@pytest.mark.parametrize(
    ("lines", "master", "tried"),
    [
        (_VAGRANT, "", {"192.168.56.10"}),
        (_VAGRANT, "10.0.2.15", {"192.168.56.10"}),
        (_DOCKER, "", {"10.9.0.5"}),
        (_DOCKER_ON_FIRST, "", {"10.9.0.5 172.17.0.1"}),
        (_INFINIBAND, "", {"10.1.0.1 10.2.0.1"}),
        (_INFINIBAND, "10.2.0.1", {"10.2.0.1 10.1.0.1"}),
        (_INFINIBAND, "10.2.0.2", {"10.1.0.1 10.2.0.1"}),
        (_ONLY_INFINIBAND_SHARED, "", {"10.2.0.1 192.168.1.9"}),
        (_IPV6, "", {"fd00::5"}),
        (_IPV6, "fe80::5", {"fd00::5"}),
        (_IPV6, "0.0.0.0", {"fd00::5"}),
        (_ROUTED_PODS, "trial-0.trial", {"10.4.1.5"}),
        (_ROUTED_PODS, "203.0.113.5", {"203.0.113.5 10.4.1.5"}),
        (_TWO_NETWORKS, "", {"10.1.0.1 10.2.0.1", "10.2.0.1 10.1.0.1"}),
        (_MORE_RANKS_OF_A_HOST, "", {"10.9.0.5"}),
        (("a 10.9.0.5/24", "a 10.9.0.5/24"), "10.9.0.5", {"127.0.0.1"}),
        (("a", "a"), "", {"127.0.0.1"}),
    ],
)
def test_what_the_others_try(lines: tuple[str, ...], master: str, tried: set[str]) -> None:
    found = addresses_of_first(_places(*lines), master)
    assert {" ".join(nearest_first(found, place)) for place in _places(*lines[1:])} == tried


@pytest.mark.parametrize("lines", [("a 10.0.2.15/24", "b 10.0.2.15/24"), ("a", "b"), ("a fd00::5/64", "b fd00::5/64")])
def test_a_number_of_several_hosts_is_given_to_none(lines: tuple[str, ...]) -> None:
    assert addresses_of_first(_places(*lines), "localhost") == ()


def test_a_rank_says_where_it_is_in_a_line() -> None:
    here = this_place()
    assert place_of(here.line(2048)) == here
    assert this_place().stack == here.stack
    assert not [address for address in here.addresses if address.startswith(("127.", "::1/", "fe80:"))]
    assert place_of(here.line(len(here.stack) + 3)) == Place(stack=here.stack, addresses=())


def test_who_does_not_listen_is_passed_over() -> None:
    with socket.create_server(("127.0.0.2", 0)) as listening:
        port = listening.getsockname()[1]
        assert first_that_answers(["127.0.0.3", "127.0.0.2"], port, 20) == "127.0.0.2"
    assert first_that_answers(["127.0.0.3"], port, 0.1) == ""


def test_a_stranger_at_the_address_is_not_taken_for_rank_0() -> None:
    code = """
from datetime import timedelta
import torch.distributed as dist
from seatrial.mpi_backend import register

limit = timedelta(seconds=20)
store = dist.TCPStore("127.0.0.1", 0, 2, True, limit, wait_for_workers=False, use_libuv=False)
store.set(register._PROOF, "of another run")
register._join(["127.0.0.1"], store.port, "of this run", 2, limit)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=50)
    assert "is not rank 0; set MASTER_ADDR=ADDRESS" in done.stderr
