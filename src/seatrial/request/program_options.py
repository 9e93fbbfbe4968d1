"""The options that ``seatrial train`` and ``seatrial launch`` share."""

from __future__ import annotations

from pathlib import Path

from seatrial.targets.option import Option, duration_s

PROGRAM = (
    Option(
        flags=("--max-restarts",),
        name="max_restarts",
        help="Restart all processes up to N times when one dies. Default: 0.",
        type=int,
        default=0,
        metavar="N",
    ),
    Option(
        flags=("--grace",),
        name="grace",
        help="Time between SIGTERM and SIGKILL, for a last checkpoint. Default: 30s.",
        type=duration_s,
        default=30.0,
        metavar="TIME",
    ),
    Option(
        flags=("--output",),
        name="output",
        help="Ranks whose output to print line by line; the files of the run hold all of it.",
        type=("rank0", "all", "none"),
        default="rank0",
    ),
    Option(flags=("--out",), name="out", help="Folder for the files of the run.", type=Path, default=Path("reports")),
)
"""Options of both commands, in addition to TARGET_OPTIONS."""
