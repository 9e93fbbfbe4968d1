"""The process of one rank of a trial: ``python -m seatrial.worker.worker_main``, started by an agent.

Commands arrive as lines on standard input, and events leave on a separate pipe. Standard output and standard error
carry only the output of torch and its libraries.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import cast

from seatrial.checks import registry
from seatrial.environment.library_settings import library_settings
from seatrial.environment.mps import mps_settings
from seatrial.environment.working_folder import leave_open_folder
from seatrial.mpi_backend.finalize import leave
from seatrial.protocol.commands import RankCommand, StartRank
from seatrial.protocol.events import EndEvent, ErrorEvent, Event, RankEvent, Source
from seatrial.protocol.phase_page import PhaseWriter
from seatrial.protocol.wire import Decoder, encode
from seatrial.rank import groups
from seatrial.rank.context import Context
from seatrial.rank.device import open_device
from seatrial.rank.faults import parse_fault
from seatrial.util.job_signals import ignore_those_for_ranks
from seatrial.worker.compiled_code import keep_no_compiled_code
from seatrial.worker.failures import cause_of
from seatrial.worker.parent import die_with_parent
from seatrial.worker.step import run_step

Emit = Callable[..., None]
"""Sends one event: ``emit(kind, **payload)``."""


def main() -> None:
    """Run the steps that the agent passes on, until it sends ``quit``, closes the pipe or kills this process."""
    die_with_parent()
    ignore_those_for_ranks()
    event_fd, phase_fd, stack_fd = (int(os.environ[f"SEATRIAL_{name}_FD"]) for name in ("EVENT", "PHASE", "STACK"))
    faulthandler.register(signal.SIGUSR1, file=stack_fd, all_threads=True)
    # Ctrl-C in a terminal is for the controller; the agent ends this process when the controller asks for it, and at
    # the SIGHUP that systemd sends with its SIGTERM.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    commands = _commands()
    start = next(commands, None)
    if start is None or start["kind"] != "start":
        return
    phases = PhaseWriter(phase_fd)
    phases.write("start-up/import torch")
    leave_open_folder()
    source = Source(start["run"], f"rank{start['rank']}.{start['gen']}")

    def emit(event: Event) -> None:
        for line in encode(source.event(event)):
            os.write(event_fd, line)

    context = _open_rank(start, phases, emit)
    if context is None:
        os._exit(1)
    for command in commands:
        if command["kind"] == "quit":
            groups.close_world()
            phases.write("end")
            emit(EndEvent(kind="end"))
            break
        if command["kind"] == "step":
            run_step(context, registry.load(command["check"]), command)
    # Not sys.exit: the threads of a backend must not delay or crash a rank that has sent everything.
    leave(0)


def _open_rank(start: StartRank, phases: PhaseWriter, emit: Emit) -> Context | None:
    """Import torch, open the device and emit ``rank``; on failure emit ``error`` and return None.

    ``start`` is the agent's ``start`` command.
    """
    # Ranks need no NumPy, so torch's warning that it is missing must not become evidence.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    keep_no_compiled_code()
    os.environ.update(mps_settings(os.environ) | library_settings(os.environ))
    try:
        import torch  # noqa: F401
    except Exception as error:
        _emit_error(start, phases, emit, error, f"torch cannot be imported: {error}")
        return None
    try:
        context = _make_context(start, phases, emit)
    except Exception as error:
        _emit_error(start, phases, emit, error, str(error))
        return None
    phases.write("ready")
    _emit_rank(context)
    return context


def _make_context(start: StartRank, phases: PhaseWriter, emit: Emit) -> Context:
    phases.write("start-up/open device")
    ranks = tuple(rank for first, last in start["ranks"] for rank in range(first, last + 1))
    device = open_device(start["device"], start["local_rank"], start["threads"])
    return Context(
        generation=start["gen"],
        rank=start["rank"],
        local_rank=start["local_rank"],
        local_world_size=start["local_world_size"],
        node_rank=start["node_rank"],
        node=start["node"],
        address=start["address"],
        ranks=ranks,
        group_rank=ranks.index(start["rank"]),
        world_size=len(ranks),
        backend=device.backend if start["backend"] == "auto" else start["backend"],
        device=device,
        # After a restart the trial goes on without the suspect, and without the faults that were planted.
        faults=tuple(parse_fault(text) for text in start["planted"]) if start["gen"] == 0 else (),
        phase_page=phases,
        emit=emit,
    )


def _emit_rank(context: Context) -> None:
    import torch

    device = context.device
    context.emit(
        RankEvent(
            kind="rank",
            gen=context.generation,
            rank=context.rank,
            node=context.node,
            node_rank=context.node_rank,
            hostname=context.node,
            local_rank=context.local_rank,
            pid=os.getpid(),
            device=device.name,
            device_type=device.type,
            device_id=device.bus or device.id,  # the kernel's log names a device by its PCI address
            libraries=device.libraries,
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            python=platform.python_version(),
            backend=context.backend,
        )
    )


def _emit_error(start: StartRank, phases: PhaseWriter, emit: Emit, error: Exception, message: str) -> None:
    emit(
        ErrorEvent(
            kind="error",
            gen=start["gen"],
            rank=start["rank"],
            step=-1,
            cause=cause_of(error),
            type=type(error).__name__,
            message=message[:2000],
            stack=traceback.format_exc()[-6000:],
            phase=phases.label,
        )
    )


def _commands() -> Iterator[RankCommand]:
    decoder = Decoder()
    for line in sys.stdin.buffer:
        command = decoder.line(line)
        if command is not None:
            yield cast("RankCommand", command)


if __name__ == "__main__":
    main()
