"""Progress: never in the way of the trial, and nothing raw on the terminal."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import sys
import threading
import time
from typing import Any

import pytest
from event_streams import SCENES

from seatrial.report import progress as module
from seatrial.report.progress import Progress
from seatrial.util.streams import print_status

STEP: dict[str, Any] = {
    "kind": "step",
    "step": 0,
    "check": "compute",
    "stage": "measure",
    "ranks": [0],
    "timeout_s": 60.0,
}


def shown(*events: dict[str, Any]) -> str:
    """What is written before the end of the last check."""
    stream = io.StringIO()
    progress = Progress(stream)
    for event in events:
        progress(event)
    progress._check = ""
    progress.close()
    return stream.getvalue()


def test_texts_of_ranks_are_escaped() -> None:
    text = shown(
        {"kind": "generation", "gen": 0, "ranks": [[0, 0, 0]]},
        {"kind": "rank", "device": "GPU\x1b[2J\nFINAL ACCEPTANCE: PASS"},
    )
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert "GPU??2J?FINAL" in text


def test_a_reader_that_is_gone_is_no_failure() -> None:
    read, write = os.pipe()
    os.close(read)
    stream = open(write, "w", buffering=1)  # noqa: SIM115 - it cannot be closed in order
    progress = Progress(stream)
    for _ in range(3):
        progress(STEP)
    progress.close()
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_a_closed_stream_is_no_failure() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        progress = Progress(stream)
        progress(STEP)
        progress.close()


def test_a_terminal_that_goes_away_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    controller, terminal = os.openpty()
    stream = open(terminal, "w")  # noqa: SIM115 - it cannot be closed in order
    progress = Progress(stream)
    progress(STEP)
    os.close(controller)
    progress(STEP)
    progress.close()
    with contextlib.suppress(OSError):
        stream.close()


@pytest.mark.parametrize("rich_is_there", [True, False])
def test_without_rich_a_terminal_gets_plain_lines(rich_is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if not rich_is_there:
        # With None in sys.modules Python raises ImportError.
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    controller, terminal = os.openpty()
    with open(terminal, "w") as stream:
        progress = Progress(stream)
        progress(STEP)
        progress.close()
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other side is closed, and all is read
        while piece := os.read(controller, 1 << 16):
            shown += piece
    os.close(controller)
    assert (b"\x1b[" in shown) == rich_is_there
    assert b"compute 0.0 s" in shown
    assert rich_is_there or shown == b"compute 0.0 s\r\n"


def test_a_check_is_a_line_when_it_has_finished() -> None:
    """The same lines on a terminal and in a pipe; several steps of a check are one line."""
    stream = io.StringIO()
    progress = Progress(stream)
    for event in SCENES["healthy"]().events:
        progress(event)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "2 ranks are ready: Test CPU",
        "[1/4] compute 0.7 s",
        "[2/4] bootstrap 0.7 s",
        "[3/4] collectives 0.7 s",
        "[4/4] training 0.7 s",
    ]


@pytest.mark.parametrize(
    ("outcome", "words"), [("interrupted", "interrupted"), ("deadline", "ended by its deadline"), ("x", "ended by x")]
)
def test_a_check_that_did_not_finish_says_why(outcome: str, words: str) -> None:
    end = {"kind": "step_end", "gen": 0, "step": 0, "outcome": outcome, "seconds": 5.7}
    assert shown(STEP, end) == f"compute 5.7 s, {words}\n"


def test_ranks_are_not_said_to_start_before_the_agents_are_done() -> None:
    """Agents carry out their steps between the event of the generation and the start of its ranks."""
    assert shown({"kind": "generation", "gen": 0, "ranks": [[0, 0, 0]]}) == ""


@pytest.mark.parametrize(
    "event", [{"kind": "rank"}, {"kind": "step_end", "outcome": "x", "step": 0, "seconds": "long"}]
)
def test_an_event_without_its_fields_is_ignored(event: dict[str, Any]) -> None:
    generation = {"kind": "generation", "gen": 0, "ranks": [[0, 0, 0]]}
    assert shown(generation, event) == shown(generation)


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "trouble", "seen": ["rank 0"]},
        {"kind": "step", "step": 0, "check": "compute", "stage": "repeat", "ranks": [], "timeout_s": 1.0},
        {"kind": "step", "step": 0, "check": "compute", "stage": "measure", "ranks": [0], "timeout_s": 10**400},
    ],
)
def test_fields_of_the_wrong_type_are_ignored(event: dict[str, Any]) -> None:
    assert shown(event) == ""


@pytest.mark.parametrize(("step", "words"), [(-1, "rank 1 not ready, rank 0 dead"), (4, "rank 1 stuck, rank 0 dead")])
def test_a_rank_that_still_starts_is_not_called_stuck(step: int, words: str) -> None:
    seen = [{"rank": 1, "how": "stuck"}, {"rank": 0, "how": "dead"}]
    assert shown({"kind": "trouble", "step": step, "seen": seen}) == f"trouble: {words}\n"


def test_a_reader_that_reads_nothing_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-S, or a pager, for longer than agents wait for the controller. The lines of others wait with it."""
    monkeypatch.setattr(module, "_CLOSE_S", 0.2)
    monkeypatch.setattr(module, "_QUEUE_SIZE", 10)
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    received: list[bytes] = []
    reading = threading.Thread(target=lambda: received.extend(iter(lambda: os.read(read, 1 << 16), b"")))
    with open(write, "w") as stream:
        progress, began = Progress(stream), time.monotonic()
        for _ in range(200):
            progress({"kind": "interrupted", "by": "x" * 1_000})
            print_status("a line of another part")
        progress.close()
        took_s = time.monotonic() - began
        reading.start()
        progress._queue.put(None)
        progress._thread.join(20)
        assert not progress._thread.is_alive()
    reading.join()
    os.close(read)
    lines = b"".join(received).splitlines()
    assert took_s < 10
    assert any(line.endswith(b" lines were not shown: they were not read in time)") for line in lines)
    assert 5 < len(lines) < 100
