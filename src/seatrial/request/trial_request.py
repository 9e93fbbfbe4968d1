"""From the options of ``seatrial run`` to a job. An invalid request is refused here, before anything starts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.checks import diagnostics, registry, training
from seatrial.environment.drill import planted_faults
from seatrial.environment.identity import Identity
from seatrial.errors import RequestError
from seatrial.plan.model import Plan, Setting
from seatrial.plan.plan_reader import read_plan
from seatrial.rank.faults import parse_faults
from seatrial.request.common_options import TARGET_OPTIONS, UNPROTECTED
from seatrial.request.target_options import placement_fields, target_request_of
from seatrial.request.trial_options import EVIDENCE, PLAN, RUN
from seatrial.run import external_launcher
from seatrial.run.external_launcher import Rendezvous
from seatrial.targets import resources
from seatrial.targets.job import Job
from seatrial.targets.option import retyped, to_argv
from seatrial.targets.registry import TARGETS
from seatrial.targets.target import TargetRequest

_TRAINING_OPTIONS = ("workload", "data", "model", "epochs", "batch_size")
_OF_PLAN = (*(option.name for option in PLAN), "origins")
_MIN_MPI_RANKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """The values of the options in ``trial_options.py``, by their names, and the target."""

    plan: str
    only: tuple[str, ...]
    skip: tuple[str, ...]
    validation_only: bool
    workload: str | None
    data: str | None
    model: str | None
    epochs: int | None
    batch_size: int | None
    deadline: float | None
    """Seconds; None: the deadline of the plan."""
    out: Path
    require_full: bool
    evidence: tuple[str, ...]
    """``FILE`` or ``NODE=FILE`` of each file that another tool wrote."""
    as_json: bool
    verbose: bool
    quiet: bool
    origins: Mapping[str, str]
    """Where the value of an option came from, by its name: ``--epochs``, ``./seatrial.toml: epochs``."""
    target_request: TargetRequest
    options: tuple[str, ...]
    """The options as typed, without the plan."""


def request_of(values: Mapping[str, Any]) -> TrialRequest:
    """Return the request for the values of the options of ``seatrial run``. Raises RequestError for a wrong target."""
    own_values = {option.name: values[option.name] for option in RUN}
    # Files are read where they are typed, and not where a cluster runs the command again.
    repeated = [option for option in RUN if option is not EVIDENCE]
    target_request = target_request_of(values, ("run", *to_argv(repeated, values)))
    return TrialRequest(
        **own_values,
        origins=values.get("origins", {}),
        target_request=target_request,
        options=retyped((*RUN, *TARGET_OPTIONS, UNPROTECTED, *TARGETS[target_request.target].options), values),
    )


def job_of(request: TrialRequest, identity: Identity, rendezvous: Rendezvous | None) -> tuple[Job, str]:
    """Return the job, without a run name yet, and a phrase that says where it runs ("on this machine").

    Raises RequestError for a request that cannot be carried out here.

    Args:
        identity: what the environment says about this process.
        rendezvous: where the processes find one another that a launcher has started; None: there are no others.
    """
    target_request = request.target_request
    if target_request.target != "mpirun" and not TARGETS[target_request.target].conducts_remotely:
        resources.require_mpi_launcher(target_request.backend, identity, "run", min_ranks=_MIN_MPI_RANKS)
    # A target may send the plan to a cluster, which should see nothing of a file that is no plan.
    plan = plan_of({name: getattr(request, name) for name in _OF_PLAN})
    target_request = dataclasses.replace(target_request, plan=plan.document)
    placement = (
        TARGETS[target_request.target].resolve(target_request)
        if rendezvous is None
        else external_launcher.placement(target_request, identity, rendezvous)
    )
    planted = planted_faults(os.environ)
    on_one_machine = external_launcher.is_on_one_machine(identity) if rendezvous else target_request.target == "local"
    plan = _about_these_nodes(plan, placement.nodes, on_one_machine=on_one_machine)
    if request.evidence and placement.device == "cpu" and TARGETS[target_request.target].conducts_remotely:
        raise RequestError(
            f"--evidence {request.evidence[0]}: the pods use CPUs, so that their trial leaves the check"
            f" {diagnostics.CHECK.name} out, which judges it; use --device cuda or --device rocm."
        )
    if placement.device == "cpu":
        plan = _about_no_device(plan, (*request.only, *((diagnostics.CHECK.name,) if request.evidence else ())))
    if request.evidence and diagnostics.CHECK.name not in plan.checks:
        raise RequestError(
            f"--evidence {request.evidence[0]}: the check {diagnostics.CHECK.name} judges it, and this trial leaves it"
            f" out; add --only {diagnostics.CHECK.name}."
        )
    if request.require_full and plan.not_asked:
        name, why = next(iter(plan.not_asked.items()))
        raise RequestError(f"--require-full: without {name} ({why}) no PASS is full; leave one of the two out.")
    job = Job(
        run="",
        plan=plan,
        planted=planted,
        require_full=request.require_full,
        options=request.options,
        launcher=identity.launcher if rendezvous else "",
        **placement_fields(target_request, placement),
    )
    scopes = registry.scopes()
    parse_faults(planted, job.world_size, [check for check in job.plan.checks if scopes[check] != "agents"])
    _validate_training(job)
    return job, placement.words


def _about_these_nodes(plan: Plan, num_nodes: int, *, on_one_machine: bool) -> Plan:
    """Return the plan without checks that are about more machines, as if it had never named them.

    Raises RequestError where none is left.
    """
    needed = {name: registry.load(name).min_nodes for name in (*plan.checks, *plan.not_asked)}
    num_machines = 1 if on_one_machine else num_nodes
    names = [name for name, min_nodes in needed.items() if min_nodes > num_machines]
    left = _never_named(plan, names)
    if not left.checks:
        name = plan.checks[0]
        all_on_one = f"all {num_nodes} nodes of this job are one"
        has = all_on_one if num_nodes > num_machines else f"this job has {num_machines}"
        raise RequestError(f"{name} needs at least {needed[name]} machines, and {has}.")
    return left


def _never_named(plan: Plan, names: Collection[str]) -> Plan:
    left = plan.without(names)
    asked = {name: option for name, option in left.not_asked.items() if name not in names}
    return dataclasses.replace(left, not_asked=asked)


def _about_no_device(plan: Plan, only: tuple[str, ...]) -> Plan:
    """Return the plan without checks of GPUs, as if it had never named them; ``--only`` may ask for them all the same.

    Raises RequestError where none is left.
    """
    typed = {name.strip() for entry in only for name in entry.split(",")}
    names = [name for name in (*plan.checks, *plan.not_asked) if registry.load(name).devices_only and name not in typed]
    left = _never_named(plan, names)
    if not left.checks:
        raise RequestError(
            f"{plan.checks[0]} is about GPUs, and this job uses CPUs; use --device cuda or --device rocm."
        )
    return left


def _validate_training(job: Job) -> None:
    """Raise RequestError for a training that this number of ranks cannot do; the ranks would fail minutes later."""
    if training.CHECK.name not in job.plan.checks:
        return
    params = job.plan.params(training.CHECK.name, training.params.Params)
    try:
        training.params.recipe_for(params, job.world_size)
    except RequestError as error:
        key = "global_batch_size" if params.batch_size is None else "batch_size"
        origin = job.plan.settings[training.CHECK.name][key].origin
        raise RequestError(f"{error} {job.world_size} ranks, {key} {getattr(params, key)} (from {origin}).") from error


def plan_of(values: Mapping[str, Any]) -> Plan:
    """Return the resolved plan. Raises RequestError.

    A value for the training that nobody typed counts only where the plan has a training.

    Args:
        values: value of each option in ``trial_options.PLAN`` by its name, and ``origins``.
    """
    origins: Mapping[str, str] = values.get("origins") or {}
    names = [name for name in _TRAINING_OPTIONS if values[name] is not None]
    typed = [name for name in names if origins.get(name, _flag(name)) == _flag(name)]
    plan = _read(values, typed, origins)
    if len(typed) < len(names) and training.CHECK.name in plan.checks:
        plan = _read(values, names, origins)
    deadline_s = values["deadline"]
    if deadline_s is None:
        return plan
    if deadline_s <= 0:
        raise RequestError(f"--deadline {deadline_s:g}: expected more than 0 seconds.")
    return dataclasses.replace(plan, deadline_s=Setting(value=deadline_s, origin=origins.get("deadline", "--deadline")))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read(values: Mapping[str, Any], names: Sequence[str], origins: Mapping[str, str]) -> Plan:
    return read_plan(
        values["plan"],
        schemas=registry.schemas(),
        scopes=registry.scopes(),
        work=registry.work(),
        overrides=[(training.CHECK.name, name, values[name], origins.get(name, _flag(name))) for name in names],
        only=values["only"],
        skip=values["skip"],
        validation_only=values["validation_only"],
    )
