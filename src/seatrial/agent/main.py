"""The process of one node: ``python -m seatrial.agent.main``.

It learns everything from its environment: SEATRIAL_CONTROL (host:port of the conductor, or several ports to try, or
fd:NUMBER of a connection that is open), SEATRIAL_TOKEN, SEATRIAL_NODE_RANK (a number, or the name of the variable that
holds it, such as SLURM_NODEID); optionally SEATRIAL_NODES_HERE, where several nodes share a machine and its cores,
SEATRIAL_PEER, names or addresses of other nodes, SEATRIAL_NIC=route where Gloo and NCCL are to take the interface of
the way to those, SEATRIAL_KEEP, a folder where it leaves its events and the output of its ranks (without it, the last
of that output is sent to the conductor at the end), and, when it is the agent of one rank among several on its machine,
SEATRIAL_LOCAL_RANK and SEATRIAL_LOCAL_WORLD_SIZE, SEATRIAL_GROUP_RANK (which machine) and SEATRIAL_GROUP_WORLD_SIZE (of
how many).
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import secrets
import signal
import socket
import sys
import time
from types import FrameType

from seatrial.agent.serve import Agent
from seatrial.errors import RequestError, SeatrialError
from seatrial.probe.cpu import usable_cores
from seatrial.probe.names import is_loopback
from seatrial.probe.network import interface_to
from seatrial.verdict.handshake import proof, proves
from seatrial.verdict.wire import MAX_LINE_BYTES, Decoder, encode

__all__ = ["join_timeout_s", "main"]

_JOIN_TIMEOUT_S = 60
_ANSWER_TIMEOUT_S = 10.0


def main() -> None:
    """Serve one trial. Exit code 0 after an orderly end, 3 when the conductor was lost."""
    _allow_files()
    try:
        agent = _join()
        stopped_by: list[int] = []

        def on_signal(number: int, frame: FrameType | None) -> None:
            stopped_by.append(number)

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)
        code = agent.serve(stopped_by)
    except SeatrialError as error:
        print(f"seatrial agent: {error}", file=sys.stderr)
        code = error.exit_code
    sys.exit(code)


def _allow_files() -> None:
    """Each rank takes seven descriptors here; the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def join_timeout_s() -> float:
    """How long those wait for one another that a launcher starts one by one; pods may have to pull an image first.

    Raises RequestError for a SEATRIAL_JOIN_TIMEOUT_S that is no such time.
    """
    told = os.environ.get("SEATRIAL_JOIN_TIMEOUT_S", str(_JOIN_TIMEOUT_S))
    if not told.isascii() or not told.isdecimal() or not 1 <= int(told[:9]) <= 86_400:
        raise RequestError(f"SEATRIAL_JOIN_TIMEOUT_S={told[:40]!a}: a whole number from 1 to 86400 is expected.")
    return int(told)


