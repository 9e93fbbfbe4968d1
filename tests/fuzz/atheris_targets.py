"""The targets of the fuzz under atheris, which is led by the coverage of our code to inputs that nobody thought of.

atheris is not among the tools that the tests need. Where it is installed, from the root of the repository:

    PYTHONPATH=src:tests python tests/fuzz/atheris_targets.py TARGET [FOLDER] [-max_total_time=300]

FOLDER keeps the inputs that reached something new. A failing input is printed by Hypothesis, to be made a test.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # optional
from hypothesis import given, settings

with atheris.instrument_imports(include=["seatrial"]):
    from fuzz import (
        test_fuzz_agent,
        test_fuzz_arguments,
        test_fuzz_environments,
        test_fuzz_judges,
        test_fuzz_lying_agent,
        test_fuzz_plans,
        test_fuzz_streams,
    )
    from fuzz.harness import COUNTED, Target, watched

    from seatrial.cli.click_app import main as seatrial

_FOLDER = Path(tempfile.mkdtemp(prefix="seatrial-fuzz-"))
_TARGETS: dict[str, Target[Any]] = {
    "plans": test_fuzz_plans.plans(_FOLDER),
    "environments": test_fuzz_environments.ENVIRONMENTS,
    "streams": test_fuzz_streams.STREAMS,
    "reports": test_fuzz_streams.REPORTS,
    "judges": test_fuzz_judges.JUDGES,
    "lies": test_fuzz_lying_agent.LIES,
    "answers": test_fuzz_agent.STRANGERS,
    "commands": test_fuzz_agent.COMMANDS,
    "arguments": test_fuzz_arguments.arguments(seatrial),
}


def main() -> None:
    """Fuzz one target until it fails or its time is over."""
    if len(sys.argv) < 2 or sys.argv[1] not in _TARGETS:
        sys.exit(f"usage: atheris_targets.py {'|'.join(_TARGETS)} [FOLDER] [options of libFuzzer]")
    target = _TARGETS[sys.argv[1]]

    @settings(database=None, deadline=None)
    @given(target.inputs)
    def each(value: Any) -> None:
        with watched(value):
            target.check(value)

    def one(data: bytes) -> None:
        each.hypothesis.fuzz_one_input(data)  # type: ignore[attr-defined]
        if COUNTED.total() % 1_000 == 0:
            print(f"{COUNTED.total()} inputs", flush=True)

    # One of the targets changes the folder.
    more = [word if word.startswith("-") else str(Path(word).resolve()) for word in sys.argv[2:]]
    tempfile.tempdir = str(_FOLDER)
    with contextlib.ExitStack() as stack:
        if sys.argv[1] == "arguments":
            stack.enter_context(test_fuzz_arguments.nothing_is_started(_FOLDER))
        # Short inputs, with which it would begin, are too short to be any value at all.
        atheris.Setup([sys.argv[0], "-len_control=0", *more], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
