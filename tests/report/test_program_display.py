"""The display of a training: lines, counts of lines left out, and never a wait for a slow reader."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from seatrial.report.live import live
from seatrial.report.program_display import ProgramDisplay
from seatrial.report.progress import Progress
from seatrial.util.streams import print_status

PROGRESS: dict[str, Any] = {"kind": "progress", "rank": 0, "step": 5, "num_steps": 10, "epoch": 0, "num_epochs": 1}
PROGRESS |= {"loss": 0.5, "accuracy": None, "samples_per_s": None, "left_s": None}


def test_lines_of_ranks_and_notes_are_escaped() -> None:
    output, errors = io.StringIO(), io.StringIO()
    display = ProgramDisplay(output, errors, prefix=True)
    display.on_message({"kind": "output", "rank": 3, "lines": ["one", "\x1b[31mred"], "left_out": 2})
    display.on_event({"kind": "note", "text": "rank 1 died"})
    display.on_message(PROGRESS)
    display.on_message(PROGRESS)  # within five seconds of the one before
    display.on_event({"kind": "measurements"})
    display.close()
    left_out = "(2 lines are not shown; the file of the rank has them)"
    assert output.getvalue().splitlines() == ["[rank 3] one", "[rank 3] \\x1b[31mred", f"[rank 3] {left_out}"]
    note, progress = errors.getvalue().splitlines()
    assert note.endswith("s] rank 1 died")
    assert progress.endswith("s] epoch 1/1, step 5/10, loss 0.5000")


def test_a_note_of_a_node_or_rank_is_no_sentence_of_the_controller() -> None:
    errors = io.StringIO()
    display = ProgramDisplay(None, errors, prefix=False)
    display.on_event({"kind": "note", "src": "node2", "text": "node 0 (a) was lost"})
    display.on_event({"kind": "note", "src": "rank7.0", "text": "node 0 (a) was lost"})
    display.on_event({"kind": "note", "src": "conductor", "text": "node 1 (b) was lost"})
    display.close()
    first, second, third = errors.getvalue().splitlines()
    assert first.endswith('s] node 2 says: "node 0 (a) was lost"')
    assert second.endswith('s] rank 7 says: "node 0 (a) was lost"')
    assert third.endswith("s] node 1 (b) was lost")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "koi8-r", "cp1253", "iso-8859-7", "gbk"])
def test_a_character_that_cannot_be_printed_hides_no_other_output(encoding: str) -> None:
    raw = io.BytesIO()
    display = ProgramDisplay(io.TextIOWrapper(raw, encoding, "strict", write_through=True), None, prefix=True)
    for rank, line in enumerate(["step 1", "5 \u00f0", "step 2"]):
        display.on_message({"kind": "output", "rank": rank, "lines": [line], "left_out": 0})
    display.close()
    shown = "\u00f0" if encoding == "latin-1" else "\\xf0"
    assert raw.getvalue().decode(encoding).splitlines() == ["[rank 0] step 1", f"[rank 1] 5 {shown}", "[rank 2] step 2"]


def test_a_gap_promises_no_file_that_is_not_kept() -> None:
    output = io.StringIO()
    display = ProgramDisplay(output, None, prefix=False, kept=False)
    display.on_message({"kind": "output", "rank": 0, "lines": [], "left_out": 9})
    display.close()
    assert output.getvalue().startswith("(9 lines are not shown; they are lost with this pod")


def test_without_a_prefix_lines_are_unchanged() -> None:
    output = io.StringIO()
    display = ProgramDisplay(output, None, prefix=False)
    display.on_message({"kind": "output", "rank": 0, "lines": ["loss  1.0"], "left_out": 0})
    display.close()
    assert output.getvalue() == "loss  1.0\n"


def test_a_slow_reader_delays_nothing() -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as full, open(reading) as reader:
        display = ProgramDisplay(full, None, prefix=False)
        for _ in range(3_000):
            display.on_message({"kind": "output", "rank": 0, "lines": ["x" * 100], "left_out": 0})
        # Far more than a pipe holds, and no call has waited; now a thread reads all of it.
        thread = threading.Thread(target=lambda: reader.read())
        thread.start()
        display.close()
        full.close()
        thread.join()


def test_an_agent_that_sends_megabytes_fills_no_memory() -> None:
    """Each message alone would fit, and what a stopped reader leaves is counted."""
    reading, writing = os.pipe()
    with open(writing, "w") as full, open(reading) as reader:
        display = ProgramDisplay(full, None, prefix=False)
        message = {"kind": "output", "rank": 0, "lines": ["x" * 1_999] * 2_000, "left_out": 0}
        tracemalloc.start()
        try:
            for _ in range(40):
                display.on_message(message)
            kept_bytes = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        thread = threading.Thread(target=lambda: reader.read())
        thread.start()
        display.close()
        full.close()
        thread.join()
    assert kept_bytes < 32 << 20


def test_the_last_lines_of_ranks_are_kept_as_their_agents_keep_them() -> None:
    """Each rank may end in a line of 64 KiB, and a line of ours names the end of it alone."""
    display = ProgramDisplay(io.StringIO(), None, prefix=True)
    for rank, line in enumerate(["x" * 65_000, "\x1b[31mred", "1 %\r2 %", "\ud800"]):
        display.on_message({"kind": "output", "rank": rank, "lines": [line], "left_out": 0})
    display.close()
    assert display.last_lines == {0: f"{'x' * 300}…{'x' * 199}", 1: "red", 2: "2 %", 3: "?"}


def test_tracebacks_of_many_ranks_are_held_in_bounded_memory() -> None:
    """They wait for the news of which rank failed first, and what comes of them fits into the queue."""
    output = io.StringIO()
    display = ProgramDisplay(output, None, prefix=True)
    display.on_event({"kind": "exit", "rank": 1, "code": 1, "ours": False})
    for rank in range(60):
        lines = [_TRACEBACK[0], *["x" * 2_000] * 120]
        display.on_message({"kind": "output", "rank": rank, "lines": lines, "left_out": 0})
    held = display.close()
    assert 0 < sum(map(len, held.values())) < 9 << 20
    assert output.getvalue().count("Traceback") == 60 - len(held)


def test_what_is_too_much_in_one_message_is_counted() -> None:
    output = io.StringIO()
    display = ProgramDisplay(output, None, prefix=False)
    display.on_message({"kind": "output", "rank": 0, "lines": ["x" * 1_999] * 2_000, "left_out": 1})
    display.close()
    lines = output.getvalue().splitlines()
    assert 32 <= len(lines) - 1 <= 200
    assert lines[-1].startswith(f"({2_001 - len(lines) + 1} lines are not shown")


class _GoneReader(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_is_gone_is_no_error() -> None:
    errors = io.StringIO()
    display = ProgramDisplay(_GoneReader(), errors, prefix=False)
    for line in ("x", "y"):
        display.on_message({"kind": "output", "rank": 0, "lines": [line], "left_out": 0})
    display.on_event({"kind": "note", "text": "still shown"})
    display.close()
    assert "still shown" in errors.getvalue()


_TEXT = {"kind": "output", "rank": 0, "lines": "each character would be a line", "left_out": 0}


@pytest.mark.parametrize("message", [{"kind": "output"}, {"kind": "progress"}, {"kind": "output", "rank": "x"}, _TEXT])
def test_a_malformed_message_is_refused(message: dict[str, Any]) -> None:
    display = ProgramDisplay(None, None, prefix=False)
    with pytest.raises((KeyError, TypeError, ValueError)):
        display.on_message(message)
    display.close()


def test_on_a_terminal_lines_are_above_the_bar() -> None:
    leader, follower = os.openpty()
    with open(follower, "w") as terminal:
        display = ProgramDisplay(terminal, terminal, prefix=False)
        display.on_message(PROGRESS)
        display.on_message({"kind": "output", "rank": 0, "lines": ["a line"], "left_out": 0})
        deadline = time.monotonic() + 20
        output = b""
        while not (b"step 5/10" in output and b"a line\r\n" in output):
            assert time.monotonic() < deadline, output
            output += os.read(leader, 4096)
        reader = threading.Thread(target=lambda: os.read(leader, 1 << 16))
        reader.start()
        display.close()
        reader.join()
    os.close(leader)


def test_a_terminal_that_is_closed_replaces_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was exit code 3 in place of 130: the bar could not be cleared there, and its error came instead."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    controller, follower = os.openpty()
    terminal = open(follower, "w")  # noqa: SIM115 - it cannot be closed in order
    display = ProgramDisplay(terminal, terminal, prefix=False)
    display.on_message(PROGRESS)
    os.close(controller)
    display.on_message({"kind": "output", "rank": 0, "lines": ["nobody reads it"], "left_out": 0})
    assert display.close() == {}
    with contextlib.suppress(OSError):
        terminal.close()


@pytest.mark.parametrize(
    ("show", "none_left_for"),
    [
        (Progress, "Thread"),
        (lambda terminal: ProgramDisplay(None, terminal, prefix=False), "Thread"),
        (lambda terminal: live(terminal, bar=True), "_RefreshThread"),
    ],
)
def test_without_a_further_thread_the_cursor_is_shown(
    show: Callable[[io.StringIO], object], none_left_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others can take all threads of a host: the command ends then, and rich had hidden the cursor."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if type(thread).__name__ == none_left_for:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    terminal = _Terminal()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        show(terminal)
    hidden, shown = (terminal.getvalue().rfind(code) for code in ("\x1b[?25l", "\x1b[?25h"))
    assert hidden <= shown


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "colored"),
    [
        (io.StringIO, {}, False),
        (io.StringIO, {"FORCE_COLOR": "1"}, True),
        (io.StringIO, {"FORCE_COLOR": "0"}, False),
        (io.StringIO, {"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
        (_Terminal, {"TERM": "xterm"}, True),
        (_Terminal, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (_Terminal, {"TERM": "dumb"}, False),
    ],
)
def test_colors_of_a_script(
    stream: type[io.StringIO], environ: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but colors passes: a rank moves no cursor and sets no title."""
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    output = stream()
    display = ProgramDisplay(output, None, prefix=False)
    lines = ["a \x1b[1;32mgreen\x1b[0m b", "\x1b[2J\x1b]0;title\x07\x1b[31", "plain"]
    display.on_message({"kind": "output", "rank": 0, "lines": lines, "left_out": 0})
    display.close()
    first = "a \x1b[1;32mgreen\x1b[0m b\x1b[0m" if colored else "a \\x1b[1;32mgreen\\x1b[0m b"
    assert output.getvalue().splitlines() == [first, "\\x1b[2J\\x1b]0;title\\x07\\x1b[31", "plain"]


