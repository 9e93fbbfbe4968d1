"""From the options of ``seatrial train`` to the specification of the ranks, and to the process that starts them."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seatrial.environment import self_location
from seatrial.environment.drill import planted_faults
from seatrial.environment.identity import Identity
from seatrial.errors import RequestError
from seatrial.files import exists
from seatrial.probe.torch_install import interpreter
from seatrial.rank.faults import parse_faults
from seatrial.request.common_options import TARGET_OPTIONS
from seatrial.request.program_options import PROGRAM
from seatrial.request.target_options import placement_fields, require_accelerator, target_request_of
from seatrial.request.training_options import TRAIN
from seatrial.run import external_launcher
from seatrial.run.run_program import dry_run, flag, process_count, refuse_decided, refuse_numbers
from seatrial.targets import resources
from seatrial.targets.command import shell_line
from seatrial.targets.job import ProgramJob
from seatrial.targets.option import to_argv
from seatrial.targets.registry import TARGETS
from seatrial.targets.resources import LocalResources
from seatrial.targets.target import Placement, TargetRequest
from seatrial.training.data import published_sizes
from seatrial.training.defaults import DEFAULT_MODELS, make_recipe
from seatrial.training.recipe import Recipe
from seatrial.util.text import printable
from seatrial.worker.train_spec import Spawn, TrainSpec

_PROGRAM = "seatrial.worker.train_main"
_DEFAULT_FOLDER = "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """A resolved training."""

    spec: TrainSpec
    job: ProgramJob | None
    """None where this process becomes a rank itself, or starts the ranks of its node."""
    python: str
    """The interpreter of the ranks."""
    env: Mapping[str, str]
    """Variables of the ranks in addition to the environment of this process."""
    summary: str
    """One line: what is trained, how, and where."""
    out: Path
    """Folder for the files of the run."""
    prints_summary: bool
    """Whether this process prints the summary: one of those that were started together does."""

    def argv(self) -> tuple[str, ...]:
        """Return the command of every rank."""
        return (*self_location.module_argv(self.python, _PROGRAM), self.spec.to_json())

    def dry_run(self) -> list[str]:
        """Return the lines of ``--dry-run``."""
        if self.job is not None:
            return dry_run(self.job, self.out)
        return [shell_line({**self.env, **self_location.import_variables(os.environ)}, self.argv())]

    def execute(self) -> None:
        """Replace this process by ``argv()``; for a request without a job. Does not return."""
        argv = self.argv()
        environ = {**os.environ, **self.env, **self_location.import_variables(os.environ)}
        sys.stdout.flush()
        os.execve(argv[0], argv, environ)


def resolve(values: Mapping[str, Any], identity: Identity, environ: Mapping[str, str], *, debug: bool) -> TrainRequest:
    """Return the training that the options request. Raises RequestError.

    Args:
        values: value of each option of ``seatrial train`` by its name.
        identity: what the environment says about this process.
        environ: the environment of this process.
        debug: whether the ranks print tracebacks.
    """
    _refuse_contradictions(values)
    is_rank = external_launcher.is_rank(identity)
    is_node = identity.level == "node" and external_launcher.is_one_of_many(identity)
    target_request = target_request_of(values, ("train", *to_argv((*TRAIN, *PROGRAM), values)))
    _refuse_here(values, target_request, identity, is_rank=is_rank, is_node=is_node)
    if target_request.target != "mpirun" and not TARGETS[target_request.target].conducts_remotely:
        resources.require_mpi_launcher(values["backend"], identity, "train", min_ranks=1)
    if is_rank:
        return _as_rank(values, target_request, identity, environ, debug)
    if values["spawn"] or is_node:
        return _as_spawn(values, target_request, identity if is_node else None, environ, debug)
    return _as_controller(values, target_request, environ, debug)


def _refuse_contradictions(values: Mapping[str, Any]) -> None:
    if not values["workload"]:
        raise RequestError(f"name a data set to train on: {', '.join(DEFAULT_MODELS)}-1x8x8.")
    if values["workload"].endswith((".py", ".sh")):
        raise RequestError(f"{printable(values['workload'])} is a script, and no data set; seatrial launch starts it.")
    # 0 equals False, and is a given value.
    given = {name for name, value in values.items() if value is not None and value is not False and value != ()}
    for one, other in (
        ("total_epochs", "epochs"),
        ("total_epochs", "max_steps"),
        ("epochs", "max_steps"),
        ("save_after", "save_every"),
        ("batch_size", "global_batch_size"),
    ):
        if one in given and other in given:
            raise RequestError(f"{flag(one)} and {flag(other)} set the same value; give one of them.")
    steps = dict.fromkeys(("save_every", "save_after", "epochs", "total_epochs", "max_steps"), 0)
    sizes = {"nodes": 1, "batch_size": 1, "global_batch_size": 1, "model_parallel_size": 2, "num_microbatches": 1}
    refuse_numbers(values, {**steps, **sizes})
    if values["lr"] is not None and not 0 < values["lr"] < math.inf:
        raise RequestError(f"--lr {values['lr']}: expected a positive number.")
    for name, strategies in (("model_parallel_size", ("pipeline", "tensor")), ("num_microbatches", ("pipeline",))):
        if name in given and values["strategy"] not in strategies:
            chosen = values["strategy"] or "ddp"
            raise RequestError(
                f"{flag(name)} {values[name]}: strategy {chosen} does not use it; add --strategy"
                f" {' or '.join(strategies)}, or leave it out."
            )
    target = values["target_accuracy"]
    if target is not None and not 0 < target <= 1:
        raise RequestError(f"--target-accuracy {target:g}: expected a share above 0 and up to 1, such as 0.95.")
    if values["timeout"] is not None and not 0 < values["timeout"] < 1e7:
        raise RequestError(f"--timeout {values['timeout']:g}: expected a positive number of seconds.")
    init = values["init"]
    if init not in (None, "env", "env://") and not re.fullmatch(r"tcp://\S+:\d{1,5}|file:///\S.*", init):
        raise RequestError(f"--init {init}: expected env, tcp://HOST:PORT or file:///PATH.")


def _refuse_here(
    values: Mapping[str, Any], target_request: TargetRequest, identity: Identity, *, is_rank: bool, is_node: bool
) -> None:
    """Raise RequestError for options that contradict how the ranks are started."""
    if values["spawn"] and is_rank:
        raise RequestError(
            f"--spawn starts ranks, and {identity.launcher} has started this process as rank {identity.rank} already;"
            " leave one of the two out."
        )
    alone = not (values["spawn"] or is_rank or is_node)
    wrong: tuple[str, ...] = ("node_rank", "init") if alone else ("max_restarts", "output", "out")
    if alone and TARGETS[target_request.target].conducts_remotely:
        wrong = ("node_rank",)
    if is_rank:
        wrong = (*wrong, "node_rank", "nproc_per_node", "grace")
    origin = "without --spawn" if alone else "with --spawn" if values["spawn"] else f"under {identity.launcher}"
    if not alone:
        counted = () if is_rank else ("nodes",)
        external_launcher.refuse_target_options(target_request, origin, but=counted)
    why = {
        "max_restarts": "no agent is there to restart the ranks"
        if values["spawn"]
        else f"the launcher restarts ranks, not seatrial; use the option of {identity.launcher}",
        "init": "seatrial chooses the rendezvous of its ranks itself; add --spawn",
        "output": "no agent is there to filter the output of the ranks",
        "out": "no agent is there to write the files of a run",
        "grace": f"{identity.launcher} decides the time before SIGKILL",
        "": "add --spawn" if alone else "the launcher has decided that; leave it out",
    }
    refuse_decided(values, (*TRAIN, *PROGRAM, *TARGET_OPTIONS), wrong, origin, why)


# The three ways to start ranks: a launcher has started this one, this process starts those of its node, agents do


def _as_rank(
    values: Mapping[str, Any],
    target_request: TargetRequest,
    identity: Identity,
    environ: Mapping[str, str],
    debug: bool,
) -> TrainRequest:
    env = external_launcher.rank_environ(identity, environ)
    assert identity.world_size is not None
    local_world_size = identity.local_world_size
    on_one_node = local_world_size == identity.world_size
    here = _local_resources(values, target_request, local_world_size, on_one_node=on_one_node, started=True)
    spec = _spec(values, identity.world_size, here, environ, debug)
    what = f"{process_count(identity.world_size)} as {identity.launcher} started them"
    return _request(
        spec,
        _python(values),
        values,
        {**here.env, **target_request.env, **env},
        what,
        prints_summary=identity.rank == 0,
    )


def _as_spawn(
    values: Mapping[str, Any],
    target_request: TargetRequest,
    identity: Identity | None,
    environ: Mapping[str, str],
    debug: bool,
) -> TrainRequest:
    found = identity or Identity(launcher="none", level="none")
    nnodes = values["nodes"] or found.nnodes or 1
    node_rank = values["node_rank"] if values["node_rank"] is not None else found.node_rank
    if node_rank is None:
        if nnodes > 1:
            raise RequestError(
                f"--nnodes {nnodes} without --node-rank: give each node a different one, from 0 to {nnodes - 1}."
            )
        node_rank = 0
    if not 0 <= node_rank < nnodes:
        raise RequestError(
            f"--node-rank {node_rank}: expected a number from 0 to {nnodes - 1}, as there are {nnodes} nodes."
        )
    requested = target_request.nproc_per_node or found.nproc_per_node
    here = _local_resources(values, target_request, requested, on_one_node=nnodes == 1)
    init = values["init"] or "env"
    env = {**here.env, **target_request.env}
    if init == "env" and not (environ.get("MASTER_ADDR") and environ.get("MASTER_PORT")):
        if nnodes > 1:
            raise RequestError(
                "--spawn over several nodes needs a rendezvous: --init tcp://HOST-OF-NODE-0:PORT, a shared"
                " file:///PATH, or MASTER_ADDR and MASTER_PORT in the environment."
            )
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    world_size = nnodes * here.nproc_per_node
    spec = _spec(values, world_size, here, environ, debug)
    spawned = Spawn(
        nnodes=nnodes, node_rank=node_rank, nproc_per_node=here.nproc_per_node, stop_grace_s=values["grace"]
    )
    if nnodes == 1:
        what = f"{process_count(world_size)} on this machine, without agents"
    else:
        mine = f"{here.nproc_per_node} of them here as node {node_rank} of {nnodes}"
        what = f"{process_count(world_size)}, {mine}, rendezvous at {spec.init}"
    return _request(replace(spec, spawn=spawned), _python(values), values, env, what, prints_summary=True)


def _as_controller(
    values: Mapping[str, Any], target_request: TargetRequest, environ: Mapping[str, str], debug: bool
) -> TrainRequest:
    if values["strategy"] == "dp":
        target_request = replace(target_request, nproc_per_node=_dp_processes(values["nproc_per_node"]))
    resume = values["resume"]
    # On other machines its folder may be there and not here.
    if target_request.target == "local" and resume not in ("auto", "never") and not exists(resume):
        raise RequestError(
            f"--resume {printable(resume)}: there is no such file here; give the path of a checkpoint, or auto for the"
            " newest one of --checkpoint-dir."
        )
    placement = TARGETS[target_request.target].resolve(target_request)
    spec = _spec(values, placement.nodes * placement.nproc_per_node, placement, environ, debug)
    what = f"{process_count(placement.nodes * placement.nproc_per_node)} {placement.words}"
    request = _request(spec, placement.python, values, placement.env, what, prints_summary=True)
    job = ProgramJob(
        run="",
        **placement_fields(target_request, placement),
        argv=request.argv(),
        watched=True,
        output=values["output"],
        max_restarts=values["max_restarts"] or 0,
        stop_grace_s=values["grace"],
        cwd=os.getcwd(),
    )
    return replace(request, job=job)


# Shared by the three


def _local_resources(
    values: Mapping[str, Any],
    target_request: TargetRequest,
    nproc_per_node: int | None,
    *,
    on_one_node: bool,
    started: bool = False,
) -> LocalResources:
    if values["strategy"] == "dp":
        nproc_per_node = _dp_processes(nproc_per_node)
    here = resources.local_resources(
        device=values["device"],
        backend=values["backend"],
        nproc_per_node=nproc_per_node,
        processes_by=target_request.processes_by,
        python=_python(values),
        on_one_node=on_one_node,
        started=started,
    )
    require_accelerator(target_request, here.device)
    return here


def _python(values: Mapping[str, Any]) -> str:
    """Return the interpreter of ranks on this machine."""
    return interpreter(values["python"] or sys.executable)


def _dp_processes(nproc_per_node: int | str | None) -> int:
    if nproc_per_node not in (None, "auto", 1):
        raise RequestError(
            f"--strategy dp: one process drives all devices; --nproc-per-node {nproc_per_node} must be 1."
        )
    return 1


def _spec(
    values: Mapping[str, Any],
    world_size: int,
    here: LocalResources | Placement,
    environ: Mapping[str, str],
    debug: bool,
) -> TrainSpec:
    init = values["init"] or "env"
    save_every = values["save_after"] if values["save_after"] is not None else values["save_every"]
    if save_every is None and values["max_restarts"]:
        save_every = 1  # without checkpoints a restart would begin at step 0
    folder = values["checkpoint_dir"]
    if folder is None and (save_every or values["max_restarts"] or values["resume"] not in ("auto", "never")):
        folder = _DEFAULT_FOLDER
    planted = planted_faults(environ)
    parse_faults(planted, world_size, ("train",))
    return TrainSpec(
        recipe=_recipe(values, world_size),
        device=here.device,
        backend=here.backend,
        init="env://" if init == "env" else init,
        data_dir=values["data"],
        checkpoint_dir=folder,
        save_every=save_every or 0,
        resume=values["resume"],
        target_accuracy=values["target_accuracy"],
        log=values["log"],
        profile=values["profile"],
        timeout_s=values["timeout"] or 300.0,
        debug=debug,
        planted=planted,
    )


def _recipe(values: Mapping[str, Any], world_size: int) -> Recipe:
    batch = values["global_batch_size"]
    if values["batch_size"] is not None:
        batch = values["batch_size"] * world_size
    epochs = values["epochs"] if values["epochs"] is not None else values["total_epochs"]
    names: list[str] = ["model", "max_steps", "optimizer", "lr", "schedule", "seed", "amp", "augment"]
    names += ["strategy", "model_parallel_size", "num_microbatches"]
    recipe = make_recipe(
        values["workload"],
        epochs=epochs,
        global_batch_size=batch,
        compile=values["compile"] or None,
        channels_last=values["channels_last"] or None,
        **{name: values[name] for name in names},
    )
    recipe.require_enough(published_sizes(recipe.workload, num_samples=recipe.num_samples)[0])
    return recipe


def _request(
    spec: TrainSpec,
    python: str,
    values: Mapping[str, Any],
    env: Mapping[str, str],
    location: str,
    *,
    prints_summary: bool,
) -> TrainRequest:
    recipe = spec.recipe
    count, unit = (recipe.epochs, "epoch") if recipe.epochs is not None else (recipe.max_steps, "step")
    length = f"{count} {unit}{'' if count == 1 else 's'}"
    backend = spec.backend if spec.backend != "auto" else "gloo" if spec.device == "cpu" else "nccl"
    what = f"{recipe.model}, {length}, global batch {recipe.global_batch_size}, {recipe.optimizer} lr {recipe.lr:g}"
    strategy = recipe.strategy
    if strategy == "dp":
        strategy += " (for old scripts; ddp is faster)"
    elif strategy in ("pipeline", "tensor"):
        strategy += f" over {recipe.model_parallel_size}"
    location += f" ({spec.device}, {backend})" + (
        f"; PLANTED FAULTS: {'; '.join(spec.planted)}" if spec.planted else ""
    )
    return TrainRequest(
        spec=spec,
        job=None,
        python=python,
        env=env,
        summary=f"seatrial train {recipe.workload}: {what}, {strategy}; {location}",
        out=values["out"],
        prints_summary=prints_summary,
    )


def _free_port() -> int:
    from seatrial.util.ports import free_port

    return free_port()
