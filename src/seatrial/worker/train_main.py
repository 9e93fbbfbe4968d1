"""The entry point of a training process: ``python -m seatrial.worker.train_main SPEC-JSON``.

The process is one rank, whichever launcher started it, or with ``--spawn`` the parent of all ranks of its node. A rank
takes its numbers from the environment, by the names that torch's ``env://`` uses (RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE). Exit codes: 0, 1 (no good result, or a failure), 2 (invalid request), 130 (stopped on request, at a
step boundary).
"""

from __future__ import annotations

import os
import signal
import sys

from seatrial.environment.self_location import exit_on_sigterm
from seatrial.environment.working_folder import leave_open_folder
from seatrial.errors import SeatrialError
from seatrial.mpi_backend.finalize import leave
from seatrial.util.job_signals import ignore_those_for_ranks
from seatrial.util.streams import write_line
from seatrial.worker.compiled_code import release_compiled_code
from seatrial.worker.parent import SPAWNED_BY, die_with_parent
from seatrial.worker.train_rank import RankIdentity, run_rank
from seatrial.worker.train_spawn import spawn
from seatrial.worker.train_spec import TrainSpec


def main() -> None:
    """Train as one rank, or start the ranks of this node; end the process with the exit code."""
    exit_on_sigterm()
    ignore_those_for_ranks()
    if SPAWNED_BY in os.environ:
        # As of Ctrl-C: a rank that trains saves first.
        die_with_parent(SPAWNED_BY, signal.SIGINT)
    try:
        spec = TrainSpec.from_json(sys.argv[1])
        if typed := leave_open_folder():
            spec = spec.seen_from(typed)
        code = spawn(spec) if spec.spawn is not None else run_rank(spec, RankIdentity.from_environ())
    except SeatrialError as error:
        write_line(f"Error: {error}")
        code = error.exit_code
    release_compiled_code()
    leave(code)


if __name__ == "__main__":
    main()
