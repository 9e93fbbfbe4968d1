"""The process of one node: ``python -m seatrial.agent.agent_main``.

All settings come from its environment:

- SEATRIAL_CONTROL: host:port of the conductor, host:port,port,... to try, or fd:NUMBER of an open connection.
- SEATRIAL_TOKEN: the token of the run; ``munge:RUN``: the conductor of that run sends it, in a credential that only
  this user can read.
- SEATRIAL_JOB: the digest of what this agent may start (``protocol/job_digest.py``).
- SEATRIAL_NODE_RANK: number of this node, or the name of the variable that holds it, such as SLURM_NODEID.
- SEATRIAL_NODES_HERE (optional): nodes that share this machine and its cores.
- SEATRIAL_PEER (optional): names or addresses of other nodes.
- SEATRIAL_ADDRESS (optional): the address by which other nodes reach this one; else that of the route to them.
- SEATRIAL_NIC=route (optional): Gloo and NCCL use the interface of the route to those.
- SEATRIAL_KEEP (optional): folder for the events of this node and the output of its ranks. Without it, the end of that
  output is sent to the conductor at the end.
- SEATRIAL_LOCAL_RANK and SEATRIAL_LOCAL_WORLD_SIZE (optional): this agent serves one rank among several on its machine.
- SEATRIAL_GROUP_RANK and SEATRIAL_GROUP_WORLD_SIZE (optional): number of this machine, and how many there are.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import secrets
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from types import FrameType
from typing import cast

from seatrial.agent.control_connection import ControlConnection
from seatrial.agent.guardian import ENDING, guard
from seatrial.agent.supervisor import Agent
from seatrial.environment.home import give_home
from seatrial.environment.interface_choice import MARK, choose
from seatrial.environment.job_token import ways_to_secret
from seatrial.environment.secret_variable import take_secret
from seatrial.environment.working_folder import require_own_number
from seatrial.errors import RequestError, SeatrialError
from seatrial.probe.address_search import AddressSearch, in_pod
from seatrial.probe.cpu import usable_cores
from seatrial.probe.names import is_loopback
from seatrial.probe.network import interface_to
from seatrial.protocol import job_digest
from seatrial.protocol.commands import AgentProof, ConductorProof, Hello
from seatrial.protocol.handshake import proof, proves
from seatrial.protocol.line_tags import LineTags
from seatrial.protocol.munge import (
    PROOF,
    MungeError,
    make_credential,
    read_credential,
    run_of_agent_token,
    token_of,
)
from seatrial.protocol.timeouts import PROOF_S, join_timeout_s
from seatrial.protocol.wire import MAX_LINE_BYTES, Decoder, encode
from seatrial.resolver import query
from seatrial.util.file_limit import raise_file_limit
from seatrial.util.job_signals import JOINING, for_ranks, unless_ignored

_REPORT_S = 10.0
"""After this time, and each time that it has doubled, an agent in a pod writes into the log what it waits for."""
_SAME_SIGNAL_S = 1.0
"""Launchers and systemd signal all processes of a job, so that the agent hears from them and from the guardian, which
passes it on: within this time that is one signal."""
_RESOLVE_S = 20.0
"""Time for the names of all peers."""
_LEAST_RESOLVE_S = 0.5
"""Time for each peer when that is over: one that is an address needs no resolver."""
_ANSWER_TIMEOUT_S = 10.0
"""Time for the conductor's first line."""
_MUNGE_S = PROOF_S - 2.0
"""Time for both calls of munge. Later the conductor would have closed the connection."""
_FIRST_ANSWER_S = 2.0
"""The same on the first visit of several ports; each further visit has twice the time. Others can know the ports and
listen there, and one that keeps silent must not use up the time to join."""
_LONG_VISIT_S = 0.5
"""After a visit that took so long, the agent looks again where nobody listened: the controller may be there by now."""


class _ClosedError(ConnectionResetError):
    """The other end has closed the connection, as the controller does where strangers crowd at its port."""


