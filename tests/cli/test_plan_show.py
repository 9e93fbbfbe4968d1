"""``seatrial plan show``: what a person reads before trusting a limit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from seatrial.cli.click_app import cli
from seatrial.errors import RequestError
from seatrial.plan.model import Plan


def show(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["plan", "show", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def settings_of(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("  ") and not line.startswith(("    ", "  limits:"))]


def cells_of(table: list[str]) -> list[list[str]]:
    """The rows of a table with three columns, each cell with the lines that continue it."""
    first = next(match for line in table if (match := re.match(r"( +)\S.*?(  +)\S.*?(  +)\S", line)))
    starts = (first.end(1), first.end(2), first.end(3))
    rows: list[list[str]] = []
    for line in table:
        cells = [line[starts[0] : starts[1]].strip(), line[starts[1] : starts[2]].strip(), line[starts[2] :].strip()]
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
    return rows


def test_every_value_is_shown_with_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(
        'level = "quick"\nchecks = ["bootstrap", "collectives"]\n[bootstrap]\nmax_form_s = 12.5\n'
    )
    document = json.loads(show("mine.toml", "--json"))
    resolved = Plan.from_json(document)
    lines = show("mine.toml").splitlines()
    assert lines[0] == "plan mine.toml: at most 120 s (level quick)"
    assert "not requested: training (plan mine.toml)" in lines
    rows = settings_of(lines)
    settings = [(name, setting) for table in resolved.settings.values() for name, setting in table.items()]
    assert [row.split()[0] for row in rows] == [name for name, _ in settings]
    assert all(row.endswith(f"  {setting.origin}") for row, (_, setting) in zip(rows, settings, strict=True))
    mine = next(row for row in rows if "max_form_s" in row)
    assert mine.split(maxsplit=2) == ["max_form_s", "12.5", "plan mine.toml:bootstrap.max_form_s"]


def test_limits_are_below_the_values_of_their_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("mine.toml")
    path.write_text('level = "quick"\nchecks = ["bootstrap", "training"]\n[bootstrap]\nmax_form_s = 12.5\n')
    document = json.loads(show(str(path), "--json"))
    assert list(document["held"]) == ["bootstrap", "training"]
    formed = {"what": "form_s", "limit": "at most 12.5 s", "origin": "user bootstrap.max_form_s"}
    assert formed in document["held"]["bootstrap"]
    blocks = show(str(path)).split("\n\n")[1:]
    for block, rows in zip(blocks, document["held"].values(), strict=True):
        head, _, below = block.partition("\n  limits:\n")
        assert settings_of(head.splitlines()) == head.splitlines()[1:]
        assert cells_of(below.splitlines()) == [[row["what"], row["limit"], row["origin"]] for row in rows]


@pytest.mark.parametrize("level", ["smoke", "quick", "standard", "burn-in"])
def test_lines_have_at_most_120_columns(level: str) -> None:
    assert max(map(len, show(level).splitlines())) <= 120


def test_each_table_is_as_wide_as_its_own_cells() -> None:
    starts = set()
    for block in show("quick").split("\n\n")[1:]:
        values, _, limits = block.partition("\n  limits:\n")
        for table in (values.splitlines()[1:], limits.splitlines()):
            rows = cells_of(table)
            starts.add(table[0].index(rows[0][1], len(rows[0][0]) + 2))
    assert len(starts) > 3, "one width for all tables"


def test_a_wrong_plan_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="did you mean quick"):
        CliRunner().invoke(cli, ["plan", "show", "quik"], catch_exceptions=False)


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
    lines = show(str(plan)).splitlines()
    assert [line for line in lines if "note:" in line] == [
        "  note: the trial's deadline of 50 s ends each step before timeout_s"
    ]
    assert any("37.5" in line and "0.75 x the trial's deadline (level smoke: 40)" in line for line in lines)
