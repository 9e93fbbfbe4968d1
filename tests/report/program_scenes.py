"""Endings of ``seatrial launch`` and ``seatrial train``: simulated agents under the real conductor and display."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conductor.simulated_program import Act, SimulatedProgram, config

from seatrial.report.program_display import ProgramDisplay
from seatrial.run.run_program import _exit_code

_FOLDER = Path("seatrial-runs/20260102-030405-abcd")
_ELAPSED = re.compile(r"(?m)^\[ *[\d.]+ s\]")
_LOST = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1234"
_GAVE_UP = "RuntimeError: [../tcp/unbound_buffer.cc:129] Timed out waiting 15000ms for send operation to complete"
_TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "mytrain.py", line 41, in <module>',
    "    loss = train(batch)",
    "ValueError: sample 4711 has no label",
)
_AT_WORK = """Process 47: python mytrain.py

Thread 47 (active): "MainThread"
    load_batch (mytrain.py:26)
    <module> (mytrain.py:41)
"""


class _Recorded(SimulatedProgram):
    """The events of the agents as well: the server passes them on."""

    def say(self, node: int, message: dict[str, Any]) -> None:
        if message["kind"] == "exit" and message["ours"]:
            message["last_lines"] = ["step 7"]
        if self.agents[node].open and "src" in message:
            self.events.append(message)
        super().say(node, message)


def _ends(at_s: float, code: int, *last: str) -> tuple[Act, ...]:
    return (Act(at_s=at_s, what="exit", code=code, phase="", last=last),)


def raised() -> SimulatedProgram:
    """Rank 1 of a script raises; the others lose it."""
    script = {(0, rank): _ends(20.3, 1, _LOST) for rank in (0, 2, 3)} | {(0, 1): _ends(20.0, 1, *_TRACEBACK)}
    return _Recorded(config(watched=False), script)


def hung() -> SimulatedProgram:
    """Three ranks of a script give up by its own timeout; the fourth one still loads its batch."""
    script = {(0, rank): _ends(20.0 + rank / 10, 1, _GAVE_UP) for rank in (0, 1, 2)}
    script[0, 3] = (Act(at_s=900.0, what="exit"),)
    return _Recorded(config(watched=False), script, stacks={3: {"text": _AT_WORK}})


def killed() -> SimulatedProgram:
    """Rank 1 of a training is killed."""
    script = {(0, rank): (Act(at_s=4.2, what="error", cause="fabric"), *_ends(4.3, 1)) for rank in (0, 2, 3)}
    script[0, 1] = (Act(at_s=4.0, what="exit", code=-9, phase="step 7 backward", last=()),)
    return _Recorded(config(), script)


SCENES: Mapping[str, Callable[[], SimulatedProgram]] = {
    "launch-raised": raised,
    "launch-hung": hung,
    "train-killed": killed,
}


def show(name: str, terminal: io.StringIO) -> str:
    """Return what a terminal shows of the run, which is standard error at present."""
    program = SCENES[name]()
    program.run()
    display = ProgramDisplay(terminal, terminal, prefix=False)
    for event in program.events:
        if event["kind"] == "exit" and event["rank"] == 0:  # --output rank0, the default
            display.on_message({"kind": "output", "rank": 0, "lines": event["last_lines"], "left_out": 0})
        display.on_event(event)
    held = display.close()
    _exit_code(program.events, _FOLDER, held, dict(display.last_lines))
    return _ELAPSED.sub("[  20.0 s]", terminal.getvalue())
