"""Write docs/pictures/terminal.svg, the picture of a terminal in README.md, from a recorded trial.

.venv/bin/python tools/make_pictures.py

The text is the screen that tests/report/test_screens.py holds to the renderer: a real run, in which rank 1 was killed.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
SCREEN = ROOT / "tests" / "report" / "screens" / "fail-killed.80.txt"
PICTURE = ROOT / "docs" / "pictures" / "terminal.svg"
COMMAND = "$ SEATRIAL_PLANT='kill@training/step 5:1' seatrial run smoke --device cpu"
_FONTS = re.compile(r"@font-face \{\{.*?\}\}\n", re.DOTALL)


def picture(screen: str) -> str:
    """Return a screen of 80 columns as an SVG that loads nothing from elsewhere."""
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    text = Text(f"{COMMAND}\n{screen.rstrip()}")
    text.highlight_regex(r"(?m)^fail\b|\bFAIL\b|^at fault:.*$", "bold red")
    text.highlight_regex(r"\bPASS\b", "green")
    console.print(text)
    return console.export_svg(
        title="seatrial", code_format=_FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="seatrial", font_aspect_ratio=0.61
    )


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(SCREEN.read_text(encoding="utf-8")), encoding="utf-8")
