"""``--spawn``: the ranks of one node, started as processes of this one, without a launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from seatrial.environment.self_location import BUNDLE_FDS, import_variables, module_argv
from seatrial.util.job_signals import STOPPING, collector, handled, unless_ignored
from seatrial.util.streams import write_line
from seatrial.worker.parent import SPAWNED_BY
from seatrial.worker.train_rank import INTERRUPTED
from seatrial.worker.train_spec import Spawn, TrainSpec

_FAILURE_GRACE_S = 5.0
"""Seconds that the other ranks have to end by themselves after one has failed."""
_REPORT_S = 1.0
"""Seconds for the other ranks to report the same failure, before the grace begins."""
_POLL_S = 0.05


def spawn(spec: TrainSpec) -> int:
    """Start the ranks of this node, wait for all of them, and return their common exit code.

    The first SIGTERM, SIGINT or SIGHUP is passed on, so that the ranks save and end; a second one kills them. No rank
    is left running when this returns.
    """
    signals: list[int] = []
    assert spec.spawn is not None
    processes: list[subprocess.Popen[bytes]] = []
    with handled(unless_ignored(STOPPING), collector(signals)):
        try:
            for local_rank in range(spec.spawn.nproc_per_node):
                processes.append(_start(spec, spec.spawn, local_rank))
            return _wait_for_ranks(processes, signals, spec.spawn)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _start(spec: TrainSpec, node: Spawn, local_rank: int) -> subprocess.Popen[bytes]:
    """Start a rank. Not by torch.multiprocessing: Python 3.10 would import its modules from the working folder."""
    return subprocess.Popen(
        [*module_argv(sys.executable, "seatrial.worker.train_main"), replace(spec, spawn=None).to_json()],
        stdin=subprocess.DEVNULL,
        pass_fds=BUNDLE_FDS,
        env={
            **os.environ,
            **import_variables(os.environ),
            SPAWNED_BY: str(os.getpid()),
            "RANK": str(node.node_rank * node.nproc_per_node + local_rank),
            "WORLD_SIZE": str(node.nnodes * node.nproc_per_node),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(node.nproc_per_node),
        },
    )


def _wait_for_ranks(processes: Sequence[subprocess.Popen[bytes]], signals: list[int], node: Spawn) -> int:
    """Return the exit code. ``signals`` grows while this runs; those not yet passed on are passed on."""
    first_rank = node.node_rank * node.nproc_per_node
    until = float("inf")
    num_passed_on = 0
    is_killing = False
    codes_by_local_rank: dict[int, int] = {}
    while len(codes_by_local_rank) < len(processes):
        time.sleep(_POLL_S)
        now = time.monotonic()
        for local_rank, process in enumerate(processes):
            if local_rank in codes_by_local_rank or (code := process.poll()) is None:
                continue
            codes_by_local_rank[local_rank] = code
            if code == 0 or num_passed_on:
                continue
            if not is_killing and (how := _unsaid_end(code)):
                # By this line the log of a node shows that the fault was here (pod_failures.py).
                write_line(f"\nseatrial: rank {first_rank + local_rank} {how}")
            if until == float("inf"):
                until = now + _REPORT_S + _FAILURE_GRACE_S
        if len(signals) > num_passed_on:
            num_passed_on = len(signals)
            until = now + node.stop_grace_s if num_passed_on == 1 else now
            _signal_all(processes, signal.SIGTERM)
        if now >= until:
            _signal_all(processes, signal.SIGKILL)
            is_killing = True
            until = now + _FAILURE_GRACE_S
    codes = set(codes_by_local_rank.values())
    if 2 in codes:  # when rank 0 refuses a request, the other ranks may see only that rank 0 left
        return 2
    if num_passed_on and codes != {0}:
        if 1 not in codes and codes != {INTERRUPTED}:
            reason = f"not within {node.stop_grace_s:g} s (--grace)" if -signal.SIGKILL in codes else "before it began"
            write_line(f"seatrial: stopped on request, {reason}: nothing more was saved")
        return 1 if 1 in codes else INTERRUPTED
    return codes.pop() if codes in ({0}, {INTERRUPTED}) else 1


def _unsaid_end(code: int) -> str:
    """Return how a rank ended that could not say it; empty for the exit codes of one that has."""
    if code >= 0:
        return "" if code in (0, 1, 2, INTERRUPTED) else f"ended with exit code {code}"
    # Of the real-time signals only two have a name.
    return f"was killed by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"


def _signal_all(processes: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        process.send_signal(number)  # to none that has ended
