"""What a terminal shows of lines on standard error: whole words, and nothing behind a live line."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seatrial.report.program_display import ProgramDisplay
from seatrial.report.progress import Progress
from seatrial.run import run_program
from seatrial.util import streams
from seatrial.util.streams import print_status
from seatrial.util.terminal import columns_of, wrapped

WORDS = (
    "seatrial inventory.toml: 2 processes on this machine (cpu, gloo), at most 120 s; options: --device cpu --env A=B"
)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], str]:
    """What a terminal of 60 columns gets on standard error while a function runs."""
    for name in ("NO_COLOR", "COLUMNS", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def run(function: Callable[[], None]) -> str:
        controller, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        with open(terminal, "w") as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            function()
            monkeypatch.undo()
        text = b""
        with contextlib.suppress(OSError):  # EIO: the other side is closed, and all is read
            while piece := os.read(controller, 1 << 16):
                text += piece
        os.close(controller)
        return text.decode()

    return run


def test_a_status_is_broken_between_words(shown: Callable[[Callable[[], None]], str]) -> None:
    lines = shown(lambda: print_status(WORDS)).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60
    assert " ".join(line.strip() for line in lines) == WORDS


@pytest.mark.parametrize("display", [Progress, lambda stream: ProgramDisplay(None, stream, prefix=False)])
def test_a_status_clears_the_live_line(
    display: Callable[..., Progress | ProgramDisplay], shown: Callable[[Callable[[], None]], str]
) -> None:
    """As from the driver of Slurm and of pods, which know no display: not ``startingseatrial: submitted ...``."""

    def run() -> None:
        live = display(sys.stderr)
        print_status("seatrial: submitted as Slurm job 2")
        live.close()
        print_status("seatrial: the end")

    text = shown(run)
    assert re.search(r"\x1b\[2K(\x1b\[[0-9;?]*\w)*seatrial: submitted as Slurm job 2\r\n", text), text
    assert text.endswith("seatrial: the end\r\n")
    assert not re.search(r"[a-z]seatrial:", text)


def test_the_controller_prints_through_it() -> None:
    """A message that bypasses print_status would be written behind the live line."""
    source = Path(streams.__file__).parents[1]
    files = [file for name in ("targets", "run", "request", "cli", "report") for file in (source / name).rglob("*.py")]
    assert len(files) > 50
    others = {file.name for file in files if re.search(r"sys\.stderr\.write|file=.*sys\.stderr", file.read_text())}
    # The first three run on hosts and in pods; a fetch has a display of its own, and no trial.
    assert others == {"connection.py", "pod.py", "wait_for_hosts.py", "data_fetch.py"}


def test_what_a_rank_printed_is_not_broken(shown: Callable[[Callable[[], None]], str], tmp_path: Path) -> None:
    """The marks of a traceback stay under the code that they mark."""
    printed = ["    raise RuntimeError('no data')" + "!" * 50, f"    {'^' * 79}"]
    outcome = {"kind": "outcome", "gen": 0, "how": "failed", "text": "rank 1 failed", "last_lines": printed}
    lines = shown(lambda: ended_with(outcome, tmp_path)).splitlines()
    assert [line for line in lines if line.removeprefix("  ") in printed] == [f"  {line}" for line in printed]


@pytest.mark.parametrize(
    ("is_ended_by_us", "how"),
    [(True, "printed a traceback, but had not exited before the first failure"), (False, "did not fail first")],
)
def test_a_traceback_of_a_rank_that_seatrial_ended_contradicts_nothing(
    shown: Callable[[Callable[[], None]], str], tmp_path: Path, how: str, *, is_ended_by_us: bool
) -> None:
    outcome = {"kind": "outcome", "gen": 0, "how": "failed", "text": "rank 1 failed", "last_lines": []}
    events = [
        {"kind": "trouble", "gen": 0, "seen": [{"how": "dead", "rank": 1}]},
        {"kind": "exit", "gen": 0, "rank": 0, "code": 1, "ours": is_ended_by_us},
        outcome,
    ]
    text = shown(lambda: print(run_program._exit_code(events, tmp_path, {0: "Traceback"}, {})))
    assert f"seatrial: the last output of rank 0, which {how}:" in " ".join(text.split())


def ended_with(outcome: dict[str, Any], folder: Path) -> None:
    assert run_program._exit_code([outcome], folder, {}, {}) == 1


def test_no_terminal_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = os.openpty()
    with open(terminal, "w") as stream:
        monkeypatch.setenv("COLUMNS", "60")
        assert columns_of(stream) == 60
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
        assert columns_of(stream) is None
    os.close(controller)
    assert wrapped(WORDS, None) == [WORDS]
