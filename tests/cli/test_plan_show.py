"""``seatrial plan show``: what a person reads before trusting a limit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from seatrial.cli.click_app import cli
from seatrial.errors import RequestError
from seatrial.plan.model import Plan
from seatrial.report.plan_lines import _in_one_row
from seatrial.util.text import plan_value


def show(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["plan", "show", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def words_of(text: str) -> str:
    """The text with single spaces, and without the brackets of origins that stand below their rows."""
    return " ".join(text.replace("(", " ").replace(")", " ").split())


def test_every_value_is_shown_with_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(
        'level = "quick"\nchecks = ["bootstrap", "collectives"]\n[bootstrap]\nmax_form_s = 12.5\n'
    )
    document = json.loads(show("mine.toml", "--json"))
    resolved = Plan.from_json(document)
    lines = show("mine.toml", "-v").splitlines()
    assert lines[0] == "plan mine.toml: at most 120 s (level quick)"
    assert "not requested: training (plan mine.toml)" in lines
    settings = [(name, setting) for table in resolved.settings.values() for name, setting in table.items()]
    names = dict.fromkeys(name for name, _ in settings)
    rows = [line for line in lines if re.match(r"  \w", line) and line.split()[0] in names]
    assert [row.split()[0] for row in rows] == [name for name, _ in settings]
    for name, setting in settings:
        assert words_of(f"{name} {plan_value(setting.value)} {setting.origin}") in words_of("\n".join(lines))
    mine = next(row for row in rows if "max_form_s" in row)
    assert mine.split(maxsplit=2) == ["max_form_s", "12.5", "plan mine.toml:bootstrap.max_form_s"]


def test_limits_are_below_the_values_of_their_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("mine.toml")
    path.write_text('level = "quick"\nchecks = ["bootstrap", "training"]\n[bootstrap]\nmax_form_s = 12.5\n')
    document = json.loads(show(str(path), "--json"))
    assert list(document["held"]) == ["bootstrap", "training"]
    formed = {"what": "form_s", "limit": "at most 12.5 s", "origin": f"plan {path}:bootstrap.max_form_s"}
    assert formed in document["held"]["bootstrap"]
    blocks = show(str(path), "-v").split("\n\n")[1:]
    for block, rows in zip(blocks, document["held"].values(), strict=True):
        _, _, below = block.partition("\n  limits:\n")
        # A name that is wider than its column goes on below itself, between the other cells.
        last = 0
        for row in (row for row in rows if len(row["what"]) <= 26):
            place = words_of(below).find(words_of(f"{row['what']} {row['limit']} {row['origin']}"), last)
            assert place >= last, row
            last = place


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("arguments", [[], ["-v"]], ids=["short", "all"])
@pytest.mark.parametrize("level", ["smoke", "quick", "standard", "acceptance", "burn-in"])
def test_a_plan_fits_its_terminal(level: str, arguments: list[str], columns: int) -> None:
    lines = on_a_terminal(columns, level, *arguments)
    assert [line for line in lines if len(line) > columns] == []
    assert arguments or len(lines) <= {80: 23, 60: 25}[columns]


def on_a_terminal(columns: int, *arguments: str) -> list[str]:
    """The lines of ``plan show`` on a terminal of this width."""
    controller, terminal = os.openpty()
    with ThreadPoolExecutor(1) as pool:
        # A terminal keeps 4096 bytes for a reader that is late.
        text = pool.submit(read_all, controller)
        with open(terminal, "w") as stream, contextlib.redirect_stdout(stream), pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", str(columns))
            patch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
            cli(["plan", "show", *arguments], standalone_mode=False)
    return text.result().splitlines()


def read_all(controller: int) -> str:
    text = b""
    with contextlib.suppress(OSError):  # EIO: the other side is closed, and all is read
        while piece := os.read(controller, 1 << 16):
            text += piece
    os.close(controller)
    return text.decode()


def test_in_short_it_says_what_is_limited_and_what_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(
        'level = "acceptance"\n[collectives]\nmin_busbw_gbps = 350\n[training]\nmax_steps = 5\n'
        '[origins]\ncollectives.min_busbw_gbps = "from 3 runs: median 400, lowest 390 less 10 % of the median"\n'
    )
    shown = show("mine.toml", "--deadline", "20m")
    lines = shown.splitlines()
    assert lines[0] == "plan mine.toml: at most 1200 s (--deadline)"
    assert lines[1] == "a PASS is partial while a speed is held against no limit"
    assert "less than the level, so that a PASS is partial: training.max_steps 5 (level\n  acceptance: 600)" in shown
    assert "  collectives  wrong_elements; busbw" in lines
    assert "set by a file or an option:\n  collectives.min_busbw_gbps  350\n" in shown
    assert "from 3 runs: median 400, lowest 390 less 10 % of the median" in words_of(shown)
    missing = words_of(shown.partition("limits that nobody set; a plan file can:")[2])
    assert missing.startswith("compute.min_tflops, memory.min_copy_gbps, ")
    assert "min_busbw_gbps" not in missing
    assert lines[-1].startswith("-v ")


def test_a_check_with_many_limits_says_how_many_more_there_are() -> None:
    limits = ["one", "two three", "four"]
    shown = [_in_one_row(limits, width) for width in (20, 19, 14, 11, 3)]
    assert shown == ["one; two three; four", "one; 2 more", "one; 2 more", "one; 2 more", "3 more"]
    assert _in_one_row([], 9) == ""


def test_a_wrong_plan_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="did you mean quick"):
        CliRunner().invoke(cli, ["plan", "show", "quik"], catch_exceptions=False)


@pytest.mark.parametrize("options", [(), ("-v",), ("--json",)])
def test_a_plan_of_others_shows_no_controls(options: tuple[str, ...], tmp_path: Path) -> None:
    (plan := tmp_path / "\x9b31m.toml").write_text(
        'level = "quick"\nchecks = ["bootstrap", "inventory", "storage"]\n[storage]\nfolder = "/a\\u001b[2Jb\\u202E"\n'
        '[inventory]\ndevice = "A\\u001b]0;pwned\\u0007"\n[origins]\nstorage.folder = "from\\u001b[2J words"\n'
    )
    shown = show(str(plan), *options)
    assert shown.replace("\n", "").isprintable()
    assert "pwned" in shown


def test_help_loads_no_check() -> None:
    code = (
        "import sys; from seatrial.cli.click_app import cli; cli(['plan', 'show', '--help'], standalone_mode=False);"
        "print('seatrial.checks.registry' in sys.modules)"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "Print the resolved PLAN" in output
    assert output.endswith("False\n")


def test_a_typed_timeout_beyond_the_deadline_is_noted(tmp_path: Path) -> None:
    plan = tmp_path / "mine.toml"
    plan.write_text('level = "smoke"\ndeadline_s = 50\n[training]\ntimeout_s = 80\n')
    note = "  note: the trial's deadline of 50 s ends each step before training.timeout_s"
    assert [line for line in show(str(plan)).splitlines() if "note:" in line] == [note]
    lines = show(str(plan), "-v").splitlines()
    assert [line for line in lines if "note:" in line] == [note]
    assert any("37.5" in line and "0.75 x the trial's deadline (level smoke: 40)" in line for line in lines)
