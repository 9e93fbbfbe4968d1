"""The end of ``make install``: where the command is, or why it does not start."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("set_up", Path(__file__).parents[1] / "tools" / "set_up.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "_COMMAND", str(Path(sys.executable).parent / "seatrial"))
    monkeypatch.setattr(module, "_PYTHON", sys.executable)
    return module


def test_the_last_line_says_where_the_command_is(set_up: Any, capsys: pytest.CaptureFixture[str]) -> None:
    set_up._prove_that_it_starts()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"make: {set_up._COMMAND} is ready: seatrial, version ")
    assert "; torch 2." in line


def test_a_command_that_only_starts_with_pythonpath_is_refused(
    set_up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is in PYTHONPATH alone, as click was."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "only_there.py").touch()
    command = tmp_path / "seatrial"
    command.write_text(f"#!{sys.executable}\nimport only_there\n")
    command.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "there"))
    monkeypatch.setattr(set_up, "_COMMAND", str(command))
    with pytest.raises(SystemExit) as refused:
        set_up._prove_that_it_starts()
    assert "seatrial --version does not start (ModuleNotFoundError: No module named 'only_there');" in str(
        refused.value
    )


@pytest.mark.parametrize(("mode", "code"), [(0o755, 0), (0o775, 2), (0o777, 2)])
def test_the_first_hour_executes_nothing_that_others_could_write(mode: int, code: int, tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "tools" / "gpu_first_hour.sh"
    (out := tmp_path / "out").mkdir()
    out.chmod(mode)
    done = subprocess.run(
        [str(script), "list"], env={**os.environ, "OUT": str(out)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert ("nobody else can write" in done.stderr) == (code == 2)
