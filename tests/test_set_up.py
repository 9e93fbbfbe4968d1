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


@pytest.mark.parametrize(
    ("above", "mode", "refusal"),
    [
        (0o755, 0o755, ""),
        (0o1777, 0o755, ""),
        (0o755, 0o775, "other users can write to {}/above/out"),
        (0o755, 0o777, "other users can write to {}/above/out"),
        (0o2775, 0o755, "other users can write to {}/above"),
    ],
)
def test_the_first_hour_executes_nothing_that_others_could_write(
    above: int, mode: int, refusal: str, tmp_path: Path
) -> None:
    (out := tmp_path / "above" / "out").mkdir(parents=True)
    out.chmod(mode)
    out.parent.chmod(above)
    done = _first_hour(out, "list")
    assert (done.returncode, done.stderr == "") == ((2, False) if refusal else (0, True)), done.stderr
    assert f"OUT={out}: {refusal.format(tmp_path)}" in done.stderr or not refusal
    assert "such as OUT=" in done.stderr or not refusal


def test_the_first_hour_follows_no_link_beside_its_folder(tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir(mode=0o755)
    (tmp_path / "out.tar.gz").symlink_to("private")
    (tmp_path / "private").write_text("precious")
    (tmp_path / "torch.py").write_text("raise ImportError")
    done = _first_hour(out, "pack", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "private").read_text() == "precious"
    listed = subprocess.check_output(["tar", "-tzf", out / "gpu-first-hour.tar.gz"], text=True).split()
    assert listed == ["summary.txt"]


def _first_hour(out: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parents[1] / "tools" / "gpu_first_hour.sh"
    variables = {**os.environ, "PYTHON": sys.executable, "OUT": str(out), **environ}
    return subprocess.run([str(script), *words], env=variables, capture_output=True, text=True, check=False, timeout=50)
