"""The process of one rank: ``python -m seatrial.worker.main``, started by an agent.

Commands come as lines on standard input, events leave on a pipe of their own; standard output and error belong to
whatever torch and its libraries print.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import platform
import signal
import sys
import traceback
import warnings
from typing import Any

from seatrial.probe.phase import PhaseWriter
from seatrial.verdict.events import Source
from seatrial.verdict.wire import Decoder, encode
from seatrial.worker.failures import cause_of
from seatrial.worker.mpi_end import leave

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until told to quit, until the agent is gone, or until killed."""
    _die_with_parent()
    event_fd, phase_fd, stack_fd = (int(os.environ[f"SEATRIAL_{name}_FD"]) for name in ("EVENT", "PHASE", "STACK"))
    faulthandler.register(signal.SIGUSR1, file=stack_fd, all_threads=True)
    # A terminal's Ctrl-C is for the controller; the agent ends us when it is told to.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    commands = _commands()
    start = next(commands, None)
    if start is None:
        return
    phases = PhaseWriter(phase_fd)
    phases.write("start-up/import torch")
    source = Source(start["run"], f"rank{start['rank']}.{start['gen']}")

    def emit(kind: str, **payload: Any) -> None:
        for line in encode(source.event(kind, **payload)):
            os.write(event_fd, line)

    me = _open_rank(start, phases, emit)
    if me is None:
        os._exit(1)
    from seatrial.checks import registry
    from seatrial.worker import groups, step

    for command in commands:
        if command["kind"] == "quit":
            groups.close_world()
            phases.write("end")
            emit("end")
            break
        step.run_step(me, registry.load(command["check"]), command)
    # Not sys.exit: threads of a backend must not hold up, or crash, a rank that has said all it had to say.
    leave(0)


def _open_rank(start: dict[str, Any], phases: PhaseWriter, emit: Any) -> Any:
    where = {"gen": start["gen"], "rank": start["rank"]}

    def give_up(error: Exception, cause: str, message: str) -> None:
        emit(
            "error",
            **where,
            step=-1,
            cause=cause,
            type=type(error).__name__,
            message=message[:2000],
            stack=traceback.format_exc()[-6000:],
            phase=phases.label,
        )

    # We need no NumPy, so torch's complaint that there is none must not end up as evidence.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    try:
        import torch
    except Exception as error:
        give_up(error, "request" if isinstance(error, ImportError) else "own", f"torch cannot be imported: {error}")
        return None
    try:
        from seatrial.worker import inject
        from seatrial.worker.device import open_device
        from seatrial.worker.step import RankContext

        phases.write("start-up/open device")
        ranks = tuple(rank for first, last in start["ranks"] for rank in range(first, last + 1))
        device = open_device(start["device"], start["local_rank"], start["threads"])
        me = RankContext(
            run=start["run"],
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
            faults=tuple(inject.parse_fault(text) for text in start["planted"]) if start["gen"] == 0 else (),
            phases=phases,
            emit=emit,
        )
    except Exception as error:
        give_up(error, cause_of(error), str(error))
        return None
    phases.write("ready")
    emit(
        "rank",
        **where,
        node=me.node,
        node_rank=me.node_rank,
        hostname=me.node,
        local_rank=me.local_rank,
        pid=os.getpid(),
        device=device.name,
        device_type=device.type,
        device_id=device.bus or device.id,  # the kernel's log knows a device by its PCI address
        libraries=device.libraries,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        python=platform.python_version(),
        backend=me.backend,
    )
    return me


def _commands() -> Any:
    decoder = Decoder()
    for line in sys.stdin.buffer:
        command = decoder.line(line)
        if command is not None:
            yield command


def _die_with_parent() -> None:
    """Be killed when the agent dies, however it dies: a rank without its agent must not stay behind."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ["SEATRIAL_AGENT_PID"]):  # it died before we could ask
        os._exit(1)


if __name__ == "__main__":
    main()
