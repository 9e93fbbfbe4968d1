"""The lines of the result that a training prints at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
