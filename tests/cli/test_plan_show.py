"""``seatrial plan show``: what a person reads before trusting a limit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from seatrial.cli.plan import plan
from seatrial.errors import RequestError
from seatrial.plan.model import Plan


def show(*arguments: str) -> str:
    result = CliRunner().invoke(plan, ["show", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def settings_of(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("  ") and not line.startswith(("    ", "  held against:"))]


def test_every_value_is_shown_with_its_origin(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('level = "quick"\nchecks = ["bootstrap", "collectives"]\n[bootstrap]\nmax_form_s = 12.5\n')
    document = json.loads(show(str(path), "--json"))
    resolved = Plan.from_json(document)
    lines = show(str(path)).splitlines()
    assert lines[0] == f"plan {path}: at most 120 s (level quick)"
    assert f"not asked for: training (plan {path})" in lines
    rows = settings_of(lines)
    settings = [(name, setting) for table in resolved.settings.values() for name, setting in table.items()]
    assert [row.split()[0] for row in rows] == [name for name, _ in settings]
    assert all(row.endswith(f"  {setting.origin}") for row, (_, setting) in zip(rows, settings, strict=True))
    mine = next(row for row in rows if "max_form_s" in row)
    assert mine.split(maxsplit=2) == ["max_form_s", "12.5", f"plan {path}:bootstrap.max_form_s"]


def test_what_a_check_holds_by_itself_stands_below_its_values(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('level = "quick"\nchecks = ["bootstrap", "training"]\n[bootstrap]\nmax_form_s = 12.5\n')
    document = json.loads(show(str(path), "--json"))
    assert list(document["held"]) == ["bootstrap", "training"]
    formed = {"what": "form_s", "limit": "at most 12.5 s", "origin": "user bootstrap.max_form_s"}
    assert formed in document["held"]["bootstrap"]
    blocks = show(str(path)).split("\n\n")[1:]
    for block, rows in zip(blocks, document["held"].values(), strict=True):
        head, _, below = block.partition("\n  held against:\n")
        assert settings_of(head.splitlines()) == head.splitlines()[1:]
        shown = [re.split(r"  +", line.strip()) for line in below.splitlines()]
        assert shown == [[row["what"], row["limit"], row["origin"]] for row in rows]


def test_values_and_origins_stand_in_columns() -> None:
    lines = [line for line in show("quick").splitlines() if line.startswith("  ") and not line.endswith(":")]
    held = [line for line in lines if line.startswith("    ")]
    assert len(lines) - len(held) > 3
    assert len(held) > 3
    assert len({line.rindex("  ") for line in lines}) == 1
    assert len({re.match(r" +\S+(?: \S+)*  +", line).end() for line in lines}) == 1  # type: ignore[union-attr]


def test_a_wrong_plan_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="did you mean quick"):
        CliRunner().invoke(plan, ["show", "quik"], catch_exceptions=False)


def test_help_loads_no_check() -> None:
    code = (
        "import sys; from seatrial.cli.plan import plan; plan(['show', '--help'], standalone_mode=False);"
        "print('seatrial.checks.registry' in sys.modules)"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "Print the resolved PLAN" in output
    assert output.endswith("False\n")
