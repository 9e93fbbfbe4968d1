"""Tools of drivers: where they are looked for, and how much of their answer is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.util.tool import find_tool, run_tool


def test_a_tool_in_the_working_folder_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("here", "bin"):
        tool = tmp_path / folder / "some-smi"
        tool.parent.mkdir()
        tool.touch(0o755)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PATH", ":.:../here")
    assert find_tool("some-smi") is None
    monkeypatch.setenv("PATH", f".:{tmp_path}/bin")
    assert find_tool("some-smi") == f"{tmp_path}/bin/some-smi"


def test_a_tool_that_does_not_stop_printing_is_ended() -> None:
    code, said = run_tool(["sh", "-c", "exec yes"])
    assert (code, said) == (-1, "it printed more than 16 MiB")


def test_exit_code_and_both_outputs() -> None:
    assert run_tool(["sh", "-c", r"echo a; echo b >&2; printf '\377'; exit 7"]) == (7, "a\nb\n\ufffd")
    assert run_tool(["sh", "-c", "exec >&- 2>&-; sleep 60"], timeout_s=0.2) == (None, "")
    assert run_tool(["sleep", "60"], timeout_s=0.2) == (None, "")
