"""From what was typed to a job: whatever is wrong with a request is found here, before anything is started."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.checks import registry, training
from seatrial.errors import RequestError
from seatrial.launch import joined, place
from seatrial.launch.job import Job
from seatrial.launch.joined import Meeting
from seatrial.launch.option import retyped
from seatrial.launch.options import RUN
from seatrial.launch.target import Where
from seatrial.launch.targets import TARGETS
from seatrial.launch.where import place_of_job, where_of
from seatrial.plan.model import Plan, Setting
from seatrial.plan.reader import read_plan
from seatrial.probe.identity import Identity
from seatrial.worker.inject import parse_faults

__all__ = ["Request", "job_of", "request_of"]

_OF_THE_TRAINING = ("workload", "model", "epochs", "batch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The values of ``seatrial run``'s options, by their names in ``launch/options.py``, and where it runs."""

    plan: str
    only: tuple[str, ...]
    skip: tuple[str, ...]
    validation_only: bool
    workload: str | None
    model: str | None
    epochs: int | None
    batch_size: int | None
    deadline: float | None
    out: Path
    as_json: bool
    where: Where


def request_of(values: Mapping[str, Any]) -> Request:
    """Raises RequestError for a wrong place. ``values`` by the names of the options of ``seatrial run``."""
    own = {option.name: values[option.name] for option in RUN}
    return Request(**own, where=where_of(values, ("run", *retyped(RUN, values))))


def job_of(request: Request, identity: Identity, meeting: Meeting | None) -> tuple[Job, str]:
    """The job, still without the name of its run, and in words where it runs.

    Raises RequestError for what cannot be done here.
    """
    where = request.where
    if where.target != "mpirun" and not TARGETS[where.target].calls_again:
        place.see_that_mpi_started(where.backend, identity, "run", least=2)
    placement = TARGETS[where.target].resolve(where) if meeting is None else joined.placement(where, identity, meeting)
    planted = tuple(filter(None, os.environ.get("SEATRIAL_PLANT", "").split(";")))
    job = Job(run="", plan=_plan(request), planted=planted, **place_of_job(where, placement))
    parse_faults(planted, job.world_size, job.plan.checks)
    _see_that_it_trains(job)
    return job, placement.words


def _see_that_it_trains(job: Job) -> None:
    """Raises RequestError for a training that so many ranks cannot do: they would find it out after minutes."""
    if training.CHECK.name not in job.plan.checks:
        return
    params = job.plan.params(training.CHECK.name, training.Params)
    try:
        training.recipe_for(params, job.world_size)
    except RequestError as error:
        key = "global_batch_size" if params.batch_size is None else "batch_size"
        origin = job.plan.settings[training.CHECK.name][key].origin
        raise RequestError(f"{error} {job.world_size} ranks, {key} {getattr(params, key)} (from {origin}).") from error


def _plan(request: Request) -> Plan:
    checks = {name: registry.load(name) for name in registry.names()}
    told = {name: getattr(request, name) for name in _OF_THE_TRAINING}
    resolved = read_plan(
        request.plan,
        schemas={name: check.params for name, check in checks.items()},
        scopes={name: check.scope for name, check in checks.items()},
        overrides=[
            (training.CHECK.name, name, value, f"--{name.replace('_', '-')}")
            for name, value in told.items()
            if value is not None
        ],
        only=request.only,
        skip=request.skip,
        validation_only=request.validation_only,
    )
    deadline_s = request.deadline
    if deadline_s is None:
        return resolved
    if not (math.isfinite(deadline_s) and deadline_s > 0):
        raise RequestError(f"--deadline {deadline_s}: a positive number of seconds is needed.")
    return dataclasses.replace(resolved, deadline_s=Setting(value=deadline_s, origin="--deadline"))
