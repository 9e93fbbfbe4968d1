"""What it takes to print the manifests of a run: whole processes in turn, as a person meets them, a minute.

    python bench/rendering.py

Modules are compiled and the bundle is built before the first round, as after the first use. Results go to
bench/results/.
"""

from __future__ import annotations

import sys
from functools import partial

from harness import alternately, process_s, ratios, write_result

ROUNDS = 15
SEATRIAL = [sys.executable, "-m", "seatrial"]
MANIFESTS = ["run", "standard", "--image", "example/train:1", "--nodes", "2", "--gpus-per-node", "8", "--dry-run"]
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "seatrial --version": [*SEATRIAL, "--version"],
    "seatrial run --on job --dry-run": [*SEATRIAL, *MANIFESTS, "--on", "job"],
    "seatrial run --on mpijob --dry-run": [*SEATRIAL, *MANIFESTS, "--on", "mpijob"],
}


def main() -> None:
    """Measure, and write the result."""
    for command in COMMANDS.values():
        process_s(command)
    subjects = {name: partial(process_s, command) for name, command in COMMANDS.items()}
    write_result("rendering", "python bench/rendering.py", {"seconds": ratios(alternately(subjects, ROUNDS))})


if __name__ == "__main__":
    main()
