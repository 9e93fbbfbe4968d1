"""What a person sees of a training: lines, counts of what is left out, and never a wait for who does not read."""

from __future__ import annotations

import io
import os
import threading
import time
from typing import Any

import pytest

from seatrial.report.program import ProgramDisplay

PROGRESS: dict[str, Any] = {"kind": "progress", "step": 5, "num_steps": 10, "epoch": 0, "num_epochs": 1}
PROGRESS |= {"loss": 0.5, "accuracy": None, "samples_per_s": None, "left_s": None}


def test_lines_of_ranks_and_notes_are_shown_and_cannot_forge_anything() -> None:
    output, errors = io.StringIO(), io.StringIO()
    display = ProgramDisplay(output, errors, prefix=True)
    display.hear({"kind": "output", "rank": 3, "lines": ["one", "\x1b[31mred"], "left_out": 2})
    display.keep({"kind": "note", "text": "rank 1 died"})
    display.hear(PROGRESS)
    display.hear(PROGRESS)  # within five seconds of the one before
    display.keep({"kind": "figures"})
    display.close()
    told = "(2 lines are not shown; the file of the rank has them all)"
    assert output.getvalue().splitlines() == ["[rank 3] one", "[rank 3] \\x1b[31mred", f"[rank 3] {told}"]
    note, progress = errors.getvalue().splitlines()
    assert note.endswith("s] rank 1 died")
    assert progress.endswith("s] epoch 1/1, step 5/10, loss 0.5000")


def test_without_a_prefix_lines_are_as_the_script_wrote_them() -> None:
    output = io.StringIO()
    display = ProgramDisplay(output, None, prefix=False)
    display.hear({"kind": "output", "rank": 0, "lines": ["loss  1.0"], "left_out": 0})
    display.close()
    assert output.getvalue() == "loss  1.0\n"


def test_a_reader_who_does_not_read_holds_nobody_up() -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as full, open(reading) as reader:
        display = ProgramDisplay(full, None, prefix=False)
        for _ in range(3_000):
            display.hear({"kind": "output", "rank": 0, "lines": ["x" * 100], "left_out": 0})
        # Far more than a pipe holds, and no call has waited; now somebody reads it all.
        thread = threading.Thread(target=lambda: reader.read())
        thread.start()
        display.close()
        full.close()
        thread.join()


class _GoneReader(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_who_is_gone_is_no_error() -> None:
    errors = io.StringIO()
    display = ProgramDisplay(_GoneReader(), errors, prefix=False)
    for line in ("x", "y"):
        display.hear({"kind": "output", "rank": 0, "lines": [line], "left_out": 0})
    display.keep({"kind": "note", "text": "still told"})
    display.close()
    assert "still told" in errors.getvalue()


@pytest.mark.parametrize("message", [{"kind": "output"}, {"kind": "progress"}, {"kind": "output", "rank": "x"}])
def test_a_message_that_makes_no_sense_is_refused(message: dict[str, Any]) -> None:
    display = ProgramDisplay(None, None, prefix=False)
    with pytest.raises((KeyError, TypeError, ValueError)):
        display.hear(message)
    display.close()


def test_on_a_terminal_the_bar_stands_below_the_lines() -> None:
    leader, follower = os.openpty()
    with open(follower, "w") as terminal:
        display = ProgramDisplay(terminal, terminal, prefix=False)
        display.hear(PROGRESS)
        display.hear({"kind": "output", "rank": 0, "lines": ["a line"], "left_out": 0})
        deadline = time.monotonic() + 20
        seen = b""
        while not (b"step 5/10" in seen and b"a line\r\n" in seen):
            assert time.monotonic() < deadline, seen
            seen += os.read(leader, 4096)
        reader = threading.Thread(target=lambda: os.read(leader, 1 << 16))
        reader.start()
        display.close()
        reader.join()
    os.close(leader)
