"""The thin loop around the machine: one listening socket, one connection an agent, a tick four times a second."""

from __future__ import annotations

import errno
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from seatrial.conductor.hearsay import HearsayError
from seatrial.conductor.records import Actions, Conductor
from seatrial.errors import SeatrialError
from seatrial.verdict.events import Source
from seatrial.verdict.handshake import proof, proves
from seatrial.verdict.wire import MAX_LINE_BYTES, Decoder, encode

__all__ = ["Server"]

_TICK_S = 0.25
_HELLO_TIMEOUT_S = 10.0
_MOST_STRANGERS = 256
_OUT_LIMIT_BYTES = 8 << 20
_READS_BYTES = 1 << 18


class _Peer:
    """One connection; ``node`` is None until it has proved that it knows the token."""

    __slots__ = ("adopted", "buffer", "claim", "decoder", "node", "out", "since", "socket")

    def __init__(self, connection: socket.socket, *, adopted: bool = False) -> None:
        self.socket = connection
        self.adopted = adopted
        """We made it ourselves, and who starts the agent at its other end may take long, and say something before."""
        self.node: int | None = None
        self.claim: tuple[int, str, str] | None = None
        """Node, nonce and challenge of one that has said hello and is to prove it."""
        self.since = time.monotonic()
        self.buffer = b""
        self.out = b""
        self.decoder = Decoder()