def _join() -> Agent:
    try:
        host, _, ports = os.environ["SEATRIAL_CONTROL"].rpartition(":")
        # The token must not be inherited by the ranks, which run whatever torch loads.
        token = os.environ.pop("SEATRIAL_TOKEN")
        told = os.environ["SEATRIAL_NODE_RANK"]
        node_rank = int(os.environ.get(told, told))
        cores = max(1, usable_cores() // int(os.environ.get("SEATRIAL_NODES_HERE", 1)))
        local_rank, local_world_size = (
            int(os.environ[name]) if name in os.environ else None
            for name in ("SEATRIAL_LOCAL_RANK", "SEATRIAL_LOCAL_WORLD_SIZE")
        )
        addresses = [(host.strip("[]"), int(port)) for port in ports.split(",")]
    except (KeyError, ValueError) as error:
        raise RequestError(
            f"the environment of an agent is not complete: {error}; it is started by seatrial."
        ) from error
    # Before we are heard of: while a resolver keeps us waiting we would be a node that says nothing.
    address = _address(os.environ.get("SEATRIAL_PEER", "").split()[:: 1 if node_rank else -1], needed=host == "fd")
    if os.environ.get("SEATRIAL_NIC") == "route" and address:
        _take_interface(address)
    if host == "fd":
        connection, received = _open_already(addresses[0][1], token, node_rank)
    else:
        connection, received = _meet(addresses, token, node_rank)
    return Agent(
        connection=connection,
        received=received,
        address=address or (connection.getsockname()[0] if host != "fd" else "127.0.0.1"),
        node_rank=node_rank,
        cores=cores,
        keep=os.environ.get("SEATRIAL_KEEP") or None,
        local_rank=local_rank,
        local_world_size=local_world_size,
    )


def _open_already(descriptor: int, token: str, node_rank: int) -> tuple[socket.socket, bytes]:
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    try:
        received = _shake_hands(connection, token, node_rank)
    except OSError as error:
        raise SeatrialError(f"node {node_rank} ({platform.node()}) did not hear its controller ({error}).") from error
    if received is None:
        raise SeatrialError(f"node {node_rank} ({platform.node()}): who speaks there does not know the token.")
    return connection, received


def _address(peers: list[str], *, needed: bool) -> str:
    """By which the other nodes reach this one: that of the route to the first of ``peers`` that has one.

    Empty without any; raises SeatrialError if one is needed.
    """
    for peer in peers:
        try:
            family, kind, _, _, address = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # no packet leaves
                found = str(probe.getsockname()[0])
        except OSError as error:
            if needed:
                raise SeatrialError(
                    f"{platform.node()} has no way to {peer}, another node of this job ({error})."
                ) from error
            continue
        # A host may know itself by an address that no other one reaches.
        if not is_loopback(found):
            return found
    return ""


def _take_interface(address: str) -> None:
    """Have Gloo and NCCL meet where the nodes do, unless the user says where; NCCL's = takes the name as it is."""
    if name := interface_to(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def _meet(addresses: list[tuple[str, int]], token: str, node_rank: int) -> tuple[socket.socket, bytes]:
    """The connection to the conductor of this job, and what it has said after its proof.

    Another job's conductor, or a stranger, may hold one of the ports: nobody is obeyed who has not proved that it knows
    the token. Whoever was started first waits for the other. Raises SeatrialError when nobody answers in time.
    """
    # With one address the controller started us, so it is there, if perhaps busy with strangers; with several we may be
    # the first to come.
    until = time.monotonic() + (join_timeout_s() if len(addresses) > 1 else _ANSWER_TIMEOUT_S)
    why: object = "nobody answered"
    while True:
        refused = 0
        for address in addresses:
            try:
                connection = socket.create_connection(address, timeout=_ANSWER_TIMEOUT_S)
            except OSError as error:
                why, refused = error, refused + 1
                continue
            try:
                received = _shake_hands(connection, token, node_rank)
            except OSError as error:
                why, received = error, None
            if received is not None:
                return connection, received
            connection.close()
        if time.monotonic() > until or refused == len(addresses) == 1:
            host, port = addresses[0]
            raise SeatrialError(
                f"node {node_rank} ({platform.node()}) found no controller of its job at {host}:{port} ({why})."
            )
        time.sleep(0.2)


def _shake_hands(connection: socket.socket, token: str, node_rank: int) -> bytes | None:
    """What the conductor has said after its proof; None: it has none. Raises OSError when it does not answer."""
    nonce = secrets.token_hex(16)
    hello = {"kind": "hello", "nonce": nonce, "node_rank": node_rank}
    connection.sendall(b"".join(encode(hello)))
    first, received = _first_line(connection)
    answer = Decoder().line(first) or {}
    challenge = answer.get("challenge")
    if not isinstance(challenge, str) or not proves(
        answer.get("proof"), token, "conductor", nonce, challenge, node_rank
    ):
        return None
    mine = {"kind": "proof", "proof": proof(token, "agent", nonce, challenge, node_rank)}
    connection.sendall(b"".join(encode(mine)))
    return received


def _first_line(connection: socket.socket) -> tuple[bytes, bytes]:
    """The first line that comes, and what came with it beyond. Raises OSError when it does not come in time."""
    until = time.monotonic() + _ANSWER_TIMEOUT_S
    data = b""
    while b"\n" not in data and len(data) <= MAX_LINE_BYTES:
        # Whoever says a byte now and then would hold us for hours.
        connection.settimeout(max(until - time.monotonic(), 0.001))
        piece = connection.recv(1 << 16)
        if not piece:
            break
        data += piece
    line, _, rest = data.partition(b"\n")
    return line, rest


if __name__ == "__main__":
    main()
