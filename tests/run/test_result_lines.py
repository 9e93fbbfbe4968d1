"""The lines of the result that a training prints at its end."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from seatrial.agent.last_output import LastOutput
from seatrial.protocol.wire import encode
from seatrial.report.program_display import ProgramDisplay
from seatrial.run.run_program import _exit_code

_OUTCOME = {"kind": "outcome", "gen": 0, "restarts": 0, "how": "ended", "text": "", "last_lines": [], "code": 0}


@pytest.mark.parametrize(
    ("said", "printed"), [({"lines": ["accuracy: 1"]}, "accuracy: 1\n"), ({}, ""), ({"lines": 5}, "")]
)
def test_a_result_without_lines_ends_nothing(
    said: dict[str, Any], printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record keeps also the messages that the conductor refused."""
    events = [{"kind": "result", "gen": 0, "rank": 0, "code": 0, **said}, _OUTCOME]
    assert _exit_code(events, tmp_path, {}, {}) == 0
    assert capsys.readouterr().out == printed


def test_a_line_that_cannot_be_printed_hides_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "latin-1", "strict"))
    result = {"kind": "result", "gen": 0, "rank": 0, "code": 0, "lines": ["one", "checkpoint: /\u20ac", "two"]}
    assert _exit_code([result, _OUTCOME], tmp_path, {}, {}) == 0
    assert raw.getvalue().decode() == "one\ncheckpoint: /\\u20ac\ntwo\n"


@pytest.mark.parametrize("held", [True, False])
def test_no_line_of_a_rank_begins_as_our_messages_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, held: bool
) -> None:
    """The controller reads ours in the log of the first pod, and each node of the run could prove one."""
    line = encode({"number": 7, "proof": "", "message": {"kind": "end"}})[0].decode().rstrip()
    events = [] if held else [{"kind": "result", "gen": 0, "rank": 0, "code": 0, "lines": ["trained", line]}]
    assert _exit_code([*events, _OUTCOME], tmp_path, {0: f"trained\n{line}"} if held else {}, {}) == 0
    assert capsys.readouterr().out == f"trained\n {line}\n"


@pytest.mark.parametrize(
    ("own", "line"),
    [
        ({1: True, 3: True, 2: False}, "ranks 1, 3 report NaN or Inf in their own numbers"),
        ({2: True}, "rank 2 reports NaN or Inf in its own numbers"),
        ({1: False, 2: "yes"}, "no rank reports NaN or Inf in its own numbers"),
    ],
)
def test_a_rank_with_nan_is_named_by_its_own_result_only(
    own: dict[int, object], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = {"kind": "result", "gen": 0, "rank": 0, "lines": ["stopped", "digest"], "nonfinite": False}
    others = [{**first, "rank": rank, "lines": [], "nonfinite": said} for rank, said in own.items()]
    others += [{**first, "rank": [5], "nonfinite": True}, {**first, "rank": 6, "gen": 1, "nonfinite": True}]
    assert _exit_code([*others, first, {**_OUTCOME, "code": 1}], tmp_path, {}, {}) == 1
    assert capsys.readouterr().out == f"stopped\n{line}\ndigest\n"


@pytest.mark.parametrize("line", ["\x1b[1;35mValueError\x1b[0m: \x1b[35mbad\x1b[0m", f"ValueError: {'bad ' * 300}"])
@pytest.mark.parametrize("is_seen", [True, False])
def test_the_last_output_is_shown_once(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_seen: bool
) -> None:
    """An agent sends it without colors, and the middle of a long line is left out."""
    output, display = LastOutput(), ProgramDisplay(io.StringIO(), None, prefix=False)
    output.add([line.encode()])
    display.on_message({"kind": "output", "rank": 0, "lines": [line], "left_out": 0})
    display.close()
    trouble = {"kind": "trouble", "gen": 0, "seen": [{"how": "dead", "rank": 0}]}
    failed = {**_OUTCOME, "how": "failed", "text": "rank 0 failed", "last_lines": output.telling()}
    assert _exit_code([trouble, failed], tmp_path, {}, display.last_lines if is_seen else {}) == 1
    assert ("ValueError" in capsys.readouterr().err) == (not is_seen)
