"""The ``mpi://`` rendezvous, with a double of MPI that keeps what rank 0 sends the others."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from seatrial.mpi_backend import addresses
from seatrial.mpi_backend.addresses import Place, addresses_of_first, nearest_first, place_of, this_place
from seatrial.mpi_backend.proof import answering, first_with_proof

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
        # Port of the store, port of the proof, proof, and the place of rank 0.
        print(*bytes(buffer[0]).rstrip(bytes(1)).decode().split()[4:])

    def Barrier(self):
        pass

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
        ("a 10.0.2.15/24", "b 10.0.2.15/24", "10.0.2.15", "10.0.2.15"),
        ("a 10.0.2.15/24", "b 10.0.2.15/24", "", _REFUSED),
        ("a 10.0.2.15/24", "b 10.0.2.15/24", "127.0.0.1", _REFUSED),
        ("a", "b 10.9.0.6/24", "127.0.0.1", _REFUSED),
        ("a 10.9.0.5/24", "b !10.9.0.5", "", _REFUSED),
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
_DOCKER_DOWN_ON_OTHER = ("a 172.17.0.1/16 10.9.0.5/24", "b 10.9.0.6/24 !172.17.0.1")
_DOCKER_DOWN_ON_FIRST = ("a 10.9.0.5/24 !172.17.0.1", "b 172.17.0.1/16 10.9.0.6/24")
_ON_LOOPBACK = ("a 10.255.255.254/32 10.9.0.5/24", "b 10.9.0.6/24 !10.255.255.254")
_INFINIBAND = ("a 10.1.0.1/16 10.2.0.1/16", "b 10.1.0.2/16 10.2.0.2/16")
_ONLY_INFINIBAND_SHARED = ("a 192.168.1.9/24 10.2.0.1/16", "b 192.168.7.9/24 10.2.0.2/16")
_IPV6 = ("a fd00::5/64", "b fd00::6/64")
_ROUTED_PODS = ("a 10.4.1.5/32", "b 10.4.2.7/32")
_ONE_NETWORK_TWO_BOOTS = ("a 10.0.0.5/24 fd00::5/64", "b 10.0.0.5/24 fd00::5/64")
_TWO_NETWORKS = ("a 10.1.0.1/24 10.2.0.1/24", "b 10.1.0.2/24", "c 10.2.0.3/24")
_MORE_RANKS_OF_A_HOST = ("a 10.9.0.5/24", "a 10.9.0.5/24", "b 10.9.0.6/24")


@pytest.mark.parametrize(
    ("lines", "master", "tried"),
    [
        (_VAGRANT, "", {"192.168.56.10"}),
        (_VAGRANT, "10.0.2.15", {"192.168.56.10"}),
        (_DOCKER, "", {"10.9.0.5"}),
        (_DOCKER_ON_FIRST, "", {"10.9.0.5 172.17.0.1"}),
        (_DOCKER_DOWN_ON_OTHER, "", {"10.9.0.5"}),
        (_DOCKER_DOWN_ON_OTHER, "172.17.0.1", {"10.9.0.5"}),
        (_DOCKER_DOWN_ON_FIRST, "", {"10.9.0.5"}),
        (_ON_LOOPBACK, "", {"10.9.0.5"}),
        (_INFINIBAND, "", {"10.1.0.1 10.2.0.1"}),
        (_INFINIBAND, "10.2.0.1", {"10.2.0.1 10.1.0.1"}),
        (_INFINIBAND, "10.2.0.2", {"10.1.0.1 10.2.0.1"}),
        (_ONLY_INFINIBAND_SHARED, "", {"10.2.0.1 192.168.1.9"}),
        (_IPV6, "", {"fd00::5"}),
        (_IPV6, "fe80::5", {"fd00::5"}),
        (_IPV6, "0.0.0.0", {"fd00::5"}),
        (_ROUTED_PODS, "trial-0.trial", {"10.4.1.5"}),
        (_ROUTED_PODS, "203.0.113.5", {"203.0.113.5 10.4.1.5"}),
        (_ONE_NETWORK_TWO_BOOTS, "10.0.0.5", {"10.0.0.5"}),
        (_ONE_NETWORK_TWO_BOOTS, "fd00::5", {"fd00::5"}),
        ((*_ONE_NETWORK_TWO_BOOTS, "c 10.0.0.6/24"), "10.0.0.5", {"10.0.0.5"}),
        (_TWO_NETWORKS, "", {"10.1.0.1 10.2.0.1", "10.2.0.1 10.1.0.1"}),
        (_MORE_RANKS_OF_A_HOST, "", {"127.0.0.1", "10.9.0.5"}),
        (("a 10.9.0.5/24", "a 10.9.0.5/24"), "10.9.0.5", {"127.0.0.1"}),
        (("a", "a"), "", {"127.0.0.1"}),
    ],
)
def test_what_the_others_try(lines: tuple[str, ...], master: str, tried: set[str]) -> None:
    first, *others = _places(*lines)
    told = Place(stack=first.stack, addresses=addresses_of_first([first, *others], master))
    assert {" ".join(nearest_first(told, place)) for place in others} == tried


def test_no_rank_of_another_host_tries_what_its_own_host_has() -> None:
    """A rank knows all of them, and the line that it tells rank 0 has room for some."""
    (here,) = _places("b 10.9.0.6/24 10.66.0.1/24 !172.17.0.1")
    (told,) = _places("a 172.17.0.1/16 10.9.0.5/24 10.66.0.1/24")
    assert nearest_first(told, here) == ["10.9.0.5"]


@pytest.mark.parametrize("lines", [("a 10.0.2.15/24", "b 10.0.2.15/24"), ("a", "b"), ("a fd00::5/64", "b fd00::5/64")])
def test_a_number_of_several_hosts_is_given_to_none(lines: tuple[str, ...]) -> None:
    assert addresses_of_first(_places(*lines), "localhost") == ()


def test_no_rank_looks_on_its_own_host_where_rank_0_has_an_address() -> None:
    """It is the last resort: where rank 0 has another one, no rank looks on its own host."""
    first, other = _places("a 10.0.2.15/24 192.168.56.10/24", "b 10.0.2.15/24")
    told = Place(stack=first.stack, addresses=("10.0.2.15", "192.168.56.10/24"))
    assert nearest_first(told, other) == ["192.168.56.10"]
    assert addresses_of_first([first, other], "10.0.2.15") == ("192.168.56.10/24",)


def test_a_rank_says_where_it_is_in_a_line() -> None:
    here = this_place()
    assert place_of(here.line(2048)) == here
    assert this_place().stack == here.stack
    assert not [
        address for address in (*here.addresses, *here.compared) if address.startswith(("127.", "::1", "fe80:"))
    ]
    assert place_of(here.line(len(here.stack) + 3)) == Place(stack=here.stack, addresses=())


def test_addresses_of_interfaces_that_are_down_are_only_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel answers at them as well."""
    before = this_place()
    monkeypatch.setattr(addresses, "_is_running", lambda *_: False)
    here = this_place()
    assert (here.addresses, {*here.compared}) == (
        (),
        {*before.compared, *(each.split("/")[0] for each in before.addresses)},
    )


