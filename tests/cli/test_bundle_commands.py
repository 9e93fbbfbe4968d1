"""Every command works from the bundle as it does from an installation."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from by_day import by_day
from event_streams import SCENES, lines_of

from seatrial.cli.command import commands

CASES = {
    "run": ["run", "smoke", "--device", "cpu", "--dry-run"],
    "train": ["train", "digits", "1", "--device", "cpu", "--dry-run"],
    "launch": ["launch", "--device", "cpu", "--dry-run", "script.py", "--epochs", "3"],
    "report": ["report", "kept", "--json"],
    "plan show": ["plan", "show", "smoke"],
    "plan from": ["plan", "from", "passed"],
    "data fetch": ["data", "fetch", "digits"],
    "bundle": ["bundle", "again.pyz"],
}
RECORDINGS = Path(__file__).parents[1] / "report" / "recordings"
EXIT_CODES = {"report": 130}


def test_every_command_has_a_case() -> None:
    # Only an installed seatrial completes words (test_completion.py).
    assert {*CASES, "completion"} == set(commands())


def typed(start: list[str], words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": ""}
    return subprocess.run(
        [*start, *words], cwd=cwd, env=environ, capture_output=True, text=True, timeout=50, check=False
    )


def folder_of(tmp_path: Path, name: str) -> Path:
    """A folder with a script and the events of two trials: one was interrupted, one passed."""
    folder = tmp_path / name
    (folder / "passed").mkdir(parents=True)
    shutil.copy(RECORDINGS / "pass.events", folder / "passed" / "controller.events")
    (folder / "kept").mkdir(parents=True)
    (folder / "kept" / "controller.events").write_bytes(b"".join(lines_of(SCENES["interrupted"]().events)))
    (folder / "script.py").touch()
    return folder


@pytest.mark.parametrize("name", by_day(CASES, 1, 3, 4))
def test_a_command_answers_alike(pyz: Path, tmp_path: Path, name: str) -> None:
    installed = typed([sys.executable, "-m", "seatrial"], CASES[name], folder_of(tmp_path, "installed"))
    bundled = typed([sys.executable, str(pyz)], CASES[name], folder_of(tmp_path, "bundled"))
    expected = EXIT_CODES.get(name, 0)
    assert (installed.returncode, bundled.returncode) == (expected, expected), installed.stderr + bundled.stderr
    assert installed.stdout
    if "--dry-run" in CASES[name]:
        # The ranks import seatrial from the bundle.
        assert f"PYTHONPATH={pyz}" in bundled.stdout
        plain = bundled.stdout.replace(f" PYTHONPATH={pyz}", "").replace("/bundled", "/installed")
        # The folder of a program is part of its digest.
        plain, expected_text = (
            re.sub(r"SEATRIAL_JOB=\w{64}", "SEATRIAL_JOB=...", t) for t in (plain, installed.stdout)
        )
        assert plain == expected_text
    else:
        assert bundled.stdout == installed.stdout
    if name == "report":
        assert json.loads(bundled.stdout)["exit_code"] == 130


def test_the_bundle_writes_itself(pyz: Path, tmp_path: Path) -> None:
    shutil.copy(pyz, tmp_path / "mine.pyz")
    done = typed([sys.executable, "mine.pyz"], ["bundle", "again.pyz"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again.pyz").read_bytes() == pyz.read_bytes()