def main() -> None:
    """Serve one run. Exit code: 0 after an orderly end, 2 for a wrong environment, 3 when the conductor was lost."""
    give_home()
    # The token must not be inherited by the ranks, which run whatever torch loads; the guardian needs none.
    token = take_secret("SEATRIAL_TOKEN")
    signals: list[int] = []
    signals_for_ranks: list[int] = []
    heard_at: dict[int, float] = {}
    agent: Agent | None = None

    def is_repeated(key: int) -> bool:
        now = time.monotonic()
        if now - heard_at.get(key, -math.inf) < _SAME_SIGNAL_S:
            return True
        heard_at[key] = now
        return False

    def on_rank_signal(number: int, frame: FrameType | None) -> None:
        if not is_repeated(number):
            signals_for_ranks.append(number)

    def on_signal(number: int, frame: FrameType | None) -> None:
        # Of those that end the agent, systemd sends two at once: SIGHUP follows its SIGTERM.
        if is_repeated(ENDING[0]):
            return
        signals.append(number)
        if agent is None:
            # Until it has joined there is nothing to end in order. As process 1 of a pod it would ignore the default.
            raise SeatrialError(f"signal {number} ended this agent before it had joined a run.")

    try:
        require_own_number()
        # The default would end the agent. Were they ignored, the ranks would inherit that.
        for number in for_ranks():
            signal.signal(number, on_rank_signal)
        guard()
        raise_file_limit()  # each rank takes seven descriptors
        for number in unless_ignored(ENDING):
            signal.signal(number, on_signal)
        # The process that became this one held them back (run/external_launcher.py).
        signal.pthread_sigmask(signal.SIG_UNBLOCK, JOINING)
        agent = _join(token)
        code = agent.serve(signals, signals_for_ranks)
    except SeatrialError as error:
        print(f"seatrial agent: {error}", file=sys.stderr)
        code = error.exit_code
    sys.exit(code)