_TRACEBACK = ["[rank0]: Traceback (most recent call last):", "[rank0]: RuntimeError: Connection closed by peer"]


def _show(display: ProgramDisplay, *lines: str) -> None:
    display.on_message({"kind": "output", "rank": 0, "lines": list(lines), "left_out": 0})


def test_a_traceback_is_held_for_the_one_that_failed_first() -> None:
    output = io.StringIO()
    display = ProgramDisplay(output, None, prefix=False)
    _show(display, "step 1", _TRACEBACK[0])
    display.on_event({"kind": "exit", "rank": 1, "code": 1, "ours": False})
    _show(display, _TRACEBACK[1])
    assert display.close() == {0: "\n".join(_TRACEBACK)}
    assert output.getvalue() == "step 1\n"


def test_a_traceback_before_a_restart_is_shown() -> None:
    output = io.StringIO()
    display = ProgramDisplay(output, None, prefix=False)
    _show(display, *_TRACEBACK)
    display.on_event({"kind": "generation", "ranks": [[0, 0, 0]]})
    _show(display, "step 1")
    assert display.close() == {}
    assert output.getvalue().splitlines() == [*_TRACEBACK, "step 1"]


def test_a_script_that_goes_on_after_a_traceback_is_not_held() -> None:
    output = io.StringIO()
    display = ProgramDisplay(output, None, prefix=False)
    _show(display, *_TRACEBACK, *["goes on"] * 300)
    assert display.close() == {}
    assert output.getvalue().count("goes on") == 300


