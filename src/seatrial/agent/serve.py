"""The loop of an agent: commands from the conductor, events from the ranks, deaths, and a status each second."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, BinaryIO

from seatrial.agent.clock import ClockOffset
from seatrial.agent.program import Relay, args_of, environ_of, free_port
from seatrial.agent.rank import RankProcess, Tail
from seatrial.agent.voice import Voice, append
from seatrial.probe.process import host_name, leave_launcher
from seatrial.verdict.wire import MAX_LINE_BYTES, Decoder

__all__ = ["Agent"]

_STATUS_S = 1.0
_CONDUCTOR_SILENT_S = 30.0
"""The conductor says something at least every two seconds; so long without a word and it is dead or stopped."""
_END_S = 5.0
_STACK_WAIT_S = 1.0
_MOST_TAILS = 64
"""Each is of 256 KiB at most; of a node that has started more lives of ranks the last ones count."""


class Agent:
    """One node's agent, joined to its conductor."""

    def __init__(
        self,
        *,
        connection: socket.socket,
        received: bytes,
        address: str,
        node_rank: int,
        cores: int,
        keep: str | None,
        local_rank: int | None = None,
        local_world_size: int | None = None,
    ) -> None:
        """``received``: what the conductor has said so far. ``address``: by which the other nodes reach this one.
        ``local_rank``: we are the agent of that one rank only.
        """
        self._received = received
        self._address = address
        self._local_rank = local_rank
        self._local_world_size = local_world_size
        self._connection = connection
        self._voice = Voice(connection)
        self._node_rank = node_rank
        self._cores = cores
        self._keep = keep
        self._ranks: dict[int, RankProcess] = {}
        self._tails: dict[str, Tail] = {}
        """Of the ranks whose output goes into no file here, by the name that it has at the conductor."""
        self._relays: dict[int, Relay] = {}
        """Of the ranks whose output is to be shown."""
        self._program = False
        self._mpi = False
        self._signals_told = 0
        self._decoder = Decoder()
        self._clock = ClockOffset()
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ, self._read_conductor)
        self._heard_at = time.monotonic()
        self._over = False

    def serve(self, stopped_by: list[int]) -> int:
        """Until told to stop (0), or until the conductor is lost or a signal comes (3)."""
        try:
            self._loop(stopped_by)
        except Exception as error:  # a mistake of ours, or no more descriptors: never a fault of the node
            text = f"the agent of node {self._node_rank} failed: {type(error).__name__}: {error}"
            self._voice.event("note", severity="error", text=text)
        self._end_ranks(stacks=())
        self._send_logs()
        if self._mpi:
            leave_launcher(os.environ)
        self._voice.event("end", told=bool(stopped_by))
        self._selector.close()
        self._voice.close()
        return 0 if self._over else 3

    def _loop(self, stopped_by: list[int]) -> None:
        self._take_in(self._received)
        next_status = time.monotonic() + _STATUS_S
        while not self._over:
            before = time.monotonic()
            for key, _ in self._selector.select(timeout=0.1):
                # A command that came first in this round may have ended the rank that this pipe belonged to.
                if self._selector.get_map().get(key.fileobj) is key:
                    callback: Callable[[], None] = key.data
                    callback()
            self._reap()
            now = time.monotonic()
            if now - before > 5.0:
                self._heard_at += now - before  # our own clock missed that time, so it is no silence of the conductor's
            if now >= next_status:
                self._send_status()
                next_status = now + _STATUS_S
            if self._is_told(stopped_by) or self._voice.lost or now - self._heard_at > _CONDUCTOR_SILENT_S:
                self._say_why(stopped_by)
                break

    def _is_told(self, stopped_by: list[int]) -> bool:
        """Whether a signal ends us now. The ranks of a program may save first: the conductor sees to that, and ends us.

        A second signal does not wait for it.
        """
        if len(stopped_by) != 1 or not self._program:
            return bool(stopped_by)
        if self._signals_told == 0:
            self._signals_told = 1
            self._voice.send({"kind": "signal", "number": stopped_by[0]})
        return False

    def _say_why(self, stopped_by: list[int]) -> None:
        if stopped_by:
            text = f"the agent of node {self._node_rank} was told to end by signal {stopped_by[0]}"
        elif self._voice.lost:
            text = f"node {self._node_rank} lost the control connection; its ranks were ended"
        else:
            silent = f"heard nothing from the controller for {_CONDUCTOR_SILENT_S:.0f} s"
            text = f"node {self._node_rank} {silent}; its ranks were ended"
        self._voice.event("note", severity="error", text=text)

    # Conductor -> agent

    def _read_conductor(self) -> None:
        try:
            data = self._connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._voice.lost = True
            return
        self._take_in(data)

    def _take_in(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MAX_LINE_BYTES:
            self._voice.lost = True  # whoever this is, it does not speak our language
            return
        for line in lines:
            message = self._decoder.line(line)
            if message is not None:
                self._obey(message)

    def _obey(self, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "welcome":
            self._begin(message)
            self._ask_time()
        elif kind == "time":
            if self._clock.answer(message):
                self._ask_time()
        elif kind == "port":
            self._voice.send({"kind": "port", "gen": message["gen"], "address": self._address, "port": free_port()})
        elif kind == "start":
            self._start(message)
        elif kind == "step":
            # With the step, not with the start: the last node to come is welcomed and started in one breath.
            for rank in message["ranks"]:
                if rank in self._ranks:
                    self._ranks[rank].send({**message, "clock": self._clock.best})
        elif kind == "terminate":
            for process in self._ranks.values():
                process.terminate()
        elif kind == "quit":
            for rank in self._ranks.values():
                rank.quit()
        elif kind == "peek":
            self._tell_stacks(message["ranks"])
        elif kind == "kill":
            self._end_ranks(stacks=message["stacks"])
            self._voice.send({"kind": "killed", "gen": message["gen"]})
        elif kind == "stop":
            self._over = True

    def _begin(self, message: dict[str, Any]) -> None:
        self._voice.begin(message["run"], f"node{self._node_rank}", self._keep)
        self._voice.event(
            "node",
            node=self._node_rank,
            hostname=host_name(),
            address=self._address,
            pid=os.getpid(),
            cores=self._cores,
        )

    def _start(self, message: dict[str, Any]) -> None:
        local_world_size = self._local_world_size or max(1, len(message["places"]))
        program = message.get("program")
        spawns = program["spawns"] if program else 0
        threads = max(1, self._cores // (spawns or local_world_size))
        environ = {**os.environ, **message["env"]}
        environ.setdefault("OMP_NUM_THREADS", str(threads))
        self._program = program is not None
        self._mpi = message.get("backend") == "mpi"
        for rank, place in message["places"]:
            local_rank = place if self._local_rank is None else self._local_rank
            log = self._open_log(rank, message["gen"])
            start = {
                "kind": "start",
                "run": message["run"],
                "gen": message["gen"],
                "rank": rank,
                "local_rank": local_rank,
                "local_world_size": local_world_size,
                "node_rank": self._node_rank,
                "node": host_name(),
                "address": self._address,
            }
            if program is None:
                worker = {name: message[name] for name in ("ranks", "device", "backend", "planted")}
                process = RankProcess({**start, **worker, "threads": threads}, environ, log)
            else:
                own = environ_of(environ, message, rank=rank, local_rank=local_rank, local_world_size=local_world_size)
                argv = [*program["argv"], *args_of(program["args"], own, spawns)]
                cwd = program["cwd"] if os.access(program["cwd"], os.X_OK) else None
                process = RankProcess(start, own, log, argv=argv, watched=program["watched"], cwd=cwd)
                if rank in program["shown"]:
                    self._relays[rank] = Relay(partial(self._show, process))
            self._ranks[rank] = process
            self._selector.register(process.event_fd, selectors.EVENT_READ, lambda p=process: self._forward(p))
            self._selector.register(process.output_fd, selectors.EVENT_READ, lambda p=process: self._drain(p))
            if process.end_fd is not None:
                self._selector.register(process.end_fd, selectors.EVENT_READ, lambda p=process: self._reap_one(p))

    def _show(self, process: RankProcess, lines: list[str], left_out: int) -> None:
        what = {"gen": process.generation, "rank": process.rank, "lines": lines, "left_out": left_out}
        self._voice.send({"kind": "output", **what})

    def _open_log(self, rank: int, generation: int) -> BinaryIO | Tail:
        name = f"rank{rank}.gen{generation}.log"
        file = append(os.path.join(self._keep, name)) if self._keep else None
        if file is not None:
            return file
        tail = self._tails[name] = Tail()
        if len(self._tails) > _MOST_TAILS:
            del self._tails[next(iter(self._tails))]
        return tail

    def _ask_time(self) -> None:
        question = self._clock.question()
        if question is not None:
            self._voice.send(question)

    # Ranks -> conductor

    def _forward(self, process: RankProcess, *, everything: bool = False) -> None:
        lines, ended = process.read(process.event_fd, everything=everything)
        if ended:
            self._forget(process.event_fd)
        for line in lines:
            if len(line) >= MAX_LINE_BYTES:
                continue  # none of ours, and the conductor would cut us off for it
            # What has no number is no event: news of the moment, which nobody reads later.
            if b'"seq":' in line:
                self._voice.keep(line + b"\n")
            else:
                self._voice.write(line + b"\n")

    def _drain(self, process: RankProcess, *, everything: bool = False) -> None:
        lines, ended = process.read(process.output_fd, everything=everything)
        relay = self._relays.get(process.rank)
        if relay is not None:
            relay.take(lines, process.buffers[process.output_fd])
        if ended:
            self._forget(process.output_fd)

    def _forget_all(self, process: RankProcess) -> None:
        for fd in (process.event_fd, process.output_fd, process.end_fd):
            if fd is not None:
                self._forget(fd)

    def _forget(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def _reap(self) -> None:
        for process in [each for each in self._ranks.values() if each.end_fd is None]:  # others as they ended
            self._reap_one(process)

    def _reap_one(self, process: RankProcess) -> None:
        if process.poll() is not None:
            self._bury(process)

    def _bury(self, process: RankProcess) -> None:
        # What it started must not outlive it, nor go on talking into its pipes.
        process.kill_group()
        # What it said before it died comes before the news of its death.
        self._forward(process, everything=True)
        self._drain(process, everything=True)
        # An orphan of the rank may hold a pipe open for ever.
        self._forget_all(process)
        relay = self._relays.pop(process.rank, None)
        if relay is not None:
            relay.close()
        del self._ranks[process.rank]
        self._voice.event("exit", **process.ended())
        process.close()

    def _end_ranks(self, stacks: Collection[int]) -> None:
        self._tell_stacks(stacks)
        for process in self._ranks.values():
            process.kill()
        until = time.monotonic() + _END_S
        for process in list(self._ranks.values()):
            if process.wait(max(0.1, until - time.monotonic())):
                self._bury(process)
            else:
                state = process.status()[0]
                self._voice.event("left", gen=process.generation, rank=process.rank, pid=process.pid, state=state)
                self._forget_all(process)
                del self._ranks[process.rank]

    def _tell_stacks(self, ranks: Collection[int]) -> None:
        asked = [process for process in self._ranks.values() if process.rank in ranks]
        for process in asked:
            process.ask_stack()
        until = time.monotonic() + _STACK_WAIT_S
        for process in asked:
            self._voice.event("stack", **process.take_stack(until))

    # Words

    def _send_logs(self) -> None:
        for name, tail in self._tails.items():
            self._voice.send({"kind": "log", "name": name, "text": tail.data.decode(errors="replace")})

    def _send_status(self) -> None:
        self._voice.send(
            {"kind": "status", "ranks": {str(rank): process.status() for rank, process in self._ranks.items()}}
        )
