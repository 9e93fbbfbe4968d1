"""How long a command line takes that starts nothing: help, help of run, a dry run; as multiples of ``python -c pass``.

    python bench/startup.py [OTHER_CHECKOUT]

With another checkout of the repository its commands are measured in the same rounds, in turn. Each subject is a whole
process. The bytecode of both checkouts is written to a temporary folder first, as an installer does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import alternately, process_s, ratios, write_result

ROOT = Path(__file__).parents[1]
ROUNDS = 15
COMMANDS = {
    "--help": ("--help",),
    "run --help": ("run", "--help"),
    "run smoke --dry-run": ("run", "smoke", "--device", "cpu", "--dry-run"),
}


def main() -> None:
    checkouts = {"this": ROOT}
    if sys.argv[1:]:
        checkouts["other"] = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as bytecode:
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        subjects: dict[str, Callable[[], float]] = {
            "python -c pass": partial(process_s, ["env", sys.executable, "-c", "pass"])
        }
        for name, root in checkouts.items():
            for title, words in COMMANDS.items():
                argv = ["env", f"PYTHONPATH={root / 'src'}", sys.executable, "-m", "seatrial", *words]
                subprocess.run(argv, capture_output=True, check=True)
                subjects[f"{name}: {title}"] = partial(process_s, argv)
        measured = alternately(subjects, ROUNDS)
    result = ratios(measured)
    for name, row in result.items():
        print(f"{name:28} {1000 * row['median']:7.1f} ms  {row['ratio']:6.2f} times python -c pass")
    print(write_result("startup", "python bench/startup.py [OTHER_CHECKOUT]", result))


if __name__ == "__main__":
    main()
