"""The options of ``seatrial run``."""

from __future__ import annotations

from pathlib import Path

from seatrial.plan.plan_file import DEFAULT_LEVEL
from seatrial.targets.option import Option, duration_s

REPORT = (
    Option(flags=("--json",), name="as_json", help="Print only the report, as JSON, on standard output.", flag=True),
    Option(flags=("-v", "--verbose"), name="verbose", help="Print all measurements and all evidence.", flag=True),
    Option(flags=("-q", "--quiet"), name="quiet", help="Print one line: the verdict.", flag=True),
)
"""How the report is printed, for each command that prints one."""

EVIDENCE = Option(
    flags=("--evidence",),
    name="evidence",
    help="Judge what another tool wrote, too: the JSON of dcgmi diag -j, or the output of ncclras; NODE= where the file"
    " does not say whose it is; repeatable.",
    metavar="[NODE=]FILE",
    multiple=True,
    rare=True,
)

PLAN = (
    Option(
        flags=(),
        name="plan",
        help="A file (TOML, or JSON named *.json) or a level: smoke (seconds), quick (under a minute;"
        " the default), standard (minutes), acceptance (standard, and limits for all speeds), burn-in (hours).",
        default=DEFAULT_LEVEL,
    ),
    Option(
        flags=("--only",),
        name="only",
        help="Run only these checks and those that they need.",
        metavar="CHECK[,..]",
        multiple=True,
    ),
    Option(
        flags=("--skip",),
        name="skip",
        help="Leave these checks out; a PASS is then partial.",
        metavar="CHECK[,..]",
        multiple=True,
    ),
    Option(
        flags=("--validation-only",), name="validation_only", help="Leave the training check out.", flag=True, rare=True
    ),
    Option(flags=("--workload",), name="workload", help="Data set: digits, mnist, synthetic-1x8x8, ..."),
    Option(flags=("--data",), name="data", help="Folder of the data set on each node.", metavar="DIR"),
    Option(flags=("--model",), name="model", help="Model to train: convnet.", rare=True),
    Option(flags=("--epochs",), name="epochs", help="Epochs of the training.", type=int, metavar="N", rare=True),
    Option(
        flags=("--batch-size",),
        name="batch_size",
        help="Batch size of each process in the training.",
        type=int,
        metavar="N",
        rare=True,
    ),
    Option(
        flags=("--deadline",),
        name="deadline",
        help="Stop the trial after this time: 90, 90s, 5m or 2h.",
        type=duration_s,
        metavar="TIME",
    ),
)
"""What decides the plan of a trial."""

RUN = (
    *PLAN,
    Option(flags=("--out",), name="out", help="Folder for the reports.", type=Path, default=Path("reports")),
    Option(
        flags=("--require-full",),
        name="require_full",
        help="End a partial PASS with exit code 3, for scripts.",
        flag=True,
    ),
    EVIDENCE,
    *REPORT,
)
"""Options of ``seatrial run`` alone, in addition to TARGET_OPTIONS."""
