"""Write the screens of the console anew, for tests/report/test_screens.py. Read what changed before you commit it.

.venv/bin/python tools/write_screens.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"


def main() -> None:
    """Write each screen, and remove those that no longer exist."""
    sys.path.insert(0, str(TESTS))
    from report.screens import COLUMNS, HERE, SCREENS, screen

    os.environ["NO_COLOR"] = "1"
    os.environ.pop("OMPI_COMM_WORLD_RANK", None)
    for old in (HERE / "screens").glob("*.txt"):
        old.unlink()
    for columns in COLUMNS:
        os.environ["COLUMNS"] = str(columns)
        for name in SCREENS:
            (HERE / "screens" / f"{name}.{columns}.txt").write_text(screen(name, columns), encoding="utf-8")


if __name__ == "__main__":
    main()
