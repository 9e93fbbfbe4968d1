"""Closed, full and broken standard streams: no traceback, and the exit code is still the right one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from by_day import by_day
from event_streams import SCENES, lines_of

CLOSED = "<&- >&- 2>&-"
FULL = "/dev/full"
needs_full = pytest.mark.skipif(not Path(FULL).exists(), reason="no /dev/full")


def in_a_shell(arguments: str, cwd: Path, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command with the redirections of a shell."""
    command = ["sh", "-c", f'exec "$0" -m seatrial {arguments}', sys.executable]
    # What cannot be written would not stay behind until the end.
    environ = {name: text for name, text in (environ or os.environ).items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=50, check=False)


def test_closed_descriptors_are_reopened(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys; from seatrial.cli.click_app import main; sys.argv = ['seatrial', '--version']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "child = subprocess.call(['sh', '-c', 'true <&0 && : >&1 && : >&2']);"
        " os._exit(os.open(os.devnull, os.O_RDONLY) * 10 + child)"
    )
    command = ["sh", "-c", f'exec "$0" -c "$1" {CLOSED}', sys.executable, code]
    assert subprocess.run(command, cwd=tmp_path, timeout=50, check=False).returncode == 30


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The events of a trial that was interrupted: its code, 130, is nothing that an error of ours has."""
    (tmp_path / "x.events").write_bytes(b"".join(lines_of(SCENES["interrupted"]().events)))
    return tmp_path


@pytest.mark.parametrize(
    "streams",
    [
        "<&-",
        ">&-",
        "2>&-",
        CLOSED,
        pytest.param(f">{FULL}", marks=needs_full),
        pytest.param(f"2>{FULL}", marks=needs_full),
        pytest.param(f">{FULL} 2>{FULL}", marks=needs_full),
    ],
)
def test_the_verdict_is_not_lost(stopped: Path, streams: str) -> None:
    done = in_a_shell(f"report x.events --out again {streams}", stopped)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    told = [line for line in done.stderr.splitlines() if "the report could not be printed" in line]
    out_is_lost = streams.startswith(">")
    assert len(told) == (out_is_lost and "2>" not in streams)
    assert all("it is in again/" in line for line in told)
    assert ("FINAL ACCEPTANCE: " in done.stdout) == (not out_is_lost and streams != CLOSED)


def test_a_closed_pipe_changes_no_verdict(stopped: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "seatrial", "report", "x.events"]
    try:
        done = subprocess.run(
            command, cwd=stopped, stdout=write, stderr=subprocess.PIPE, text=True, timeout=50, check=False
        )
    finally:
        os.close(write)
    assert done.returncode == 130
    assert "could not be printed (Broken pipe)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    by_day([("run --on moon", 2), ("--debug run --on moon", 2), ("rum", 2), ("report nothing", 2)]),
)
@pytest.mark.parametrize("streams", ["2>&-", CLOSED, pytest.param(f"2>{FULL}", marks=needs_full)])
def test_a_wrong_request_is_code_2_without_streams(tmp_path: Path, arguments: str, code: int, streams: str) -> None:
    assert in_a_shell(f"{arguments} {streams}", tmp_path).returncode == code


def test_help_to_a_reader_that_has_gone_is_no_fail(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "seatrial", "--help"], cwd=tmp_path, stdout=write, timeout=50, check=False
        )
    finally:
        os.close(write)
    assert done.returncode == 3


def test_a_trial_without_streams_home_terminal_or_locale(tmp_path: Path) -> None:
    arguments = f"run smoke --only compute --device cpu --out out {CLOSED}"
    done = in_a_shell(arguments, tmp_path, {"PATH": os.environ["PATH"], "LANG": "C"})
    (report,) = tmp_path.glob("out/*/report.json")
    told = json.loads(report.read_text())
    assert (done.returncode, told["exit_code"]) == (0, 0), told["findings"]
    assert told["checks"]["compute"]["status"] == "pass"
    logs = [path.read_text(errors="replace") for path in tmp_path.glob("out/*/*.log")]
    assert not any("Traceback" in log for log in logs)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_character_that_the_output_lacks_is_escaped(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "my.toml").write_text(
        'level = "standard"\n[storage]\nfolder = "/tmp/\N{EURO SIGN}"\n', encoding="utf-8"
    )
    done = in_a_shell("plan show -v my.toml", tmp_path, {**os.environ, "PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, "")
    assert "/tmp/\\u20ac" in done.stdout
