"""One step of one check on one rank: call ``measure``, then send ``done`` or ``error``."""

from __future__ import annotations

import contextlib
import time
import traceback

from seatrial.checks.check import Check
from seatrial.protocol.commands import RankStep
from seatrial.protocol.events import DoneEvent, ErrorEvent
from seatrial.rank import faults
from seatrial.rank.context import Context
from seatrial.worker import failures


def run_step(context: Context, check: Check, message: RankStep) -> None:
    """Measure one stage and send ``done`` or ``error``; an exception of the check becomes the ``error`` event.

    ``message`` is the conductor's ``step`` command.
    """
    context.begin(check.name, message)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in message["params"].items()}
    started = time.perf_counter()
    try:
        if context.faults:
            faults.strike(context.faults, context.rank, check.name, None)
        check.measure(context, check.params(**values))
        context.device.synchronize()
        context.phase_page.write(f"{check.name}/done {context.stage}")
        context.flush()
    except Exception as error:
        phase = context.phase_page.label
        with contextlib.suppress(ValueError, TypeError):  # if that is the error: what cannot be sent is left out
            context.flush()
        context.emit(
            ErrorEvent(
                kind="error",
                gen=context.generation,
                step=context.step,
                rank=context.rank,
                cause=failures.cause_of(error),
                type=type(error).__name__,
                message=str(error)[:2000],
                stack=traceback.format_exc()[-6000:],
                phase=phase,
            )
        )
        return
    context.emit(
        DoneEvent(
            kind="done",
            gen=context.generation,
            step=context.step,
            rank=context.rank,
            seconds=round(time.perf_counter() - started, 6),
            share=context.shared,
        )
    )
