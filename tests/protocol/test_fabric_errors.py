"""The words of torch 2.13 and its Gloo, each provoked between network namespaces, without the addresses of frames."""

from __future__ import annotations

import time

import pytest

from seatrial.protocol.fabric_errors import (
    ConnectError,
    gave_up,
    names_fabric,
    read_connect_error,
    says_why_aborted,
    wait_timeout_s,
)

PAIR = "Gloo connectFullMesh failed with [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair"
FRAME = "[W1122 21:46:03.671452683 TCPStore.cpp:340] [c10d] "


@pytest.mark.parametrize(
    ("said", "how", "address", "port"),
    [
        # A firewall on node1 with REJECT; node0 had connected, node2 dials node1.
        (
            PAIR + ".cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[10.77.0.11]:2989$2",
            "refused",
            "10.77.0.11",
            2989,
        ),
        # The name of each host leads to 127.0.1.1 in its /etc/hosts.
        (
            PAIR + ".cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:11160$0",
            "refused",
            "127.0.1.1",
            11160,
        ),
        # The same with DROP: the connection is neither refused nor made.
        (PAIR + ".h:311] Connect timeout [none]", "no answer", "", None),
        # The name of node1 leads to an address of its own that no other host has a route to.
        (
            "[enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/socket.cc:142] rv != -1. -1 vs"
            " -1. connect: Network is unreachable",
            "no route",
            "",
            None,
        ),
        # The store behind a port with DROP, with REJECT, with no listener, and with a name that no DNS has.
        (
            "The client socket has timed out after 6000ms while trying to connect to (10.77.0.10, 29998).",
            "timed out",
            "10.77.0.10",
            29998,
        ),
        ("The client socket has timed out after 6000ms while trying to connect to (fd00::99, 29999).",
         "timed out", "fd00::99", 29999),
        ("The client socket has timed out after 6000ms while trying to connect to (nosuchhost.invalid, 29999).",
         "timed out", "nosuchhost.invalid", 29999),
        # The store behind REJECT with icmp-host-prohibited, and in a network without a route. The second port is wrong.
        (
            "The client socket has failed to connect to any network address of (10.77.0.10, 29997). The client socket"
            " has failed to connect to 0.0.0.0:1722 (errno: 113 - No route to host).",
            "no route",
            "10.77.0.10",
            29997,
        ),
        (
            "The client socket has failed to connect to any network address of (10.99.0.99, 29999). The client socket"
            " has failed to connect to 0.0.0.0:8250 (errno: 101 - Network is unreachable).",
            "no route",
            "10.99.0.99",
            29999,
        ),
        # Standard error of a rank whose store still tries.
        (
            FRAME + "TCP client failed to connect/validate to host 10.77.0.10:29997 - retrying (try=2, timeout=6000ms,"
            " delay=1128ms): The client socket has failed to connect to any network address of (10.77.0.10, 29997). The"
            " client socket has failed to connect to 0.0.0.0:4792 (errno: 113 - No route to host).",
            "no route",
            "10.77.0.10",
            29997,
        ),
    ],
)  # fmt: skip
def test_a_failed_connection_is_read(said: str, how: str, address: str, port: int | None) -> None:
    error = read_connect_error(said)
    assert error is not None
    assert (error.how, error.address, error.port) == (how, address, port)
    assert how in error.words()


@pytest.mark.parametrize(
    "said",
    [
        "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for"
        " recv operation to complete",
        "Application timeout caused pair closure",
        "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"
        " [10.77.0.11]:2989",
        "CUDA error: an illegal memory access was encountered",
        "",
    ],
)
def test_other_errors_are_no_failed_connections(said: str) -> None:
    assert read_connect_error(said) is None


@pytest.mark.parametrize(
    "said",
    [
        "Application timeout caused pair closure",
        "[enforce fail at socket.cc:142] rv != -1. -1 vs -1. connect: Network is unreachable",
        "[Errno 113] No route to host",
    ],
)
def test_an_error_of_the_fabric_is_no_bug_of_seatrial(said: str) -> None:
    assert names_fabric(said)


