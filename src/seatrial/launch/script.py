"""``launch``: a user's own script in every process of a job, for the command line and for the file that travels."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seatrial.agent.program import args_of
from seatrial.errors import RequestError
from seatrial.launch import joined, place
from seatrial.launch.job import ProgramJob
from seatrial.launch.joined import Meeting
from seatrial.launch.options import LAUNCH, PROGRAM, WHERE
from seatrial.launch.program import dry_run, hold, processes, refuse_decided, refuse_numbers
from seatrial.launch.shell import pasted
from seatrial.launch.targets import TARGETS
from seatrial.probe.cpu import usable_cores
from seatrial.probe.identity import Identity, identify
from seatrial.report.streams import tell

__all__ = ["job_of", "rank_of", "run"]


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Launch the script that the options name; returns the exit code, unless this process becomes a rank or agent."""
    identity = identify(os.environ)
    if identity.note:
        tell(f"seatrial: {identity.note}")
    _refuse(options)
    if joined.is_rank(identity):
        return _become(options, identity)
    meeting = joined.meet(identity, os.environ) if joined.is_one_of_many(identity) else None
    job = job_of(options, identity, meeting, os.environ)
    if options["dry_run"]:
        print("\n".join(dry_run(job)), flush=True)
        return 0
    if meeting is not None and meeting.number > 0:
        joined.become_agent(job, meeting)
    where = f"on this machine ({job.device})" if meeting is None else f"on {meeting.agents} nodes ({job.device})"
    tell(f"seatrial launch {options['script'][0]}: {processes(job.world_size)} {where}; until all have ended")
    return hold(job, options["out"], debug=debug, meeting=meeting)


def job_of(
    options: Mapping[str, Any], identity: Identity, meeting: Meeting | None, environ: Mapping[str, str]
) -> ProgramJob:
    """The job, still without the name of its run. Raises RequestError for what cannot be done here."""
    target = options["target"]
    if target not in TARGETS:
        raise RequestError(f"--on {target}: no such target; there is {', '.join(TARGETS)}.")
    python = options["python"] or sys.executable
    here = place.choose(
        device=options["device"],
        backend="auto",
        nproc_per_node=options["nproc_per_node"] or identity.nproc_per_node,
        python=python,
        alone=meeting is None,
    )
    once = options["per_node"]
    return ProgramJob(
        run="",
        target=target,
        nodes=meeting.agents if meeting else 1,
        nproc_per_node=1 if once else here.nproc_per_node,
        device=here.device,
        backend=here.backend,
        python=python,
        # What the user has set for the script is better known than what we guess.
        env={name: value for name, value in here.env.items() if name not in environ},
        argv=_argv(options),
        args=_args(options),
        spawns=here.nproc_per_node if once else 0,
        watched=False,
        output=options["output"],
        max_restarts=options["max_restarts"],
        stop_grace_s=options["grace"],
    )


def rank_of(
    options: Mapping[str, Any], identity: Identity, environ: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What the environment of a rank that a launcher has started lacks, and what that process is to become.

    Raises RequestError for what the launcher has decided, or does not tell.
    """
    wrong = ("target", "nproc_per_node", "device", "per_node", "max_restarts", "output", "grace", "out")
    why = {"": f"{identity.launcher} has started this process already, and decides that; leave it out"}
    refuse_decided(options, (*LAUNCH, *PROGRAM, *WHERE), wrong, f"under {identity.launcher}", why)
    env = joined.rank_environ(identity, environ)
    local_world_size = identity.local_world_size
    alone = local_world_size == identity.world_size
    told = {
        "GROUP_RANK": 0 if alone else identity.node_rank,
        "GROUP_WORLD_SIZE": 1 if alone else identity.nnodes,
        "OMP_NUM_THREADS": max(1, usable_cores() // (local_world_size or 1)),
        "PYTHONUNBUFFERED": 1,
    }
    env |= {name: str(value) for name, value in told.items() if value is not None and name not in environ}
    try:
        args = args_of(_args(options), {**environ, **env}, 0)
    except KeyError as error:
        raise RequestError(
            f"{identity.launcher} does not tell the {error.args[0]} of this process, which an argument of the script"
            " asks for; set it in the environment, or leave it out."
        ) from error
    return env, (*_argv(options), *args)


def _become(options: Mapping[str, Any], identity: Identity) -> int:
    env, argv = rank_of(options, identity, os.environ)
    if options["dry_run"]:
        print(pasted(env, argv), flush=True)
        return 0
    if identity.rank == 0 and identity.world_size is not None:
        started = f"{processes(identity.world_size)} as {identity.launcher} started them"
        tell(f"seatrial launch {options['script'][0]}: {started}")
    sys.stdout.flush()
    try:
        os.execvpe(argv[0], argv, {**os.environ, **env})
    except OSError as error:
        raise RequestError(f"--python {argv[0]}: it cannot be started ({error.strerror}).") from error


def _refuse(options: Mapping[str, Any]) -> None:
    if not options["script"]:
        raise RequestError("name what to launch: seatrial launch SCRIPT [ARGS]...")
    script = options["script"][0]
    refuse_numbers(options, {})
    if options["pass_local_rank"] and options["per_node"]:
        raise RequestError(
            "--pass-local-rank with --per-node: the one process of a node has no local rank; choose one."
        )
    # Other machines may have it where this one has none.
    if options["target"] == "local" and not options["module"] and not Path(script).exists():
        raise RequestError(f"{script}: there is no such script here; name it as it is seen from this folder.")


def _argv(options: Mapping[str, Any]) -> tuple[str, ...]:
    named = ("-m",) if options["module"] else ()
    return (options["python"] or sys.executable, *named, options["script"][0])


def _args(options: Mapping[str, Any]) -> tuple[str, ...]:
    passed = ("--local_rank={local_rank}",) if options["pass_local_rank"] else ()
    return (*passed, *options["script"][1:])
