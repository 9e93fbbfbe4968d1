"""The options of ``seatrial launch``."""

from __future__ import annotations

from collections.abc import Sequence

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
        help="SCRIPT is a program, not a Python script.",
        flag=True,
    ),
    Option(
        flags=("--pass-local-rank",),
        name="pass_local_rank",
        help="Pass --local_rank=N to SCRIPT, before ARGS.",
        flag=True,
    ),
    Option(
        flags=("--per-node",),
        name="per_node",
        help="Start SCRIPT once on each node; it starts M others.",
        flag=True,
    ),
)
"""Options of ``seatrial launch`` alone, in addition to PROGRAM and TARGET_OPTIONS."""

_OF_LAUNCHERS = (
    *("--on", "--hosts", "--hostfile", "--nodes", "--nnodes", "--nproc-per-node", "--nproc_per_node", "--max-restarts"),
    *(
        "--max_restarts",
        "--per-node",
        "--pass-local-rank",
        "--no-python",
        "--oversubscribe",
        "--min-hosts",
        "--dry-run",
    ),
)
"""Options that belong to a launcher in all likelihood, unlike ``--output`` or ``--device``, which scripts have too."""


def misplaced(words: Sequence[str]) -> str:
    """Return a sentence about options of ours that were typed after the script and are its arguments; may be empty."""
    found = [name for word in words[1:] if (name := word.partition("=")[0]) in _OF_LAUNCHERS]
    if not found:
        return ""
    goes = "goes" if len(found) == 1 else "go"
    return f"{', '.join(found)} {goes} to the script; to give such an option to seatrial, type it before {words[0]}"
