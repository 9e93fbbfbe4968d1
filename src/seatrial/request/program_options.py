"""The options that ``seatrial train`` and ``seatrial launch`` share."""

from __future__ import annotations

from pathlib import Path

from seatrial.targets.option import Option, duration_s

PROGRAM = (
    Option(
        flags=("--max-restarts",),
        name="max_restarts",
        help="Restarts of all processes when one dies. Default: 0.",
        type=int,
        default=0,
        metavar="N",
    ),
    Option(
        flags=("--grace",),
        name="grace",
        help="From SIGTERM to SIGKILL, to save. Default: 30s.",
        type=duration_s,
        default=30.0,
        metavar="TIME",
    ),
    Option(
        flags=("--output",),
        name="output",
        help="Print the output of rank0 (the default), all or none.",
        type=("rank0", "all", "none"),
        default="rank0",
        metavar="RANKS",
    ),
    Option(
        flags=("--out",),
        name="out",
        help="Folder for the files of the run, with all output.",
        type=Path,
        default=Path("reports"),
    ),
)
"""Options of both commands, in addition to TARGET_OPTIONS."""
