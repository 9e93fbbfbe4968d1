"""The options of ``seatrial launch``."""

from __future__ import annotations

from seatrial.targets.option import Option

LAUNCH = (
    Option(
        flags=(),
        name="script",
        help="Script to run. All words after SCRIPT are its arguments.",
        metavar="SCRIPT [ARGS]...",
        rest=True,
    ),
    Option(flags=("-m",), name="module", help="SCRIPT is the name of a module, as for python -m.", flag=True),
    Option(
        flags=("--no-python",),
        name="no_python",
        help="SCRIPT is a program, not a Python script: start it as it is.",
        flag=True,
    ),
    Option(
        flags=("--pass-local-rank",),
        name="pass_local_rank",
        help="Pass --local_rank=N to the script first, as torch.distributed.launch did.",
        flag=True,
    ),
    Option(
        flags=("--per-node",),
        name="per_node",
        help="Start the script once on each node; it starts the M processes of its node itself.",
        flag=True,
    ),
)
"""Options of ``seatrial launch`` alone, in addition to PROGRAM and TARGET_OPTIONS."""
