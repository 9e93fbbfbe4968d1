"""Clean trials: PASS, on a quiet and on a busy machine, in every output form."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from live.trials import SCHEMA, trial
from passes import left_open


def test_two_processes_pass(tmp_path: Path) -> None:
    ended = trial(tmp_path)
    assert ended.report["acceptance"]["status"] == "PASS", (ended.report["acceptance"], ended.report["findings"])
    assert ended.exit_code == 0
    assert left_open(ended.report["acceptance"]["partial"]) == []
    assert {check["status"] for check in ended.report["checks"].values()} == {"pass"}
    assert ended.report["judged_measurements"] > 0
    (host,) = (fact["value"] for fact in ended.report["facts"] if fact["name"] == "host")
    assert abs(host["clock"][0]) <= host["clock"][1] + 1.0, "one machine has one clock"
    assert json.loads((tmp_path / "cluster_test_report.json").read_text()) == ended.report


@pytest.mark.slow
def test_one_rank_is_a_partial_pass_that_says_so(tmp_path: Path) -> None:
    ended = trial(tmp_path, "smoke", "--nproc-per-node", "1")
    assert ended.exit_code == 0, ended.report["findings"]
    assert any("1 rank" in reason for reason in ended.report["acceptance"]["partial"])
    assert any("NOT CHECKED (1 rank)" in line for line in ended.report["acceptance"]["summary"])


@pytest.mark.slow
def test_a_check_left_out_makes_a_pass_partial(tmp_path: Path) -> None:
    ended = trial(tmp_path, "smoke", "--validation-only")
    assert ended.exit_code == 0, ended.report["findings"]
    assert left_open(ended.report["acceptance"]["partial"]) == ["training not asked for"]


@pytest.mark.slow
def test_six_busy_processes_raise_no_alarm(tmp_path: Path) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)]
    try:
        ended = trial(tmp_path)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert ended.exit_code == 0, ended.report["findings"]


@pytest.mark.slow
def test_the_console_ends_with_the_card_and_has_no_color(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "seatrial", "run", "smoke", "--only", "compute", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = done.stdout.splitlines()
    assert shown[shown.index("=" * 50) + 1].startswith("FINAL ACCEPTANCE: PASS (partial: ")
    assert shown[-1] == f"next: for a full PASS, run: seatrial run smoke --out {tmp_path}"
    assert re.search(r"^\[1/1\] compute \d+(\.\d)? s$", done.stderr, re.MULTILINE)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    again = [sys.executable, "-m", "seatrial", "report", str(folder)]
    told = subprocess.run(again, capture_output=True, text=True, timeout=50, check=False).stdout.splitlines()
    assert told[:-1] == shown[:-1]
    # The events of a trial may be those of somebody else: no path is shown to be copied.
    assert told[-1].endswith("put your own in place of OUT and run: seatrial run smoke --out OUT")
    assert "\x1b" not in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert SCHEMA["$schema"].endswith("2020-12/schema")
