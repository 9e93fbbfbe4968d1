"""The loop around a conductor: a listening socket, a connection for each agent, a tick four times a second."""

from __future__ import annotations

import errno
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from seatrial.conductor.actions import Actions, Conductor
from seatrial.conductor.clock import clock_s
from seatrial.conductor.event_allowance import BURST_BYTES, BYTES_PER_S
from seatrial.conductor.node_addresses import is_unknown, may_be, place_of, source_of, surely_another
from seatrial.conductor.origin import NumberError, OriginError
from seatrial.conductor.pauses import Pauses
from seatrial.conductor.peer import Peer
from seatrial.conductor.reading_turns import ReadingTurns
from seatrial.conductor.strangers import Strangers
from seatrial.errors import SeatrialError
from seatrial.protocol.commands import AgentProof, ConductorProof, Hello, TimeAnswer
from seatrial.protocol.events import NoteEvent, Source
from seatrial.protocol.handshake import proof, proves
from seatrial.protocol.line_tags import CHANGED, TAG_CHARS, LineTags
from seatrial.protocol.timeouts import PROOF_S
from seatrial.protocol.wire import MAX_LINE_BYTES

_TICK_S = 0.25
_MAX_STRANGERS = 256
"""Connections that have not proved that they know the token."""
_MAX_UNREAD_BYTES = 8 << 20
"""Bytes for an agent that reads nothing; beyond it they are dropped."""
_MAX_TIME_QUESTIONS = 64
"""Questions of one agent that are answered; it asks 8 (``agent/clock_offset.py``)."""
_READ_BYTES = 1 << 16
"""Received at once; taking it in may need several turns."""
_TURN_S = 0.02
"""The turn of one agent takes so long, or as long as one message. A round of turns ends at the next tick, since agents
take us for dead after 30 s without a heartbeat; an agent that had no turn is first in the next round."""
_SOCKET_BYTES = 256 << 10
"""Bytes that a socket holds. Those of all agents are taken in before a deadline is judged. (Linux doubles it.)"""
_BACKLOG = 4_096
_MAX_ERROR_CHARS = 200
_MAX_SHOWN_NODES = 8
_BOUNDED_ELSEWHERE = ("log", "output", "status")
"""Messages of ranks that print, and of healthy ones, without end; they are not kept in memory."""
_LINE_COST_BYTES = MAX_LINE_BYTES
"""A line that completes no message: a part, until its message is whole, or what a login script prints to ssh. One read
brings 65,536 empty lines."""
_FLOOD = f"it sent more events than any check needs ({BURST_BYTES >> 20} MiB, then {BYTES_PER_S >> 10} KiB a second)"
_WRONG_FIELD = "a message with a wrong field"
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError)
"""A message of another version, or damage, raises one of these; the agent stays."""