def test_a_message_of_any_length_is_read_in_no_time() -> None:
    began = time.process_time()
    for words in ("gloo/", "ProcessGroupUCC ", "[a", "a.", "connection close "):
        assert not names_fabric(words * 200_000)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectError(how="refused", address="127.0.1.1", port=1), "the name of a host leads there; map the name"),
        (ConnectError(how="refused", address="::1", port=1), "the loopback of every host"),
        (ConnectError(how="refused", address="172.17.0.1", port=1), "Docker's bridge of every host"),
        (ConnectError(how="refused", address="10.0.0.1", port=1), "open all TCP ports"),
        (ConnectError(how="no answer"), "open all TCP ports"),
        (ConnectError(how="no route"), "GLOO_SOCKET_IFNAME"),
        (ConnectError(how="timed out", address="nosuchhost", port=1), "the name nosuchhost leads"),
        (ConnectError(how="timed out", address="10.0.0.1", port=1), "open all TCP ports"),
    ],
)
def test_names_routes_and_ports_are_told_from_cables(error: ConnectError, words: str) -> None:
    assert words in error.action()
    assert "cable" not in error.action()


@pytest.mark.parametrize(
    ("said", "timeout_s"),
    [
        (
            "RuntimeError: [/__w/tcp/unbound_buffer.cc:129] Timed out waiting 15000ms for send operation to complete",
            15.0,
        ),
        ("RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 2000 ms", 2.0),
        ("RuntimeError: Rank 1 timed out in monitoredBarrier after 2000 ms.", 2.0),
        ("torch.distributed.DistStoreError: wait timeout after 10000ms, keys: /default_pg/0//cpu//0/0", 10.0),
        ("torch.distributed.DistStoreError: barrier timeout after 500ms, key: /b", 0.5),
        ("torch.distributed.DistStoreError: Timed out after 11 seconds waiting for clients. 1/2 clients joined.", 11.0),
        ("DistNetworkError: The client socket has timed out after 6000ms while trying to connect to (h, 1).", 6.0),
        ("MPI all_reduce timed out waiting 2.5 s for the other ranks of its group", 2.5),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, Timeout(ms)=600000) ran for 600080", 600.0),
        ("RuntimeError: Socket Timeout", None),
        ("RuntimeError: Application timeout caused pair closure", None),
    ],
)
def test_a_wait_that_was_given_up_is_read_with_its_timeout(said: str, timeout_s: float | None) -> None:
    assert gave_up(said)
    assert wait_timeout_s(said) == timeout_s


@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: Connection closed by peer [10.77.0.11]:2989",
        "TCP client failed to connect: Connection timed out",
        "requests.exceptions.ReadTimeout: Read timed out. (read timeout=10)",
        "subprocess.TimeoutExpired: Command 'sleep' timed out after 3 seconds",
        # No float holds the first, and the second is no number: a rank may print anything.
        f"RuntimeError: Timed out waiting {'9' * 400}ms for recv operation to complete",
        "MPI all_reduce timed out waiting 1.2.3 s for the other ranks of its group",
        "Dist" * 20_000,
        "",
    ],
)
def test_other_errors_are_no_wait_that_was_given_up(said: str) -> None:
    assert not gave_up(said)
    assert wait_timeout_s(said) is None


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        ("terminate called after throwing an instance of 'c10::DistNetworkError'", True),
        ("terminate called after throwing an instance of 'c10::DistStoreError'", True),
        ("terminate called after throwing an instance of 'gloo::EnforceNotMet'", True),
        ("  what():  [Rank 1] NCCL error in: /x/NCCLUtils.cpp:77, remote process exited", True),
        ("[rank1]: Process group watchdog thread terminated with exception: CUDA error", True),
        # May be about the device: its message tells.
        ("terminate called after throwing an instance of 'c10::DistBackendError'", False),
        ("terminate called after throwing an instance of 'c10::Error'", False),
        ("terminate called after throwing an instance of 'std::system_error'", False),
        # The socket may be one of the script.
        ("  what():  Connection reset by peer", False),
        ("NCCL error: a line of the script", False),
    ],
)
def test_a_library_says_why_it_aborts_its_process(line: str, is_said: bool) -> None:
    assert says_why_aborted(line) == is_said
