"""``docs/architecture.md`` names files, checks and fields that exist."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import seatrial
from seatrial.checks import registry
from seatrial.targets.target import Target

PACKAGE = Path(seatrial.__file__).parent
ROOT = PACKAGE.parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FILE = re.compile(r"`([\w./-]*\w(?:\.(?:py|json|md|toml)|/))`")


def _exists(name: str) -> bool:
    return (PACKAGE / name).exists() or (ROOT / name).exists()


def test_its_files_exist() -> None:
    named = FILE.findall(PAGE)
    # "One new file" of an example has angle brackets, which the pattern leaves out.
    assert len(named) > 60
    assert [name for name in named if not _exists(name)] == []


def test_a_file_that_is_gone_would_be_seen() -> None:
    (name,) = FILE.findall("see `judge/oracle.py`")
    assert not _exists(name)


def _rows(title: str) -> list[list[str]]:
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return [[row[0].strip("`"), *row[1:]] for row in cells[2:]]


def test_its_table_of_checks_is_complete() -> None:
    assert {row[0]: row[1] for row in _rows("The checks")} == dict(registry.scopes())


def test_its_table_of_targets_names_fields() -> None:
    fields = {field.name for field in dataclasses.fields(Target)}
    named = {row[0].split("(")[0] for row in _rows("Add a target")}
    assert named <= fields
    assert fields - named == {"name", "help", "order"}
