"""The commands that travel and their options, as data: click's and argparse's are made from the same tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.plan.source import DEFAULT_LEVEL

__all__ = ["RUN", "SUBCOMMANDS", "WHERE", "Option", "Subcommand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a command, or one argument without a name."""

    flags: tuple[str, ...]
    """``--epochs``; empty: an argument that is told by its place, and may be left out."""
    name: str
    """The key of its value in what the command is called with."""
    help: str
    type: type | tuple[str, ...] = str
    """``str``, ``int``, ``float``, ``Path``, or the words to choose from."""
    default: Any = None
    metavar: str | None = None
    flag: bool = False
    """It takes no value; True when it is given, else False."""
    multiple: bool = False
    """It may be given several times; the value is a tuple."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand:
    """What is typed after ``seatrial``, and after the name of the file that travels."""

    help: str
    """A line for the list of commands."""
    text: str
    """Some paragraphs for its own help."""
    options: tuple[Option, ...]
    module: str
    """It has ``run(options, *, debug)``, which takes a mapping from the options' names to their values, and returns the
    exit code."""


WHERE = (
    Option(flags=("--on",), name="target", help="Where: local.", default="local", metavar="TARGET"),
    Option(
        flags=("--nproc-per-node",),
        name="nproc_per_node",
        help="Processes; default: one per accelerator, else 2.",
        type=int,
        metavar="M",
    ),
    Option(
        flags=("--device",),
        name="device",
        help="What the ranks run on; auto: the accelerators, else the CPU.",
        type=("auto", "cuda", "rocm", "cpu"),
        default="auto",
    ),
    Option(
        flags=("--backend",),
        name="backend",
        help="What moves the data; auto: the device's own.",
        type=("auto", "nccl", "gloo"),
        default="auto",
    ),
    Option(flags=("--python",), name="python", help="The interpreter of the ranks; default: this one.", metavar="PATH"),
    Option(flags=("--dry-run",), name="dry_run", help="Print what would be executed, and nothing else.", flag=True),
)
"""Where it runs: the same for all commands that start ranks."""

RUN = (
    Option(
        flags=(),
        name="plan",
        help="A TOML file or a level: smoke (seconds), quick (under a minute; the default), standard (minutes),"
        " burn-in (hours).",
        default=DEFAULT_LEVEL,
    ),
    Option(
        flags=("--only",),
        name="only",
        help="Ask for these checks only (and what they need).",
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
    Option(flags=("--validation-only",), name="validation_only", help="Leave the training out.", flag=True),
    Option(flags=("--workload",), name="workload", help="What to train on: digits, synthetic-1x8x8, ..."),
    Option(flags=("--model",), name="model", help="What to train: convnet."),
    Option(flags=("--epochs",), name="epochs", help="Epochs of the training.", type=int),
    Option(flags=("--batch-size",), name="batch_size", help="Batch size per process of the training.", type=int),
    Option(
        flags=("--deadline",),
        name="deadline",
        help="The whole trial ends by then.",
        type=float,
        metavar="SECONDS",
    ),
    Option(flags=("--out",), name="out", help="Where reports go.", type=Path, default=Path("reports")),
    Option(
        flags=("--json",),
        name="as_json",
        help="Print the report alone, as JSON, on standard output.",
        flag=True,
    ),
)
"""``seatrial run``, beside WHERE."""

SUBCOMMANDS: Mapping[str, Subcommand] = {
    "run": Subcommand(
        help="the acceptance trial: a verdict and a report",
        text="""Run the acceptance trial of PLAN and answer PASS or FAIL.

PLAN is a TOML file or a level: smoke (seconds), quick (under a minute; the default), standard (minutes), burn-in
(hours). Exit code: 0 PASS, 1 FAIL, 2 the request is wrong, 3 INCONCLUSIVE, 130 stopped.
""",
        options=(*RUN, *WHERE),
        module="seatrial.launch.trial",
    ),
}
"""All that the file that travels can do."""