class Server:
    """Listens from the start; ``serve`` conducts the run and returns when it is over.

    ``on_event`` is called with every event, the agents' and the conductor's, in the order of arrival; ``on_message``
    with every other message of an agent, such as a rank's output and progress.
    """

    def __init__(
        self,
        host: str,
        token_of: Callable[[int], str],
        on_event: Callable[[dict[str, Any]], None],
        ports: Sequence[int] = (0,),
        on_message: Callable[[dict[str, Any]], None] = lambda message: None,
        credential: str = "",
        addresses: Mapping[int, Collection[str]] = MappingProxyType({}),
    ) -> None:
        """Listen on the first free of ``ports``; 0: the system chooses. Raises SeatrialError when none is free.

        ``token_of``: returns the token that a node must know; one for all, or one for each. ``credential``: that of
        munge with this token, for agents that have none; they answer with another one. ``addresses``: those from which
        each node may connect, where they are known (``node_addresses.py``).
        """
        self._listener = _listen(host, ports)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.damaged = 0
        """Damaged lines and malformed messages so far."""
        self._token_of = token_of
        self._credential = credential
        self._addresses = addresses
        self._on_event = on_event
        self._on_message = on_message
        self._peers: dict[int, Peer] = {}
        self._strangers = Strangers()
        self._claims_noted: set[tuple[int, ...]] = set()
        """Nodes that a process claimed to be which it is not; twice where another process had joined as that node."""
        self._damage_noted: set[int] = set()
        """Nodes that sent what no agent sends."""
        self._door = Peer(self._listener)
        """The listener, which is read by accepting connections."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._door)
        self._waiting: set[Peer] = set()
        """Peers with lines that were received and not taken in."""
        self._turns = ReadingTurns(clock_s())
        self._pauses = Pauses()

    def serve(
        self,
        conductor: Conductor,
        nodes: int,
        source: Source,
        on_idle: Callable[[Collection[int]], str | tuple[int, str] | None],
    ) -> None:
        """Conduct until the conductor is over.

        ``on_idle`` is called at each tick with the nodes whose agents are connected: a text interrupts the run, (node,
        detail) reports that node as lost.
        """
        self._conductor, self._nodes, self._source, self._over = conductor, nodes, source, False
        next_tick = clock_s()
        with self._pauses.watched():
            while not self._over:
                self._read_round(next_tick)
                if clock_s() >= next_tick:
                    next_tick = clock_s() + _TICK_S
                    self._tick(on_idle(self._connected()))
        self.close()

    def _tick(self, news: str | tuple[int, str] | None) -> None:
        self._shed_strangers()
        if isinstance(news, str):
            self._perform(self._conductor.interrupt(news, self._now()))
        elif news is not None:
            self._perform(self._conductor.lost(*news, self._now()))
        self._perform(self._conductor.tick(self._now(), self._turns.read_until))

    def _now(self) -> float:
        """Return the time for a call of the conductor, which hears first whether this process was paused."""
        if missed_s := self._pauses.missed_s():
            self._conductor.paused(missed_s)
        return clock_s()

    @property
    def members(self) -> Collection[int]:
        """Return the nodes that have joined, those that were lost since then, too."""
        return self._peers.keys()

    @property
    def credentials(self) -> Mapping[int, tuple[str, str]]:
        """Return the proof of each node that joined with a credential of munge, and that credential."""
        return {node: peer.credential for node, peer in self._peers.items() if peer.credential}

    def address_notes(
        self, known: Mapping[int, Collection[str]], made_at: Mapping[int, str | None] = MappingProxyType({})
    ) -> list[NoteEvent]:
        """Return notes about the nodes that are surely not what they say, and about those whose address nobody knows.

        A node may use addresses that nobody gives (several interfaces, a translation of addresses), so that only the
        address of another node is a contradiction.

        Args:
            known: the addresses of each node as the launcher or the cluster gives them, perhaps only at the end.
            made_at: the address of the host on which the credential of a node was made; empty: nothing says that;
                None: it is not a credential of that node.
        """
        notes = []
        for node, address in self._peer_addresses():
            did = _contradiction(node, address, made_at.get(node, ""), known)
            if not did:
                continue
            text = f"node {node} {did}; what reports as node {node} is not what it says, so nothing of it can be"
            notes.append(NoteEvent(kind="note", severity="error", text=f"{text} trusted", untrusted=[node]))
        places = {node: self._peers[node].place for node, _ in self._peer_addresses()}
        unknown = [node for node, at in self._peer_addresses() if is_unknown(at, places[node], node, known)]
        if unknown := [node for node in unknown if made_at.get(node, "") not in known.get(node, ())]:
            notes.append(NoteEvent(kind="note", severity="info", text=_unknown(unknown)))
        return notes

    def _peer_addresses(self) -> list[tuple[int, str]]:
        return [(node, peer.address) for node, peer in sorted(self._peers.items()) if peer.address]

    def attach(self, connection: socket.socket, first: bytes, node: int) -> None:
        """Take a connection that we made to a node and send ``first`` on it; its agent will say hello there."""
        connection.setblocking(False)
        peer = Peer(connection, attached=node)
        peer.out = first
        self._strangers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)

    def close(self) -> None:
        """Close all sockets."""
        for peer in [*self._peers.values(), *self._strangers]:
            peer.socket.close()
        self._listener.close()
        self._selector.close()

    def _connected(self) -> Collection[int]:
        return {node for node, peer in self._peers.items() if peer.socket.fileno() >= 0}

    def _read_round(self, until: float) -> None:
        """Wait for something to read, and read: strangers, then newcomers, then agents in turn until that time."""
        at = clock_s()
        ready = self._selector.select(timeout=0.0 if self._waiting else max(0.0, min(_TICK_S, until - at)))
        readable = {key.data for key, mask in ready if mask & selectors.EVENT_READ} | self._waiting
        # Once all have joined nobody waits for those at the door.
        awaited = readable if len(self._peers) < self._nodes else readable - {self._door}
        self._turns.begin_round(at, {peer: _capacity(peer) for peer in awaited})
        for key, mask in ready:
            if mask & selectors.EVENT_WRITE:
                self._flush(key.data)
        strangers = {peer for peer in readable if peer in self._strangers}
        for peer in strangers:
            self._read(peer)
        # After them: what a new connection displaces may have said hello by now.
        if self._door in readable:
            self._accept()
        until = max(until, clock_s() + _TURN_S)
        for peer in self._turns.in_turn(readable - strangers - {self._door}):
            self._read(peer)
            if clock_s() >= until:
                break

    def _accept(self) -> None:
        began = clock_s()
        is_empty = False
        while not is_empty and clock_s() < began + _TURN_S:
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                is_empty = True
            except OSError as error:  # without room for one more, or that connection was reset
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._make_room():
                    # Until the next tick: otherwise new connections would keep the loop from everything else.
                    self._selector.unregister(self._listener)
                    break
            else:
                # A listener for both families names a host of IPv4 by its IPv6 form.
                self._take_newcomer(connection, address[0].removeprefix("::ffff:"))
        self._turns.took(self._door, 0, is_empty=is_empty)
        self._turns.end(self._door, began, clock_s())

    def _take_newcomer(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        peer = Peer(connection, address, source_of(address))
        self._strangers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        self._turns.add(peer, self._door, _SOCKET_BYTES)
        if self._strangers.num_accepted > _MAX_STRANGERS:
            self._make_room()

    def _make_room(self) -> bool:
        """Drop a stranger. Returns False where there is none that may be dropped."""
        while (peer := self._strangers.one_to_hear()) is not None:
            self._read(peer)  # its hello may lie there
            if peer in self._strangers and peer.claim is None:
                self._drop(peer)
            if peer not in self._strangers:
                return True
        peer = self._strangers.one_to_drop(clock_s())
        if peer is not None:
            self._drop(peer)
        return peer is not None

    def _shed_strangers(self) -> None:
        if self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ, self._door)
        read_until = self._turns.read_until
        for peer in [peer for peer in self._strangers if read_until - peer.since > PROOF_S]:
            if peer.attached is None:
                self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        self._strangers.discard(peer)
        self._waiting.discard(peer)
        self._turns.forget(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()

    def _read(self, peer: Peer) -> None:
        """Receive and take in what a peer has sent, for one turn."""
        if peer.socket.fileno() < 0:
            return  # dropped by an earlier event of the same round
        self._waiting.discard(peer)
        began = clock_s()
        if not peer.lines:
            self._receive(peer)
        while peer.lines and peer.socket.fileno() >= 0:
            self._take_line(peer, peer.lines.popleft())
            if clock_s() >= began + _TURN_S:
                break
        if peer.socket.fileno() >= 0:
            self._turns.end(peer, began, clock_s())
            if peer.lines:
                self._waiting.add(peer)

    def _receive(self, peer: Peer) -> None:
        most_bytes = _READ_BYTES if peer.node is not None else MAX_LINE_BYTES
        try:
            data = peer.socket.recv(most_bytes)
        except BlockingIOError:
            self._turns.took(peer, 0, is_empty=True)
            return
        except OSError:
            data = b""
        if not data:
            self._lose(peer)
            return
        self._turns.took(peer, len(data), is_empty=len(data) < most_bytes)
        peer.received(data)
        if peer.attached is not None and peer.node is None:
            # The output of a login script, of any length: the agent ends its line before it says hello.
            peer.buffer = peer.buffer[-MAX_LINE_BYTES:]
        if len(peer.buffer) > MAX_LINE_BYTES + (TAG_CHARS if peer.tags_received else 0):
            self._lose(peer, CHANGED if peer.tags_received else "it sent a line longer than any of an agent")

    def _take_line(self, peer: Peer, received: bytes) -> None:
        line = peer.tags_received.remove(received) if peer.tags_received else received
        if line is None:
            self.damaged += 1
            self._lose(peer, CHANGED)
            return
        damaged_before = peer.decoder.damaged
        message = peer.decoder.line(line)
        if peer.decoder.damaged > damaged_before:
            peer.count(max(peer.decoder.kept_bytes, _LINE_COST_BYTES))
        elif peer.node is not None and message is not None:
            peer.allowance.give_back(_LINE_COST_BYTES * (peer.decoder.num_parts - 1))
        elif peer.node is not None:
            peer.count(_LINE_COST_BYTES)
        if peer.floods:
            self._lose(peer, _FLOOD)
            return
        if peer.node is not None and peer.decoder.damaged > damaged_before:
            self._count_damage(peer.node, "a line that is cut or changed")
        if peer.node is None:
            if peer.attached is not None and message is None:
                return  # the output of a login script
            # Each line must be a whole message of the handshake: a stranger gets no memory for parts of messages.
            take_next = self._admit if peer.claim else self._greet
            if message is None or not take_next(peer, message):
                self._drop(peer)
        elif message is not None:
            if message.get("kind") == "time":
                self._answer_time(peer, peer.node, message)
            else:
                self._take_in(peer, peer.node, message)

    def _take_in(self, peer: Peer, node: int, message: dict[str, Any]) -> None:
        actions, sound = Actions(), True
        counts = "seq" in message or message.get("kind") not in _BOUNDED_ELSEWHERE
        if counts and not peer.count_last():
            self._lose(peer, _FLOOD)
            return
        try:
            try:
                actions = self._conductor.message(node, message, self._now())
            except OriginError:
                self._count_damage(node, "a message in the name of another node or rank, or of the controller")
                return
            except NumberError:
                self._count_damage(node, "an event that came after one with its number or a later one")
                return
            except _MALFORMED:
                sound = False  # another version, or damage; recorded all the same: the fold says what is wrong with it
            try:
                (self._on_event if "seq" in message else self._on_message)(message)
            except _MALFORMED:
                sound = False  # it cannot be encoded again, or a field of it is wrong
        except Exception as error:  # one agent must not end the job, whatever it sends
            self._count_damage(node, _WRONG_FIELD)
            what = f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]
            self._lose(peer, f"it sent a message that the controller cannot process ({what})")
            return
        if not sound:
            self._count_damage(node, _WRONG_FIELD)
        if message.get("kind") == "end" and message.get("src") == f"node{node}":
            peer.has_ended = peer.asked_to_stop
        self._perform(actions)

    def _answer_time(self, peer: Peer, node: int, message: dict[str, Any]) -> None:
        """Answer at once and not through the conductor: a shorter round trip makes the offset more accurate."""
        number = message.get("number")
        peer.time_questions += 1
        if peer.time_questions > _MAX_TIME_QUESTIONS:
            self._lose(peer, f"it asked for the time more than {_MAX_TIME_QUESTIONS} times, and no agent does")
            return
        if not isinstance(number, int):
            self._count_damage(node, _WRONG_FIELD)
            return
        peer.put(TimeAnswer(kind="time", number=number, at=time.time()))
        self._flush(peer)

    def _greet(self, peer: Peer, message: dict[str, Any]) -> bool:
        """Answer a valid ``hello``. Returns whether it was one."""
        if message.get("kind") != "hello":
            return False
        hello = cast("Hello", message)
        node, nonce = hello.get("node_rank"), hello.get("nonce")
        if type(node) is not int or not 0 <= node < self._nodes:
            return False
        if not isinstance(nonce, str) or peer.attached not in (None, node):
            return False
        if self._has_ended(node):
            return False  # without an answer it looks for its own controller again
        challenge = secrets.token_hex(16)
        peer.claim = (node, nonce, challenge)
        self._strangers.greeted(peer, clock_s())
        port = self.port if peer.attached is None else 0
        own_proof = proof(self._token_of(node), "conductor", nonce, challenge, node, port)
        answer = ConductorProof(kind="proof", challenge=challenge, proof=own_proof)
        if self._credential:
            answer["credential"] = self._credential
        peer.put(answer)
        self._flush(peer)
        return True

    def _admit(self, peer: Peer, message: dict[str, Any]) -> bool:
        """Have an agent with a valid proof join. Returns whether it had one."""
        assert peer.claim is not None
        node, nonce, challenge = peer.claim
        answer = cast("AgentProof", message)
        token, process = self._token_of(node), answer.get("process", "")
        if not isinstance(process, str):
            return False
        if not proves(answer.get("proof"), token, "agent", nonce, challenge, node, process=process):
            return False
        try:
            is_there = may_be(peer.socket, node, self._addresses)
            # A connection that we made leads to the host of the request.
            peer.place = place_of(peer.socket) if peer.attached is None else ""
            if peer.attached is None:
                peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # it was reset after it had sent its proof
            return False
        if not is_there:
            known = " or ".join(sorted(self._addresses[node]))
            self._note_claim(
                node,
                f"a process from {peer.address} claims to be node {node}, which is at {known}, and was sent away; if"
                " its host connects from this address, give this address in --hosts or --hostfile",
            )
            return False
        made = answer.get("credential")
        if self._credential and not (isinstance(made, str) and made):
            self._note_claim(
                node,
                f"a process from {peer.address} that knows the secret of the run claims to be node {node} without a"
                " credential of munge, and was sent away; is the same version of seatrial on all nodes?",
            )
            return False
        if self._has_ended(node):
            return False
        if node in self._peers and process and process == self._peers[node].process:
            # Somebody has cut its first connection, perhaps on its side alone.
            if self._peers[node].socket.fileno() >= 0:
                self._lose(self._peers[node])
            return False
        if node in self._peers:
            first, second = (f" from {one.address}" if one.address else "" for one in (self._peers[node], peer))
            self._note_claim(
                node,
                f"two processes claim to be node {node}: the first one{first} joined, the second one{second} was sent"
                " away; one of them is not what it says, so nothing that node reported can be trusted",
                untrusted=[node],
            )
            return False
        if peer.attached is None:
            peer.tags_received = LineTags(token, "agent", nonce, challenge, node)
            peer.tags_sent = LineTags(token, "conductor", nonce, challenge, node)
        if self._credential:
            peer.credential = (str(answer["proof"]), str(made))
        peer.process = process
        peer.admit(node)
        self._strangers.discard(peer)
        self._peers[node] = peer
        self._perform(self._conductor.join(node, self._now(), peer.place))
        return True

    def _has_ended(self, node: int) -> bool:
        """Return whether a node's agent has come to its end.

        The next command of the same job step claims the node then, with the same secret, while other agents still end.
        """
        return node in self._peers and self._peers[node].has_ended

    def _note_claim(self, node: int, text: str, untrusted: Sequence[int] = ()) -> None:
        """Record that a process proved the token of a node which it is not, or which another process is, too."""
        if (node, *untrusted) not in self._claims_noted:
            self._claims_noted.add((node, *untrusted))
            self._note(text, untrusted)

    def _count_damage(self, node: int, what: str) -> None:
        """Count what no agent of ours sends; the first of each node is recorded, as it ends every hope of a PASS."""
        self.damaged += 1
        if node not in self._damage_noted:
            self._damage_noted.add(node)
            self._note(f"node {node} sent {what}, as no agent of this version does")

    def _note(self, text: str, untrusted: Sequence[int] = ()) -> None:
        if not self._over:  # the conductor's last event is recorded
            note = NoteEvent(kind="note", severity="error", text=text)
            if untrusted:
                note["untrusted"] = [*untrusted]
            self._on_event(self._source.event(note))

    def _lose(self, peer: Peer, detail: str = "the control connection was closed") -> None:
        self._drop(peer)
        if peer.node is not None:
            # The entry stays: no other connection may take the place of a lost node.
            self._perform(self._conductor.lost(peer.node, detail, self._now()))

    def _perform(self, actions: Actions) -> None:
        # Before the events: to keep one may take long, and the deadline of what is asked here runs already.
        for node, command in actions.send:
            peer = self._peers.get(node)
            if peer is not None and peer.socket.fileno() >= 0:
                peer.asked_to_stop = peer.asked_to_stop or command["kind"] == "stop"
                peer.put(command)
                self._flush(peer)
        for event in actions.events:
            self._on_event(self._source.event(event))
        self._over = self._over or actions.over

    def _flush(self, peer: Peer) -> None:
        try:
            sent = peer.socket.send(peer.out) if peer.out else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            peer.out = b""  # the next read reports the loss
            return
        peer.out = peer.out[sent:]
        if len(peer.out) > _MAX_UNREAD_BYTES:
            peer.out = b""  # it reads nothing any more; the conductor will find it silent
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.out else 0)
        self._selector.modify(peer.socket, mask, peer)


def _contradiction(node: int, address: str, made: str | None, known: Mapping[int, Collection[str]]) -> str:
    """Return what a node did that only another one would do; empty in doubt. Arguments as for ``address_notes``."""
    own = f"and node {node} is at {' or '.join(sorted(known.get(node, ())))}"
    if others := surely_another(address, node, known):
        return f"joined from {address}, which is the address of node {others[0]}, {own}"
    if made is None:
        return "joined with a credential of munge that it did not make itself"
    if others := surely_another(made, node, known):
        return f"joined with a credential that munge made at {made}, which is the address of node {others[0]}, {own}"
    return ""


def _unknown(nodes: Sequence[int]) -> str:
    shown = ", ".join(map(str, nodes[:_MAX_SHOWN_NODES])) + (", ..." if len(nodes) > _MAX_SHOWN_NODES else "")
    return (
        f"node{'s' * (len(nodes) > 1)} {shown} joined from an address that the launcher does not give, so only the"
        " secret of the run says which node that is"
    )


def _listen(host: str, ports: Sequence[int]) -> socket.socket:
    """Listen on one address; an empty host: on all, those of IPv6 too, as hosts may have no others."""
    is_dual = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual else socket.AF_INET
    for port in ports:
        try:
            listener = socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual)
        except OSError as error:
            why = error
            continue
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)  # each connection inherits it
        return listener
    raise SeatrialError(f"none of the ports {', '.join(map(str, ports))} is free for the control connection ({why}).")


def _capacity(peer: Peer) -> int:
    """Return how many bytes can lie unread in the socket of a peer."""
    return peer.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