@contextlib.contextmanager
def _stranger(address: str, port: int, says: bytes) -> Iterator[None]:
    """A listener of another user, which accepts each connection, keeps it open, and says this."""
    kept: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = listening.accept()
                kept.append(caller)
                caller.sendall(says)

    with socket.socket() as listening:
        listening.bind((address, port))
        listening.listen()
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for caller in kept:
                caller.close()


@contextlib.contextmanager
def _rank_0(address: str, proof: str) -> Iterator[int]:
    """One that answers here alone, so that a stranger can have its port at another address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seatrial.mpi_backend.proof._everywhere", lambda: socket.create_server((address, 0)))
        with answering(proof) as port:
            yield port


_PROOF = "5" * 32


@pytest.mark.parametrize("says", [b"", b"5", b"6" * 32 + b"\n", b"5" * 32, b"5" * 33, b"\xff" * 100])
def test_the_next_address_is_tried_where_a_stranger_listens(says: bytes) -> None:
    """Who was silent at the first one kept the rank, and its store, for ever."""
    with _rank_0("127.0.0.2", _PROOF) as port, _stranger("127.0.0.3", port, says):
        assert first_with_proof(_PROOF, ["127.0.0.3", "127.0.0.2"], port, 2) == "127.0.0.2"
        assert first_with_proof(_PROOF, ["127.0.0.3"], port, 0.3) == ""


def test_who_does_not_listen_is_passed_over() -> None:
    with _rank_0("127.0.0.2", _PROOF) as port:
        for _ in range(3):
            assert first_with_proof(_PROOF, ["127.0.0.3", "127.0.0.2"], port, 20) == "127.0.0.2"
    assert first_with_proof(_PROOF, ["127.0.0.3"], port, 0.1) == ""
    assert first_with_proof(_PROOF, [], port, 20) == ""


def test_rank_0_answers_at_all_addresses_until_all_have_met() -> None:
    with answering(_PROOF) as port:
        silent = socket.create_connection(("127.0.0.1", port))
        assert first_with_proof(_PROOF, ["127.0.0.4"], port, 20) == "127.0.0.4"
        silent.close()
    thread = next((each for each in threading.enumerate() if each.name == "seatrial MPI proof"), None)
    if thread is not None:
        thread.join()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_rank_that_finds_only_strangers_says_where_it_asked() -> None:
    code = """
from datetime import timedelta
from seatrial.mpi_backend import proof, register

with proof.answering("of another run") as port:
    register._join(["127.0.0.2", "127.0.0.1"], 1, port, "of this run", 2, timedelta(seconds=1))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=50)
    assert "at none of its addresses within 0.8 s (127.0.0.2, 127.0.0.1, port " in done.stderr
    assert "set MASTER_ADDR=ADDRESS" in done.stderr