class Server:
    """Listens at once; ``serve`` conducts the trial and returns when it is over.

    ``keep`` is called with every event, the agents' and the conductor's own, in the order of arrival; ``hear`` with
    what is said besides: a rank's output and progress.
    """

    def __init__(
        self,
        host: str,
        token: str,
        keep: Callable[[dict[str, Any]], None],
        ports: Sequence[int] = (0,),
        hear: Callable[[dict[str, Any]], None] = lambda message: None,
    ) -> None:
        """``ports`` are tried in this order; 0: the system chooses. Raises SeatrialError when all are taken."""
        self._listener = _listen(host, ports)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.damaged = 0
        self._token = token
        self._keep = keep
        self._hear = hear
        self._peers: dict[int, _Peer] = {}
        self._strangers: set[_Peer] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    def serve(
        self, machine: Conductor, nodes: int, source: Source, between: Callable[[], str | tuple[int, str] | None]
    ) -> None:
        """Until the machine is over.

        ``between`` is called each tick: text interrupts the trial; (node, detail): that node is lost.
        """
        self._machine, self._nodes, self._source, self._over = machine, nodes, source, False
        next_tick = time.monotonic()
        while not self._over:
            for key, mask in self._selector.select(timeout=max(0.0, min(_TICK_S, next_tick - time.monotonic()))):
                if key.data is None:
                    self._accept()
                elif mask & selectors.EVENT_WRITE:
                    self._flush(key.data)
                else:
                    self._read(key.data)
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + _TICK_S
                self._shed_strangers(now)
                news = between()
                if isinstance(news, str):
                    self._carry_out(machine.interrupt(news, now))
                elif news is not None:
                    self._carry_out(machine.lost(*news, now))
                self._carry_out(machine.tick(now))
        self.close()

    def adopt(self, connection: socket.socket, first: bytes) -> None:
        """Take a connection that we made, and send this on it; an agent will say hello there, or nobody."""
        connection.setblocking(False)
        peer = _Peer(connection, adopted=True)
        peer.out = first
        self._strangers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)

    def close(self) -> None:
        """Give all sockets back."""
        for peer in [*self._peers.values(), *self._strangers]:
            if peer.node is not None and peer.socket.fileno() >= 0:
                self.damaged += peer.decoder.damaged
            peer.socket.close()
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                if all(peer.adopted for peer in self._strangers):
                    # Until the next tick: whoever knocks meanwhile would keep the loop from everything else.
                    self._selector.unregister(self._listener)
                self._make_room()
            return
        if len(self._strangers) >= _MOST_STRANGERS:
            self._make_room()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = _Peer(connection)
        self._strangers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _make_room(self) -> None:
        """Send a stranger away: of those who have said nothing the oldest, as a real agent says hello at once."""
        if strangers := [peer for peer in self._strangers if not peer.adopted]:
            self._drop(min(strangers, key=lambda peer: (peer.claim is not None, peer.since)))

    def _shed_strangers(self, now: float) -> None:
        if self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ, None)
        for peer in [peer for peer in self._strangers if now - peer.since > _HELLO_TIMEOUT_S]:
            if not peer.adopted:
                self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        self._strangers.discard(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()

    def _read(self, peer: _Peer) -> None:
        if peer.socket.fileno() < 0:
            return  # dropped by what came before it in the same round
        try:
            data = peer.socket.recv(_READS_BYTES if peer.node is not None else MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, peer.buffer = (peer.buffer + data).split(b"\n")
        if not data or len(peer.buffer) > MAX_LINE_BYTES:
            self._lose(peer)
            return
        for line in lines:
            message = peer.decoder.line(line)
            if peer.node is None:
                if peer.adopted and message is None:
                    continue  # what a login script says
                # Each line must be whole and the right one: a stranger gets no memory to fill with parts of messages.
                welcome = self._admit if peer.claim else self._greet
                if message is None or not welcome(peer, message):
                    self._drop(peer)
                    return
            elif message is not None and message.get("kind") == "time":
                self._tell_time(peer, message)
            elif message is not None:
                self._take_in(peer.node, message)

    def _take_in(self, node: int, message: dict[str, Any]) -> None:
        actions, sound = Actions(), True
        try:
            actions = self._machine.message(node, message, time.monotonic())
        except HearsayError:
            self.damaged += 1
            return
        except (KeyError, TypeError, ValueError, AttributeError):
            sound = False  # another version, or damage; kept all the same, as the fold says what is wrong with it
        try:
            (self._keep if "seq" in message else self._hear)(message)
        except (KeyError, TypeError, ValueError, AttributeError):
            sound = False  # written again it is too large, or it makes no sense
        self.damaged += not sound
        self._carry_out(actions)

    def _tell_time(self, peer: _Peer, message: dict[str, Any]) -> None:
        """At once and past the machine: the shorter the way, the more the answer tells."""
        number = message.get("number")
        if not isinstance(number, int):
            self.damaged += 1
            return
        peer.out += b"".join(encode({"kind": "time", "number": number, "at": time.time()}))
        self._flush(peer)

    def _greet(self, peer: _Peer, message: dict[str, Any]) -> bool:
        node, nonce = message.get("node_rank"), message.get("nonce")
        if message.get("kind") != "hello" or type(node) is not int or not 0 <= node < self._nodes:
            return False
        if not isinstance(nonce, str) or node in self._peers:
            return False
        challenge = secrets.token_hex(16)
        peer.claim = (node, nonce, challenge)
        told = proof(self._token, "conductor", nonce, challenge, node)
        peer.out += b"".join(encode({"kind": "proof", "challenge": challenge, "proof": told}))
        self._flush(peer)
        return True

    def _admit(self, peer: _Peer, message: dict[str, Any]) -> bool:
        assert peer.claim is not None
        node, nonce, challenge = peer.claim
        if node in self._peers or not proves(message.get("proof"), self._token, "agent", nonce, challenge, node):
            return False
        peer.node = node
        self._strangers.discard(peer)
        self._peers[node] = peer
        self._carry_out(self._machine.joined(node, time.monotonic()))
        return True

    def _lose(self, peer: _Peer) -> None:
        self._drop(peer)
        self.damaged += peer.decoder.damaged
        if peer.node is not None:
            # The entry stays: nobody may take the place of a node that was lost.
            self._carry_out(self._machine.lost(peer.node, "the control connection was closed", time.monotonic()))

    def _carry_out(self, actions: Actions) -> None:
        for kind, payload in actions.events:
            self._keep(self._source.event(kind, **payload))
        for node, message in actions.send:
            peer = self._peers.get(node)
            if peer is not None and peer.socket.fileno() >= 0:
                peer.out += b"".join(encode(message))
                self._flush(peer)
        self._over = self._over or actions.over

    def _flush(self, peer: _Peer) -> None:
        try:
            sent = peer.socket.send(peer.out) if peer.out else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            peer.out = b""  # the loss is told by the read side
            return
        peer.out = peer.out[sent:]
        if len(peer.out) > _OUT_LIMIT_BYTES:
            peer.out = b""  # it reads nothing any more; its silence is noticed by the machine
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.out else 0)
        self._selector.modify(peer.socket, mask, peer)


def _listen(host: str, ports: Sequence[int]) -> socket.socket:
    for port in ports:
        try:
            return socket.create_server((host, port), backlog=4096)
        except OSError as error:
            why = error
    raise SeatrialError(f"none of the ports {', '.join(map(str, ports))} is free for the control connection ({why}).")
