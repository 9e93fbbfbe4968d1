"""``seatrial train``: from the options to trained ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from seatrial.cli.command import Command
from seatrial.targets.option import Option


def options() -> Mapping[str, tuple[Option, ...]]:
    """Return the options by the heading under which help shows them."""
    from seatrial.request.common_options import TARGET_OPTIONS, options_of_targets
    from seatrial.request.program_options import PROGRAM
    from seatrial.request.training_options import FILES, LEARNING, RENDEZVOUS, USUAL

    return {
        "Options": USUAL,
        "Learning": LEARNING,
        "Processes and files": (*(replace(option, rare=True) for option in PROGRAM), *FILES),
        "Without agents": RENDEZVOUS,
        "Where it runs": TARGET_OPTIONS,
        **options_of_targets(),
    }


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Run the training that the options request; return the exit code, unless this process becomes a rank."""
    from seatrial.environment.identity import identify
    from seatrial.request.training_request import resolve
    from seatrial.run.run_program import run_program
    from seatrial.targets.registry import print_dry_run
    from seatrial.util.job_signals import ignore_those_for_ranks
    from seatrial.util.streams import print_status

    ignore_those_for_ranks()
    identity = identify(os.environ)
    if identity.note:
        print_status(f"seatrial: {identity.note}")
    request = resolve(options, identity, os.environ, debug=debug)
    if options["dry_run"]:
        print_dry_run(request.dry_run(), request.job)
        return 0
    if request.prints_summary:
        print_status(request.summary)
    if request.job is None:
        request.execute()
    assert request.job is not None
    return run_program(request.job, options["out"], debug=debug)


COMMAND = Command(
    name="train",
    order=1,
    summary="reference distributed training",
    text="""Train WORKLOAD for TOTAL_EPOCHS, with a checkpoint every SAVE_EVERY epochs.

Under torchrun, mpirun or srun this process is the rank. Exit code: 0 trained, 1 below --target-accuracy or a process
died, 2 invalid options, 3 not started, 130 interrupted.
""",
    options=options,
    run=run,
    sources_of="train",
)
