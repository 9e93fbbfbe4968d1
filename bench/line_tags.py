"""What the tag of a line costs each end of a control connection, by the length of the line, in CPU time.

    python bench/line_tags.py

Lines of a trial have 100 to 600 bytes (a status of eight ranks: 330); parts of long messages have 4,000.
"""

from __future__ import annotations

import time
from functools import partial

from harness import alternately, ratios, write_result

from seatrial.protocol.line_tags import LineTags

_LENGTHS = (100, 330, 1_000, 4_000)
_LINES = 20_000
_ROUNDS = 7


def _microseconds(length: int) -> float:
    """CPU time of one tag."""
    tags, line = LineTags("t" * 32, "agent", "n" * 32, "c" * 32, 0), b"x" * (length - 1) + b"\n"
    began = time.process_time()
    for _ in range(_LINES):
        tags.add(line)
    return (time.process_time() - began) / _LINES * 1e6


def main() -> None:
    """Measure and write ``results/line_tags.json``."""
    measured = alternately({f"{length} bytes": partial(_microseconds, length) for length in _LENGTHS}, _ROUNDS)
    write_result(
        "line_tags",
        "python bench/line_tags.py",
        {"unit": "microseconds a line", "rounds": _ROUNDS, "tag": ratios(measured)},
    )


if __name__ == "__main__":
    main()
