"""The loop of an agent: commands from the conductor, events from the ranks, deaths, and a status each second."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import cast

from seatrial.agent import orphans
from seatrial.agent.clock_offset import ClockOffset
from seatrial.agent.control_connection import CommandReader, ConnectionUnusableError, ControlConnection
from seatrial.agent.disk_question import DiskQuestion
from seatrial.agent.event_channel import EventChannel
from seatrial.agent.node_process import NodeProcess
from seatrial.agent.node_watch import NodeWatch
from seatrial.agent.oom_watch import OomWatch
from seatrial.agent.program_ranks import environ_of, prepare, refusal_events, typed_threads
from seatrial.agent.rank_output import RankOutput
from seatrial.agent.rank_process import RankProcess
from seatrial.agent.standstill import Standstill, stack_events
from seatrial.environment.drill import planted_faults
from seatrial.environment.interface_choice import choose
from seatrial.environment.placeholders import fill_placeholders
from seatrial.environment.pmi import leave_launcher
from seatrial.probe import cgroup
from seatrial.probe.host import host_name
from seatrial.probe.network import address_of
from seatrial.protocol.commands import (
    AgentCommand,
    FreePort,
    Killed,
    NodeStep,
    NodeStepCommand,
    RankStep,
    SignalReceived,
    StartProgram,
    StartRank,
    StartWorkers,
    Status,
    StepCommand,
)
from seatrial.protocol.events import EndEvent, ExitEvent, LeftEvent, NodeEvent, NoteEvent, StackEvent
from seatrial.protocol.job_digest import Start
from seatrial.protocol.own_errors import first_lack
from seatrial.protocol.start_fields import fault_of_command
from seatrial.protocol.timeouts import CONDUCTOR_SILENT_S, OUTPUT_S, STATUS_S
from seatrial.protocol.wire import MAX_LINE_BYTES
from seatrial.start import absolute_entries
from seatrial.util.disk_writer import DiskWriter
from seatrial.util.ports import free_port
from seatrial.util.text import signal_words

_END_S = 5.0
"""Time for all ranks together to end after SIGKILL."""
_STACK_WAIT_S = 1.0
_FULL_WAIT_S = 0.1
_HURRY_S = 2.0
"""Time for the controller to take the news of a signal before the ranks end. After a second signal, one that takes
nothing for so long gets no last words."""
_FILES_S = 3.0
"""Time for the disk to take what is left for the files, before the last words. The conductor gives an agent 10 s to
end."""
_LAST_FILES_S = 5.0
"""The same after the last words. Where no launcher waits so long, it ends the agent."""
_START_S = 1.0
"""Longer than a disk takes to answer, so that nothing else comes before the start."""
_PAUSED_S = 5.0
"""A look for messages that takes longer means that this process was paused, so the conductor was not silent."""


class Agent:
    """One node's agent, after the handshake."""

    def __init__(
        self,
        *,
        control: ControlConnection,
        address: str,
        node_rank: int,
        cores: int,
        folder: str | None,
        job: str,
        local_rank: int | None = None,
        local_world_size: int | None = None,
    ) -> None:
        """Take over the connection.

        Args:
            control: the connection to the conductor.
            address: by which other nodes reach this one.
            node_rank: number of this node.
            cores: cores that the ranks share.
            folder: where events and output of the ranks are kept. None: nowhere.
            job: ``digest_of_job`` of what it may start.
            local_rank: of the only rank of this agent. None: it starts all ranks of the node.
            local_world_size: ranks on this machine, with ``local_rank``.
        """
        self._received = control.received
        self._address = address
        self._local_rank = local_rank
        self._local_world_size = local_world_size
        self._connection = control.connection
        self._disk = DiskWriter()
        """For the folder, which may be on a disk of the network."""
        self._channel = EventChannel(control.connection, control.tags_sent, self._disk)
        self._node_rank = node_rank
        self._cores = cores
        self._folder = folder
        self._job = job
        self._ranks: dict[int, RankProcess] = {}
        self._output = RankOutput(folder, self._channel, self._disk)
        self._standstill = Standstill()
        self._node_process: NodeProcess | None = None
        """Carries out the steps of agents; None outside of these."""
        self._start: tuple[Start, DiskQuestion[tuple[str, str, str]]] | None = None
        """Processes that are not started yet, since a disk has not answered."""
        self._program = self._mpi = False
        self._signals: list[int] = []
        """Signals that end this agent, in the order of their arrival."""
        self._signal_sent = False
        self._reader = CommandReader(control.tags_received)
        self._clock = ClockOffset()
        self._oom = OomWatch()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control.connection, selectors.EVENT_READ, self._read_conductor)
        self._watch = NodeWatch(self._selector, self._channel.event)
        self._over = False

    def serve(self, signals: list[int], for_ranks: list[int]) -> int:
        """Serve until ``stop`` (returns 0), or until the conductor is lost or a signal arrives (returns 3).

        Both lists grow meanwhile.

        Args:
            signals: numbers of the signals that this process received and that end it.
            for_ranks: those that are for the ranks of a script.
        """
        self._signals = signals
        try:
            self._loop(signals, for_ranks)
        except ConnectionUnusableError as error:
            self._note(f"node {self._node_rank} {error}; its ranks were ended")
        except Exception as error:  # a bug of ours, or no more descriptors or processes: never a fault of the node
            said = f"{type(error).__name__}: {error}"
            lack = first_lack(said)
            how = "failed" if lack is None else f"got no further {lack.name} from its host"
            self._note(f"the agent of node {self._node_rank} {how}: {said}")
        self._end_node_process()
        self._end_ranks(stacks=())
        self._watch.finish()
        self._send_rest(signals)
        self._selector.close()
        self._channel.close()
        self._disk.end(time.monotonic() + _LAST_FILES_S, lambda: len(signals) > 1)
        return 0 if self._over else 3

    def _send_rest(self, signals: list[int]) -> None:
        """Send the rest of the output, and the last words.

        All ranks have ended, so a controller that took nothing gets as much time again: one that goes on then learns
        why they ended, and does not lose this node for a reason that it cannot see.
        """
        self._finish_files(signals)
        began = time.monotonic()
        for piece in self._output.spools.rest(began + OUTPUT_S):
            self._wait_until_taken(began, signals)
            if self._channel.lost or len(signals) > 1:
                break
            self._channel.send(piece)
        if self._mpi:
            leave_launcher(os.environ)
        self._channel.event(EndEvent(kind="end"))
        self._wait_until_taken(began, signals)

    def _finish_files(self, signals: list[int]) -> None:
        """Give the disk time for the output of ranks, and say what is missing in its files."""
        self._disk.finish(time.monotonic() + _FILES_S, lambda: len(signals) > 1)
        self._output.settle()
        for text in self._output.missing():
            self._channel.event(NoteEvent(kind="note", severity="warn", text=text))

    def _wait_until_taken(self, began: float, signals: list[int]) -> None:
        """Wait until the controller has taken all that was sent, for as long as it takes some of it, yet not for ever.

        ``began``: when there were only last words left.
        """
        while not (self._channel.is_free() or self._channel.lost):
            self._channel.wait(_FULL_WAIT_S)
            now = time.monotonic()
            patience_s = _HURRY_S if len(signals) > 1 else CONDUCTOR_SILENT_S
            is_stuck = now - max(began, self._channel.waits_since()) > patience_s
            if is_stuck or now - began > OUTPUT_S + CONDUCTOR_SILENT_S:
                self._channel.lost = True

    def _loop(self, signals: list[int], for_ranks: list[int]) -> None:
        self._take_in(self._received)
        next_status = time.monotonic() + STATUS_S
        while not self._over:
            before = time.monotonic()
            ready = self._selector.select(timeout=0.1)
            selected_at = time.monotonic()
            if selected_at - before > _PAUSED_S:
                self._reader.heard_at += selected_at - before
                self._channel.excuse(selected_at - before)
            for key, _ in ready:
                # An earlier command of this round may have ended the rank that this pipe belonged to.
                if self._selector.get_map().get(key.fileobj) is key:
                    callback: Callable[[], None] = key.data
                    callback()
            while for_ranks:
                self._pass_on(for_ranks.pop(0))
            self._reap()
            self._continue_start(0.0)
            self._flush_commands()
            self._channel.flush()
            self._output.settle()
            for piece in self._output.spools.pieces(self._channel.is_free):
                self._channel.send(piece)
            if time.monotonic() >= next_status:
                self._send_status()
                next_status = time.monotonic() + STATUS_S
            self._await_room()
            # The time of that look counts: messages that arrived during slow work since then are not read yet.
            why_dead = self._why_dead(selected_at)
            if self._is_stopped(signals) or self._channel.lost or why_dead:
                self._note_why(signals, why_dead)
                break

    def _pass_on(self, number: int) -> None:
        # A rank of ours shows its stack at SIGUSR1, and has no use for the other.
        for process in self._ranks.values():
            if not process.watched:
                process.signal(number)

    def _await_room(self) -> None:
        """Have the next round begin as soon as the connection takes more, and not before where nothing else fits."""
        if self._channel.is_full():
            self._channel.wait(_FULL_WAIT_S)
        self._output.wait_for_disk(_FULL_WAIT_S)
        writes = 0 if self._channel.is_free() else selectors.EVENT_WRITE
        self._selector.modify(self._connection, selectors.EVENT_READ | writes, self._read_conductor)

    def _why_dead(self, now: float) -> str:
        """Return why the controller counts as dead or stopped, to continue "node N ..."; empty: it does not."""
        if now - self._reader.heard_at > CONDUCTOR_SILENT_S:
            return f"received nothing from the controller for {CONDUCTOR_SILENT_S:.0f} s"
        if now - self._channel.waits_since() > CONDUCTOR_SILENT_S:
            return f"could send nothing to the controller for {CONDUCTOR_SILENT_S:.0f} s"
        return ""

    def _is_stopped(self, signals: list[int]) -> bool:
        """Return whether a signal ends the agent now. The conductor hears of it before the peers miss any rank.

        The ranks of a program may save first: the conductor has them terminated, then ends the agent. A second signal
        does not wait for that.
        """
        self._report_signal()
        return len(signals) > 1 or (bool(signals) and not self._program)

    def _report_signal(self) -> None:
        if self._signals and not self._signal_sent:
            self._signal_sent = True
            self._channel.send(SignalReceived(kind="signal", number=self._signals[0]))

    def _note_why(self, signals: list[int], why_dead: str) -> None:
        if signals:
            text = f"{signal_words(signals[0])} ended the agent of node {self._node_rank}"
        elif self._channel.lost:
            text = f"node {self._node_rank} lost the control connection; its ranks were ended"
        else:
            text = f"node {self._node_rank} {why_dead}; its ranks were ended"
        self._note(text)
        if signals:
            self._channel.drain(_HURRY_S)  # the peers of the ranks complain when these end

    def _note(self, text: str) -> None:
        self._channel.event(NoteEvent(kind="note", severity="error", text=text))

    # Conductor -> agent

    def _read_conductor(self) -> None:
        try:
            data = self._connection.recv(1 << 16)
        except BlockingIOError:
            return  # it can be written to
        except OSError:
            data = b""
        if not data:
            self._channel.lost = True
            return
        self._take_in(data)

    def _take_in(self, data: bytes) -> None:
        for command in self._reader.take_in(data):
            if fault := fault_of_command(command, self._job, ranks_run=bool(self._ranks)):
                raise ConnectionUnusableError(fault)
            self._obey(command)

    def _obey(self, command: AgentCommand) -> None:
        match command["kind"]:
            case "welcome":
                self._begin(command["run"])
                self._ask_time()
            case "time":
                if self._clock.answer(command):
                    self._ask_time()
            case "port":
                port = FreePort(kind="port", gen=command["gen"], address=self._address, port=free_port())
                self._channel.send(port)
            case "node_step" if self._node_process is not None and not command["watches"]:
                self._send_node_step(command)
            case "node_step":
                self._begin_start(command)
            case "start_workers":
                self._end_node_process()
                self._begin_start(command)
            case "start_program":
                self._begin_start(command)
            case "step":
                self._send_step(command)
            case "terminate":
                self._start = None
                for process in self._ranks.values():
                    process.terminate()
            case "quit":
                for process in self._ranks.values():
                    process.quit()
            case "dump_stack":
                for event in self._stacks(command["ranks"]):
                    event["number"] = command["number"]
                    self._channel.event(event)
            case "kill":
                self._end_node_process()
                self._end_ranks(stacks=command["stacks"])
                self._channel.send(Killed(kind="killed", gen=command["gen"]))
            case "stop":
                self._over = True
            case _:  # a heartbeat, or a command of a later version
                pass

    def _begin(self, run: str) -> None:
        self._channel.begin(run, f"node{self._node_rank}", self._folder)
        event = NodeEvent(
            kind="node",
            node=self._node_rank,
            hostname=host_name(),
            address=self._address,
            pid=os.getpid(),
            cores=self._cores,
        )
        if slurm_name := os.environ.get("SLURMD_NODENAME"):
            event["slurm_name"] = slurm_name
        self._channel.event(event)

    def _send_node_step(self, command: NodeStepCommand) -> None:
        environ = {**os.environ, **command["env"], **absolute_entries(command["env"])}
        node = {"node": self._node_rank, "hostname": host_name(), "address": self._address}
        step = cast("NodeStep", {**command, **node, "local_rank": self._local_rank})
        if command["watches"]:
            self._watch.send(step, environ)
            return
        self._watch.begin(command["check"], command["stage"])
        if self._node_process is None:
            self._node_process = NodeProcess(environ)
            self._selector.register(self._node_process.fd, selectors.EVENT_READ, self._read_node_process)
        self._node_process.send(step)

    def _read_node_process(self) -> None:
        assert self._node_process is not None
        if self._channel.is_full():
            return
        events, ended = self._node_process.read()
        for event in events:
            self._channel.event(event)
        if ended:
            self._end_node_process()

    def _end_node_process(self) -> None:
        if self._node_process is not None:
            self._unregister(self._node_process.fd)
            self._node_process.end()
            self._node_process = None

    def _begin_start(self, start: Start) -> None:
        """Start processes once the disks have answered that they are started from."""
        self._program = start["kind"] == "start_program"
        self._start = start, DiskQuestion(partial(prepare, start))
        self._continue_start(_START_S)

    def _continue_start(self, timeout_s: float) -> None:
        if self._start is None or not self._start[1].is_answered(timeout_s):
            return
        (start, question), self._start = self._start, None
        if start["kind"] == "start_program":
            self._start_program(start, *question.answer())
        elif start["kind"] == "start_workers":
            self._start_workers(start)
        else:
            self._send_node_step(start)

    def _start_workers(self, start: StartWorkers) -> None:
        local_world_size = self._local_world_size or max(1, len(start["places"]))
        threads = typed_threads(start["env"]) or max(1, self._cores // local_world_size)
        if start["interface"]:
            choose(os.environ, start["interface"])
            self._address = address_of(start["interface"]) or self._address
        environ = {**os.environ, **start["env"], **absolute_entries(start["env"])}
        environ.setdefault("OMP_NUM_THREADS", str(threads))
        self._mpi = start["backend"] == "mpi"
        for rank, local_rank in start["places"]:
            command = StartRank(
                kind="start",
                run=start["run"],
                gen=start["gen"],
                rank=rank,
                local_rank=local_rank if self._local_rank is None else self._local_rank,
                local_world_size=local_world_size,
                node_rank=self._node_rank,
                node=host_name(),
                address=self._address,
                ranks=start["ranks"],
                device=start["device"],
                backend=start["backend"],
                planted=list(planted_faults(start["env"])),
                threads=threads,
            )
            log = self._output.open(rank, start["gen"])
            self._add(RankProcess(rank, start["gen"], environ, log, start=command))

    def _start_program(self, start: StartProgram, folder: str, script_refusal: str, note: str) -> None:
        program = start["program"]
        local_world_size = self._local_world_size or max(1, len(start["places"]))
        threads = max(1, self._cores // (program["spawns"] or local_world_size))
        environ = {**os.environ, **start["env"]}
        environ.setdefault("OMP_NUM_THREADS", str(threads))
        self._mpi = False
        self._output.spools.share(program["nnodes"])
        if not program["watched"]:
            orphans.adopt()
        if note:
            self._channel.event(NoteEvent(kind="note", severity="warn", text=note))
        if script_refusal:
            for event in refusal_events(start, script_refusal):
                self._channel.event(event)
            return
        for rank, place in start["places"]:
            local_rank = place if self._local_rank is None else self._local_rank
            log = self._output.open(rank, start["gen"])
            rank_environ = environ_of(
                environ, start, rank=rank, local_rank=local_rank, local_world_size=local_world_size
            )
            argv = [*program["argv"], *fill_placeholders(program["args"], rank_environ, program["spawns"])]
            process = RankProcess(
                rank, start["gen"], rank_environ, log, argv=argv, watched=program["watched"], cwd=folder
            )
            if rank in program["shown"]:
                self._output.show(process)
            self._add(process)

    def _add(self, process: RankProcess) -> None:
        self._ranks[process.rank] = process
        self._selector.register(process.event_fd, selectors.EVENT_READ, partial(self._forward, process))
        self._selector.register(
            process.output_fd, selectors.EVENT_READ, partial(self._output.drain, process, self._unregister)
        )
        if process.end_fd is not None:
            self._selector.register(process.end_fd, selectors.EVENT_READ, partial(self._reap_one, process))

    def _send_step(self, step: StepCommand) -> None:
        # The clock offset goes with the step, not with the start: the last node to join is started at once.
        command = cast("RankStep", {**step, "clock": self._clock.best})
        self._watch.begin(step["check"], step["stage"])
        for rank in step["ranks"]:
            if rank in self._ranks:
                self._ranks[rank].send(command)

    def _flush_commands(self) -> None:
        for process in self._ranks.values():
            process.flush()
        if self._node_process is not None:
            self._node_process.flush()
        self._watch.flush()

    def _ask_time(self) -> None:
        question = self._clock.question()
        if question is not None:
            self._channel.send(question)

    # Ranks -> conductor

    def _forward(self, process: RankProcess, *, everything: bool = False) -> None:
        if self._channel.is_full() and not everything:
            return  # its events wait in its pipe
        lines, ended = process.read(process.event_fd, everything=everything)
        if ended:
            self._unregister(process.event_fd)
        for line in lines:
            if len(line) >= MAX_LINE_BYTES:
                continue  # not a line of ours, and the conductor would close the connection for it
            # A message without a number is no event: it is forwarded and not kept.
            if b'"seq":' in line:
                self._channel.record(line + b"\n")
            else:
                self._channel.write(line + b"\n")

    def _unregister_all(self, process: RankProcess) -> None:
        for fd in (process.event_fd, process.output_fd, process.end_fd):
            if fd is not None:
                self._unregister(fd)

    def _unregister(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def _reap(self) -> None:
        for process in [process for process in self._ranks.values() if process.end_fd is None]:
            self._reap_one(process)  # the others are reaped as their end_fd becomes readable

    def _reap_one(self, process: RankProcess) -> None:
        if process.poll() is not None:
            self._bury(process)

    def _bury(self, process: RankProcess) -> None:
        """Report the end of a rank, after all that it wrote."""
        # A script may answer the signal that this agent got as well by any exit code.
        self._report_signal()
        self._forward(process, everything=True)
        self._output.drain(process, self._unregister, everything=True)
        # An orphan of the rank may keep a pipe open forever.
        self._unregister_all(process)
        self._output.end(process)
        del self._ranks[process.rank]
        self._channel.event(self._exit_event(process))
        process.close()
        if not (self._ranks or process.watched):
            orphans.end()

    def _exit_event(self, process: RankProcess) -> ExitEvent:
        event = process.exit_event()
        # A data loader that was killed makes its rank fail by another way. An agent of one rank among several cannot
        # tell whose process that was.
        killed = event["code"] in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if not event["ours"] and (killed or (event["code"] != 0 and self._local_rank is None)) and self._oom.take():
            event["oom_limit_bytes"] = self._oom.limit_bytes()
        return event

    def _end_ranks(self, stacks: Collection[int]) -> None:
        self._start = None
        for event in self._stacks(stacks):
            self._channel.event(event)
        for process in self._ranks.values():
            process.kill()
        until = time.monotonic() + _END_S
        for process in list(self._ranks.values()):
            if process.wait(max(0.1, until - time.monotonic())):
                self._bury(process)
            else:
                left = LeftEvent(
                    kind="left",
                    gen=process.generation,
                    rank=process.rank,
                    pid=process.pid,
                    state=process.state,
                )
                self._channel.event(left)
                self._unregister_all(process)
                del self._ranks[process.rank]

    def _stacks(self, ranks: Collection[int]) -> Iterator[StackEvent]:
        asked = [process for process in self._ranks.values() if process.rank in ranks and process.watched]
        for process in asked:
            process.ask_stack()
        yield from stack_events([self._ranks[rank] for rank in ranks if not self._is_watched(rank)])
        until = time.monotonic() + _STACK_WAIT_S
        for process in asked:
            yield process.stack_event(until)

    def _is_watched(self, rank: int) -> bool:
        return rank not in self._ranks or self._ranks[rank].watched

    def _send_status(self) -> None:
        quotas = cgroup.throttling()
        ranks = {str(rank): process.status(quotas) for rank, process in self._ranks.items()}
        scripts = [process for process in self._ranks.values() if not process.watched]
        if scripts:
            orphans.reap([process.pid for process in scripts])
        status = Status(kind="status", ranks=ranks, still=self._standstill.seconds(scripts))
        if not self._channel.is_full():  # what waits there shows as well that this agent lives
            self._channel.send(status)
