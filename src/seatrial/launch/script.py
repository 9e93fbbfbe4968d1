"""``launch``: a user's own script in every process of a job, for the command line and for the file that travels."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seatrial.agent.program import args_of
from seatrial.errors import RequestError
from seatrial.launch import joined
from seatrial.launch.command import pasted
from seatrial.launch.job import ProgramJob
from seatrial.launch.joined import Meeting
from seatrial.launch.option import retyped
from seatrial.launch.options import LAUNCH, PROGRAM, WHERE
from seatrial.launch.program import dry_run, hold, processes, refuse_decided, refuse_numbers
from seatrial.launch.target import Where
from seatrial.launch.targets import TARGETS
from seatrial.launch.where import place_of_job, where_of
from seatrial.probe.cpu import usable_cores
from seatrial.probe.identity import Identity, identify
from seatrial.report.streams import tell

__all__ = ["job_of", "rank_of", "run"]

_AGENTS_OF_RANKS = ("mpirun",)
"""Targets whose agents have one rank each, so that MPI's own words in a rank are true."""


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Launch the script that the options name; returns the exit code, unless this process becomes a rank or agent."""
    identity = identify(os.environ)
    if identity.note:
        tell(f"seatrial: {identity.note}")
    where = _where(options)
    if joined.is_rank(identity):
        return _become(options, where, identity)
    meeting = joined.meet(identity, os.environ) if joined.is_one_of_many(identity) else None
    job, words = job_of(options, where, identity, meeting, os.environ)
    if where.dry_run:
        print("\n".join(dry_run(job, options["out"])), flush=True)
        return 0
    if meeting is not None and meeting.number > 0:
        joined.become_agent(job, meeting)
    started = f"1 process on each of {job.nodes} nodes" if job.per_node else processes(job.world_size)
    tell(f"seatrial launch {options['script'][0]}: {started} {words} ({job.device}), until all have ended")
    return hold(job, options["out"], debug=debug, meeting=meeting)


def job_of(
    options: Mapping[str, Any], where: Where, identity: Identity, meeting: Meeting | None, environ: Mapping[str, str]
) -> tuple[ProgramJob, str]:
    """The job, still without the name of its run, and in words where it runs.

    Raises RequestError for what cannot be done here.
    """
    if options["per_node"] and where.target in _AGENTS_OF_RANKS:
        raise RequestError(
            f"--per-node with --on {where.target}: it starts as many processes as its hosts have slots; give each host"
            " one slot, and tell the script itself how many it is to start."
        )
    placement = TARGETS[where.target].resolve(where) if meeting is None else joined.placement(where, identity, meeting)
    told = place_of_job(where, placement)
    if where.target == "local":
        # What the user has set for the script is better known than what we guess.
        told["env"] = {name: told["env"][name] for name in told["env"] if name in where.env or name not in environ}
    job = ProgramJob(
        run="",
        argv=_argv(options, placement.python),
        args=_args(options),
        per_node=options["per_node"],
        watched=False,
        output=options["output"],
        max_restarts=options["max_restarts"],
        stop_grace_s=options["grace"],
        cwd=os.getcwd(),
        **told,
    )
    return job, placement.words


def rank_of(
    options: Mapping[str, Any], where: Where, identity: Identity, environ: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What the environment of a rank that a launcher has started lacks, and what that process is to become.

    Raises RequestError for what the launcher has decided, or does not tell.
    """
    who = f"under {identity.launcher}"
    joined.refuse_elsewhere(where, who)
    wrong = ("nproc_per_node", "device", "per_node", "max_restarts", "output", "grace", "out")
    why = {"": f"{identity.launcher} has started this process already, and decides that; leave it out"}
    refuse_decided(options, (*LAUNCH, *PROGRAM, *WHERE), wrong, who, why)
    env = {**joined.rank_environ(identity, environ), **where.env}
    local_world_size = identity.local_world_size
    alone = local_world_size == identity.world_size
    told = {
        "GROUP_RANK": 0 if alone else identity.node_rank,
        "GROUP_WORLD_SIZE": 1 if alone else identity.nnodes,
        "OMP_NUM_THREADS": max(1, usable_cores() // (local_world_size or 1)),
        "PYTHONUNBUFFERED": 1,
    }
    known = {**environ, **env}
    env |= {name: str(value) for name, value in told.items() if value is not None and name not in known}
    try:
        args = args_of(_args(options), {**environ, **env}, 0)
    except KeyError as error:
        raise RequestError(
            f"{identity.launcher} does not tell the {error.args[0]} of this process, which an argument of the script"
            " asks for; set it in the environment, or leave it out."
        ) from error
    return env, (*_argv(options, where.python or sys.executable), *args)


def _become(options: Mapping[str, Any], where: Where, identity: Identity) -> int:
    env, argv = rank_of(options, where, identity, os.environ)
    if where.dry_run:
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


def _where(options: Mapping[str, Any]) -> Where:
    """Raises RequestError for what is wrong wherever it is typed."""
    if not options["script"]:
        raise RequestError("name what to launch: seatrial launch SCRIPT [ARGS]...")
    script = options["script"][0]
    refuse_numbers(options, {})
    if options["pass_local_rank"] and options["per_node"]:
        raise RequestError(
            "--pass-local-rank with --per-node: the one process of a node has no local rank; choose one."
        )
    own = (*LAUNCH, *PROGRAM)
    where = where_of({**options, "backend": "auto"}, ("launch", *retyped(own, options)))
    # Other machines may have it where this one has none.
    if where.target == "local" and not options["module"] and not Path(script).exists():
        raise RequestError(f"{script}: there is no such script here; name it as it is seen from this folder.")
    return where


def _argv(options: Mapping[str, Any], python: str) -> tuple[str, ...]:
    return (python, *(("-m",) if options["module"] else ()), options["script"][0])


def _args(options: Mapping[str, Any]) -> tuple[str, ...]:
    passed = ("--local_rank={local_rank}",) if options["pass_local_rank"] else ()
    return (*passed, *options["script"][1:])