def _join(token: str | None) -> Agent:
    """Join the run that the environment describes. Raises RequestError or SeatrialError."""
    try:
        host, _, ports = os.environ["SEATRIAL_CONTROL"].rpartition(":")
        if not token:
            raise KeyError("SEATRIAL_TOKEN")
        number_or_name = os.environ["SEATRIAL_NODE_RANK"]
        node_rank = int(os.environ.get(number_or_name, number_or_name))
        cores = max(1, usable_cores() // int(os.environ.get("SEATRIAL_NODES_HERE", 1)))
        local_rank, local_world_size = (
            int(os.environ[name]) if name in os.environ else None
            for name in ("SEATRIAL_LOCAL_RANK", "SEATRIAL_LOCAL_WORLD_SIZE")
        )
        host, numbers = host.strip("[]"), [int(port) for port in ports.split(",")]
        job = os.environ[job_digest.VARIABLE]
    except (KeyError, ValueError) as error:
        raise RequestError(
            f"the environment of this agent is incomplete: {error}; seatrial starts agents itself, so use"
            " `seatrial run` instead."
        ) from error
    # Before the handshake: after it, a node that waits for a resolver would count as silent.
    peers = os.environ.get("SEATRIAL_PEER", "").split()[:: 1 if node_rank else -1]
    address = os.environ.pop("SEATRIAL_ADDRESS", "") or _address(peers, needed=host == "fd")
    if os.environ.get(MARK) == "route" and address and (interface := interface_to(address)):
        choose(os.environ, interface)
    try:
        control = _attach(numbers[0], token, node_rank) if host == "fd" else _connect(host, numbers, token, node_rank)
    except MungeError as error:
        ways = ways_to_secret("slurm" if len(numbers) > 1 else "--on slurm")
        raise SeatrialError(
            f"node {node_rank} ({platform.node()}) cannot get the secret of its job by munge: {error}; {ways}."
        ) from error
    return Agent(
        control=control,
        job=job,
        address=address or (control.connection.getsockname()[0] if host != "fd" else "127.0.0.1"),
        node_rank=node_rank,
        cores=cores,
        folder=os.environ.get("SEATRIAL_KEEP") or None,
        local_rank=local_rank,
        local_world_size=local_world_size,
    )


def _attach(descriptor: int, token: str, node_rank: int) -> ControlConnection:
    """Join over a connection that the conductor opened. Raises SeatrialError."""
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    try:
        control = _shake_hands(connection, token, node_rank)
    except OSError as error:
        raise SeatrialError(
            f"node {node_rank} ({platform.node()}) received no answer from its controller ({error})."
        ) from error
    if control is None:
        raise SeatrialError(
            f"node {node_rank} ({platform.node()}): the peer on its connection failed authentication (another job's"
            " controller?)."
        )
    # ssh protects the lines, and tags would only cost time.
    return replace(control, tags_sent=None, tags_received=None)


def _address(peers: list[str], *, needed: bool) -> str:
    """Return the address by which other nodes reach this one: that of the route to the first peer that has one.

    If it is ``needed``, over ssh, each peer is what its host said of itself, so the routes to most of them decide, and
    where these are equally many, the address by which ssh came. Empty without any route; raises SeatrialError then if
    the address is needed.
    """
    routes: list[str] = []
    errors: list[str] = []
    until = time.monotonic() + _RESOLVE_S
    for peer in peers:
        try:
            own_address = _route_to(peer, max(_LEAST_RESOLVE_S, until - time.monotonic()))
        except OSError as error:
            errors.append(f"{platform.node()} has no route to {peer}, another node of this job ({error}).")
            continue
        # A host may have an address for itself that no other host reaches.
        if not is_loopback(own_address):
            routes.append(own_address)
            if not needed:  # the launcher knows its hosts
                break
    if errors and not routes and needed:
        raise SeatrialError(errors[0])
    by_ssh = os.environ.get("SSH_CONNECTION", "").split(" ")[2:3] if needed else []
    return max(routes, key=lambda route: (routes.count(route), route in by_ssh), default="")


def _route_to(peer: str, timeout_s: float) -> str:
    """Return this host's address on the route to a peer, whose name is looked up for at most ``timeout_s``.

    Raises OSError without a route.
    """
    family, kind, _, _, address = query(peer, 9, timeout_s=timeout_s, kind=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # no packet leaves
        return str(probe.getsockname()[0])


def _connect(host: str, ports: list[int], token: str, node_rank: int) -> ControlConnection:
    """Return the connection to the conductor of this job.

    Another job's conductor, or a stranger, may listen on one of the ports, so the agent obeys no peer that has not
    proved that it knows the token. Raises SeatrialError when no conductor of this job answers in time, and MungeError
    where munge should bring the token and does not work.

    All agents of a machine should join by the same address of the conductor: from where they connect tells it what
    shares a machine. So an agent that finds it at a later address of its name looks once more at the earlier ones.

    The time to join is that for all addresses and ports: none is tried after it. With one port the agent gives up
    sooner, unless somebody there has closed a connection: who is silent, or answers wrongly, would be so later, too.
    """
    process = secrets.token_hex(16)
    search = AddressSearch(host, node_rank, environ=os.environ)
    # With one port the controller started us, so it listens, if perhaps busy with strangers; with several ports we may
    # be here before it. A name may not be known yet.
    expected = len(ports) == 1 and search.addresses()
    began = time.monotonic()
    # One address may be behind a firewall that drops all, so each one has its time.
    until = began + (_ANSWER_TIMEOUT_S * len(expected) if expected else join_timeout_s())
    answer_s = _FIRST_ANSWER_S if len(ports) > 1 else _ANSWER_TIMEOUT_S
    report_at_s = _REPORT_S if in_pod(os.environ) else math.inf
    reason: object = "nobody answered"
    stranger = ""
    reached: set[str] = set()
    vacant: set[tuple[str, int]] = set()
    while True:
        failed: set[tuple[str, int]] = set()
        hosts = search.addresses()
        addresses = [(address, port) for address in hosts for port in ports]
        reason = reason if search.error is None else search.error
        for address, port in _in_turn(addresses, vacant, until):
            vacant.discard((address, port))
            failed.discard((address, port))
            try:
                connection = socket.create_connection((address, port), timeout=answer_s)
            except OSError as error:
                reason = error
                failed.add((address, port))
                if isinstance(error, ConnectionRefusedError):
                    reached.add(address)
                    vacant.add((address, port))
                continue
            reached.add(address)
            # It may not have listened yet when we were there, or not have answered in time. Where nothing ever came
            # back, as behind a firewall, another look would only cost time.
            earlier = [one for one in hosts[: hosts.index(address)] if one in reached]
            answered = True
            try:
                control = _shake_hands(
                    connection, token, node_rank, answer_s, port=port, joins=not earlier, process=process
                )
            except _ClosedError as error:
                stranger, control, answered = str(error), None, False
                # The controller may give up before us: it has the reason from this output then.
                report_at_s = min(report_at_s, until - began)
                until = max(until, began + join_timeout_s())
            except OSError as error:
                reason, control, answered = error, None, False
            except MungeError:
                connection.close()
                raise
            if control is not None and not earlier:
                return control
            connection.close()
            if control is not None:
                longer_s = min(2 * answer_s, _ANSWER_TIMEOUT_S)
                if control := _connect_again(earlier, address, port, token, node_rank, longer_s, until, process):
                    return control
            elif answered:
                stranger = (
                    "who answers there does not know the secret of this job; are SEATRIAL_TOKEN and"
                    " ~/.config/seatrial/token the same on all nodes?"
                )
        answer_s = min(2 * answer_s, _ANSWER_TIMEOUT_S)
        # Where one was closed, a crowd may let none through for a while.
        gone = vacant if stranger else failed
        if time.monotonic() > until or (expected and len(gone) == len(addresses)):
            raise SeatrialError(
                f"node {node_rank} ({platform.node()}) found no controller of its job at {host}:{ports[0]}"
                f" ({stranger or reason})."
            )
        if (waited_s := time.monotonic() - began) >= report_at_s:
            report_at_s = 2 * waited_s
            line = f"node {node_rank} waits for {host}:{ports[0]} for {waited_s:.0f} s ({stranger or reason})"
            print(f"seatrial: {line}", file=sys.stderr, flush=True)
        time.sleep(0.2)


def _in_turn(
    places: list[tuple[str, int]], vacant: Collection[tuple[str, int]], until: float
) -> Iterator[tuple[str, int]]:
    """Yield each place that is to be visited; after a long visit, the ``vacant`` ones again. None after ``until``."""
    for place in places:
        began = time.monotonic()
        if began > until:
            return
        yield place
        if time.monotonic() - began >= _LONG_VISIT_S:
            yield from (one for one in places if one in vacant and time.monotonic() <= until)


def _connect_again(
    earlier: list[str],
    found_at: str,
    port: int,
    token: str,
    node_rank: int,
    answer_s: float,
    until: float,
    process: str,
) -> ControlConnection | None:
    """Return the connection to the conductor at the first of the addresses where it answers; None: at none.

    ``until``: the moment of ``time.monotonic()`` after which it is asked only where it was found.
    """
    for address in (*earlier, found_at):
        if address != found_at and time.monotonic() > until:
            continue
        try:
            connection = socket.create_connection((address, port), timeout=answer_s)
        except OSError:
            continue
        with contextlib.suppress(OSError):
            if control := _shake_hands(connection, token, node_rank, answer_s, port=port, process=process):
                return control
        connection.close()
    return None


def _shake_hands(
    connection: socket.socket,
    token: str,
    node_rank: int,
    answer_s: float = _ANSWER_TIMEOUT_S,
    *,
    port: int = 0,
    joins: bool = True,
    process: str = "",
) -> ControlConnection | None:
    """Return the connection after the handshake. None: no valid proof came.

    Raises _ClosedError, another OSError for no answer, and MungeError.

    ``port``: to which it leads. A neighbor who listens there would pass on what the conductor says at another one.
    ``joins``: whether to send the proof of this agent, with which it joins; else only the conductor proves itself.
    ``process``: the random text of this one, with which the conductor knows it again; empty: it does not try again.
    """
    nonce = secrets.token_hex(16)
    hello = Hello(kind="hello", nonce=nonce, node_rank=node_rank)
    with _saying("who listens there closed the connection before it answered"):
        connection.sendall(b"".join(encode(hello)))
        first, received = _first_line(connection, answer_s)
    answer = cast("ConductorProof", Decoder().line(first) or {})
    challenge = answer.get("challenge")
    run = run_of_agent_token(token)
    until = time.monotonic() + _MUNGE_S
    if run is not None:
        credential = answer.get("credential")
        sent = read_credential(token_of(run), credential, within_s=_MUNGE_S) if isinstance(credential, str) else None
        if sent is None:
            return None
        token = sent.text
    if not isinstance(challenge, str) or not proves(
        answer.get("proof"), token, "conductor", nonce, challenge, node_rank, port
    ):
        return None
    if joins:
        own_proof = AgentProof(
            kind="proof", proof=proof(token, "agent", nonce, challenge, node_rank, process=process), process=process
        )
        if run is not None:
            own_proof["credential"] = make_credential(PROOF, own_proof["proof"], within_s=until - time.monotonic())
        # Strangers may have taken its place among those that the controller waits for, or it takes it for another node.
        with _saying("the controller closed the connection after the proof of this agent; see its report"):
            connection.sendall(b"".join(encode(own_proof)))
            received = received or _after_proof(connection, answer_s)
    return ControlConnection(
        connection=connection,
        received=received,
        tags_sent=LineTags(token, "agent", nonce, challenge, node_rank),
        tags_received=LineTags(token, "conductor", nonce, challenge, node_rank),
    )


def _after_proof(connection: socket.socket, answer_s: float) -> bytes:
    """Return what the conductor says to the proof of this agent, empty where that takes long.

    Raises ConnectionError where it has closed the connection.
    """
    connection.settimeout(answer_s)
    try:
        received = connection.recv(1 << 16)
    except TimeoutError:
        return b""
    if not received:
        raise ConnectionResetError
    return received


@contextlib.contextmanager
def _saying(how: str) -> Iterator[None]:
    """Raise _ClosedError with these words where the other end closes a connection within this context."""
    try:
        yield
    except ConnectionError as error:
        raise _ClosedError(how) from error


def _first_line(connection: socket.socket, answer_s: float) -> tuple[bytes, bytes]:
    """Return the first line, and the bytes after it.

    Raises ConnectionError where nothing came before the end, and TimeoutError when the line does not arrive in time.
    """
    until = time.monotonic() + answer_s
    data = b""
    while b"\n" not in data and len(data) <= MAX_LINE_BYTES:
        # For the whole line: a peer that sends a byte now and then must not delay us for hours.
        connection.settimeout(max(until - time.monotonic(), 0.001))
        piece = connection.recv(1 << 16)
        if not piece:
            break
        data += piece
    if not data:
        raise ConnectionResetError
    line, _, rest = data.partition(b"\n")
    return line, rest


if __name__ == "__main__":
    main()
