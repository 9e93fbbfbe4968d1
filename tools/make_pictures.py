"""Write the pictures of README.md from a recorded trial, in which rank 1 was killed: a terminal, and the HTML report.

.venv/bin/python tools/make_pictures.py

The text of the terminal is the screen that tests/report/test_screens.py holds to the renderer. The report is drawn by
Chromium, where there is one: docs/pictures/report.png.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
SCREEN = ROOT / "tests" / "report" / "screens" / "fail-killed.80.txt"
EVENTS = ROOT / "tests" / "report" / "recordings" / "killed.events"
PICTURE = ROOT / "docs" / "pictures" / "terminal.svg"
REPORT_PICTURE = ROOT / "docs" / "pictures" / "report.png"
CHROMIUM: tuple[str, ...] = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-quic", "--hide-scrollbars"),
)
COMMAND = "$ SEATRIAL_PLANT='kill@training/step 5:1' seatrial run smoke --device cpu"
_FONTS = re.compile(r"@font-face \{\{.*?\}\}\n", re.DOTALL)


def picture(screen: str) -> str:
    """Return a screen of 80 columns as an SVG that loads nothing from elsewhere."""
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    text = Text(f"{COMMAND}\n{screen.rstrip()}")
    text.highlight_regex(r"(?m)^fail\b|\bFAIL\b|^at fault.*$", "bold red")
    text.highlight_regex(r"\bPASS\b", "green")
    console.print(text)
    return console.export_svg(
        title="seatrial", code_format=_FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="seatrial", font_aspect_ratio=0.61
    )


def draw_report(chromium: str) -> None:
    """Draw the top of the report that `seatrial report` makes from the recorded events."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "seatrial", "report", "--quiet", "--out", folder, str(EVENTS)]
        subprocess.run(command, check=False, timeout=60)  # its exit code is that of the verdict
        (page,) = Path(folder).glob("*/report.html")
        options = (f"--user-data-dir={folder}/profile", "--window-size=1000,860", f"--screenshot={REPORT_PICTURE}")
        subprocess.run([chromium, *CHROMIUM, *options, page.as_uri()], check=True, timeout=60, capture_output=True)


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(SCREEN.read_text(encoding="utf-8")), encoding="utf-8")
    if chromium := shutil.which("chromium"):
        draw_report(chromium)
    else:
        print("docs/pictures/report.png is as it was: there is no chromium in PATH", file=sys.stderr)