def test_a_traceback_is_shown_where_nothing_follows() -> None:
    output = io.StringIO()
    display = ProgramDisplay(output, None, prefix=False)
    _show(display, *_TRACEBACK)
    until = time.monotonic() + 30.0
    while not output.getvalue():
        assert time.monotonic() < until
        time.sleep(0.05)
    assert display.close() == {}


def test_no_rank_has_threads_started() -> None:
    display = ProgramDisplay(io.StringIO(), io.StringIO(), prefix=False)
    before = threading.active_count()
    for _ in range(20):
        _show(display, _TRACEBACK[0])
        _show(display, *["x"] * 300)
        display.on_event({"kind": "stack", "rank": 1, "state": "R", "quiet_s": 1.0})
        display.on_event({"kind": "measurements"})
    assert threading.active_count() == before
    display.close()


def test_places_are_in_the_order_of_the_ranks() -> None:
    errors = io.StringIO()
    display = ProgramDisplay(None, errors, prefix=False)
    display.on_event({"kind": "note", "text": "what each rank does"})
    for rank in (2, 3, 0):
        display.on_event({"kind": "stack", "rank": rank, "state": "R", "quiet_s": 1.0})
    display.on_event({"kind": "note", "text": "rank 2 stands elsewhere"})
    display.on_event({"kind": "stack", "rank": 1, "state": "R", "quiet_s": 1.0})
    display.close()
    shown = [line.partition("s] ")[2].partition(":")[0] for line in errors.getvalue().splitlines()]
    assert shown == ["what each rank does", "rank 0", "rank 2", "rank 3", "rank 2 stands elsewhere", "rank 1"]


