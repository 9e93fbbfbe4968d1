"""Tools of drivers: where they are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.util.tool import find_tool


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
