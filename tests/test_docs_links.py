"""The pages: every relative link leads somewhere, every page can be reached, and reference pages name what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from seatrial.environment.job_token import LEAST_CHARS
from seatrial.rank.faults import KINDS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEAD = re.compile(r"^#+ (.*)$", re.MULTILINE)


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(path: Path) -> str:
    return _BLOCK.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub makes from the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in _HEAD.findall(text_of(path))}


def broken_links(path: Path) -> list[str]:
    broken = []
    for target in _LINK.findall(text_of(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        leads_to = (path.parent / name).resolve() if name else path
        if not leads_to.exists() or (anchor and anchor not in anchors(leads_to)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken_links(path) == []


def test_a_broken_link_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One head\n[a](missing.md) [b](page.md#no-head) [c](#one-head) [d](https://example.org)\n")
    assert broken_links(page) == ["missing.md", "page.md#no-head"]


def test_every_page_is_in_the_index() -> None:
    linked = set(_LINK.findall(text_of(ROOT / "docs" / "index.md")))
    named = {target.partition("#")[0] for target in linked}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - named == {"index.md"}
    assert {f"../examples/{path.name}" for path in (ROOT / "examples").iterdir() if path.is_file()} <= named


def test_planted_faults_are_all_described() -> None:
    text = (ROOT / "docs" / "planted-faults.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)`", text, re.MULTILINE)) == set(KINDS)


def test_the_keys_of_the_report_are_all_described() -> None:
    text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8").partition("## `report.json`")[2]
    rows = "".join(re.findall(r"^\|([^|]*)\|", text, re.MULTILINE))
    schema = json.loads((ROOT / "src/seatrial/report/schema.json").read_text(encoding="utf-8"))
    assert set(re.findall(r"`(\w+)`", rows)) == set(schema["properties"])


def test_variables_exist() -> None:
    text = (ROOT / "docs" / "variables.md").read_text(encoding="utf-8")
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/seatrial").rglob("*.py"))
    named = set(re.findall(r"`(SEATRIAL_[A-Z_]*[A-Z])`", text))
    assert len(named) >= 8
    assert {name for name in named if name not in source} == set()


def test_each_finding_of_a_hostile_reading_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "security-findings.md").read_text(encoding="utf-8")
    rows = [row for row in re.findall(r"^\| (.*) \|$", text, re.MULTILINE) if not row.endswith("| test")]
    assert len(rows) > 200
    assert len(set(rows)) == len(rows)
    for row in rows:
        named = re.findall(r"`(?:tests/)?([\w/]+\.py)`", row.rpartition(" | ")[2])
        assert named, row
        assert [name for name in named if not (ROOT / "tests" / name).is_file()] == [], row


@pytest.mark.parametrize("page", ["variables.md", "environments.md", "kubernetes.md"])
def test_pages_say_how_long_a_secret_is(page: str) -> None:
    told = re.findall(r"at least (\d+) (?:random )?characters", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert told == [str(LEAST_CHARS)]