def test_a_place_and_an_interruption_in_words() -> None:
    errors = io.StringIO()
    display = ProgramDisplay(None, errors, prefix=False, grace_s=4.5)
    for node, host in enumerate(("a", "vm", "vm")):
        display.on_event({"kind": "node", "src": f"node{node}", "hostname": host})
        display.on_event({"kind": "stack", "src": f"node{node}", "rank": node, "state": "R", "quiet_s": 1.0})
    display.on_event({"kind": "generation", "ranks": [[0, 0, 0]]})
    for by in ("SIGINT", "SIGTERM", "SIGHUP", "signal 15 (SIGTERM) to the agent of node 1"):
        display.on_event({"kind": "interrupted", "by": by})
    display.close()
    shown = [line.partition("s] ")[2].partition(": ") for line in errors.getvalue().splitlines()]
    assert [words[0] for words in shown[:3]] == ["rank 0 on node a", "rank 1 on node vm", "rank 2 on node 2 (vm)"]
    grace = "the ranks get SIGTERM, and 4.5 s (--grace) to save and to exit"
    assert [words[2] for words in shown[3:]] == [
        f"{grace}; a second Ctrl-C ends them at once",
        f"{grace}; a second SIGTERM ends them at once",
        f"{grace}; Ctrl-C ends them at once",
        f"{grace}; Ctrl-C twice ends them at once",
    ]


@pytest.mark.parametrize(("printed", "when"), [([], " before the ranks were started"), (["step 10"], "")])
def test_ranks_that_print_were_started(printed: list[str], when: str) -> None:
    """A training in pods has no conductor that tells their start."""
    errors = io.StringIO()
    display = ProgramDisplay(io.StringIO(), errors, prefix=False)
    if printed:
        display.on_message({"kind": "output", "gen": 0, "rank": 0, "lines": printed, "left_out": 0})
    display.on_event({"kind": "interrupted", "by": "the cluster: pod t was evicted"})
    display.close()
    assert errors.getvalue().rstrip().endswith(f"interrupted by the cluster: pod t was evicted{when}")


def test_a_node_has_one_name_of_readable_length() -> None:
    """Each place is shown with it, and one agent may send any number of names."""
    errors = io.StringIO()
    display = ProgramDisplay(None, errors, prefix=False)
    for name, source in (("h" * 7_000_000, "node1"), ("another", "node1"), ("another", "rank2.7")):
        display.on_event({"kind": "node", "src": source, "hostname": name})
    for source in ("node1", "rank2.7"):
        display.on_event({"kind": "stack", "src": source, "rank": 2, "state": "R", "quiet_s": 1.0})
        display.on_event({"kind": "note", "text": "-"})
    display.close()
    shown = [line.partition("s] ")[2] for line in errors.getvalue().splitlines()]
    display = ProgramDisplay(None, words := io.StringIO(), prefix=False)
    display.on_event({"kind": "node", "src": "node1", "hostname": "n1: replace node n0"})
    display.on_event({"kind": "stack", "src": "node1", "rank": 2, "state": "R", "quiet_s": 1.0})
    display.close()
    assert 'rank 2 on node "n1: replace node n0": ' in words.getvalue()
    where = "no output; runs; no Python stack"
    assert shown == [f"rank 2 on node {'h' * 253}: {where}", "-", f"rank 2: {where}", "-"]


def test_places_are_shown_without_another_event() -> None:
    errors = io.StringIO()
    display = ProgramDisplay(None, errors, prefix=False)
    display.on_event({"kind": "stack", "rank": 1, "state": "R", "quiet_s": 1.0})
    until = time.monotonic() + 30.0
    while "rank 1" not in errors.getvalue():
        assert time.monotonic() < until
        time.sleep(0.05)
    display.close()


@pytest.mark.parametrize("wrong", [{"quiet_s": "x"}, {"quiet_s": []}, {"quiet_s": None}, {"quiet_s": 1.0, "rank": "x"}])
def test_a_wrong_place_is_an_error_of_its_sender(wrong: dict[str, Any]) -> None:
    display = ProgramDisplay(io.StringIO(), io.StringIO(), prefix=False)
    with pytest.raises((TypeError, ValueError)):
        display.on_event({"kind": "stack", "src": "node1", "rank": 1, **wrong})
    display.on_event({"kind": "note", "src": "node0", "text": "of another one"})
    assert display.close() == {}


def test_only_the_first_rank_tells_the_progress() -> None:
    errors = io.StringIO()
    display = ProgramDisplay(None, errors, prefix=False)
    display.on_message({**PROGRESS, "rank": 1})
    display.close()
    assert errors.getvalue() == ""


def test_what_others_print_meanwhile_waits_for_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The loop of a run in pods printed such a line to a terminal that was stopped."""
    errors, goes_on = io.StringIO(), threading.Event()
    display = ProgramDisplay(None, errors, prefix=False)

    def waits() -> None:
        assert goes_on.wait(20)

    display._put(waits)
    print_status("seatrial: pod a was deleted")
    assert errors.getvalue() == ""
    goes_on.set()
    display.close()
    print_status("later")
    assert errors.getvalue() == "seatrial: pod a was deleted\n"
    assert capsys.readouterr().err == "later\n"
