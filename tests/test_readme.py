"""README.md shows what seatrial prints: its screens and its picture are those of recorded trials."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCREENS = ROOT / "tests" / "report" / "screens"


def shown(name: str) -> str:
    return (SCREENS / f"{name}.80.txt").read_text(encoding="utf-8").rstrip()


def test_the_screen_of_a_pass_is_a_real_one() -> None:
    blocks = re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert any(block.rstrip().endswith(shown("pass")) for block in blocks)


def test_the_picture_shows_the_screen_of_a_real_failure() -> None:
    assert "](docs/pictures/terminal.svg)" in README
    svg = (ROOT / "docs" / "pictures" / "terminal.svg").read_text(encoding="utf-8")
    assert re.findall(r"https?://(?!www\.w3\.org|www\.textualize\.io)", svg) == [], "it must load nothing"
    texts = [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    words = "".join(texts).replace("\xa0", " ").split()
    in_screen = "".join(shown("fail-killed").split())
    assert in_screen in "".join(words), "tools/make_pictures.py writes the picture"


def test_the_first_screen_is_short() -> None:
    first = README.partition("\n## ")[0].splitlines()
    assert len(first) <= 50


def test_its_pictures_exist() -> None:
    names = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert names == ["docs/pictures/terminal.svg", "docs/pictures/report.png"]
    assert (ROOT / names[1]).read_bytes().startswith(b"\x89PNG")
