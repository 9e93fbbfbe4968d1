"""Blocks of the pages that begin with ``# runs`` are executed as they are printed, on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```sh\n# runs\n(.*?)^```", re.MULTILINE | re.DOTALL)


def lines() -> list[tuple[str, str]]:
    """Return page and command of each line; a backslash at its end continues it."""
    return [
        (path.name, line)
        for path in PAGES
        for block in _BLOCK.findall(path.read_text(encoding="utf-8"))
        for line in re.sub(r" *\\\n *", " ", block).splitlines()
    ]


def test_the_pages_have_such_blocks() -> None:
    pages = [page for page, _ in lines()]
    assert {page: pages.count(page) for page in ("tutorial.md", "planted-faults.md")} == {
        "tutorial.md": 5,
        "planted-faults.md": 2,
    }


@pytest.mark.nightly
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("page", "line"), lines(), ids=[f"{page}-{number}" for number, (page, _) in enumerate(lines())]
)
def test_a_line_does_what_its_page_says(page: str, line: str, tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "seatrial").write_text(f'#!/bin/sh\nexec {sys.executable} -m seatrial "$@"\n')
    (commands / "seatrial").chmod(0o755)
    for folder in ("examples", "src"):  # as in a clone: the examples read the digits
        (tmp_path / folder).symlink_to(ROOT / folder)
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    planted = re.match(r"SEATRIAL_PLANT='\S+@.*:(\d+)'", line)
    assert done.returncode == (1 if planted else 0), done.stdout + done.stderr
    if planted:
        assert f"at fault in this drill: rank {planted[1]}" in done.stdout
