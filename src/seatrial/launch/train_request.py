"""From what was typed after ``seatrial train`` to what every rank is told, and to who starts the ranks."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seatrial.errors import RequestError
from seatrial.launch import joined, place
from seatrial.launch.command import pasted
from seatrial.launch.job import ProgramJob
from seatrial.launch.option import retyped
from seatrial.launch.options import PROGRAM, TRAIN, WHERE
from seatrial.launch.place import Place
from seatrial.launch.program import dry_run, flag, processes, refuse_decided, refuse_numbers
from seatrial.launch.target import Placement, Where
from seatrial.launch.targets import TARGETS
from seatrial.launch.where import place_of_job, where_of
from seatrial.probe import own_code
from seatrial.probe.identity import Identity
from seatrial.training.defaults import DEFAULT_MODELS, make_recipe
from seatrial.training.recipe import Recipe
from seatrial.worker.inject import parse_faults
from seatrial.worker.train_spec import Spawn, TrainSpec

__all__ = ["TrainRequest", "resolve"]

_PROGRAM = "seatrial.worker.train"
_FOLDER = "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """A training, resolved. ``job`` is None where this process becomes a rank, or starts ranks, itself."""

    spec: TrainSpec
    job: ProgramJob | None
    python: str
    env: Mapping[str, str]
    """What the ranks get beside our own environment."""
    summary: str
    out: Path
    speaks: bool
    """Of the processes that were started together, the one that tells what will run."""

    def argv(self) -> tuple[str, ...]:
        """What every rank executes."""
        return (*own_code.module_argv(self.python, _PROGRAM), self.spec.to_json())

    def dry_run(self) -> list[str]:
        """What would be executed, a line each."""
        if self.job is not None:
            return dry_run(self.job, self.out)
        return [pasted({**self.env, **own_code.environ_for(os.environ)}, self.argv())]

    def execute(self) -> None:
        """Become that process; does not return. For a request without a job."""
        argv = self.argv()
        environ = {**os.environ, **self.env, **own_code.environ_for(os.environ)}
        sys.stdout.flush()
        os.execve(argv[0], argv, environ)


def resolve(values: Mapping[str, Any], identity: Identity, environ: Mapping[str, str], *, debug: bool) -> TrainRequest:
    """Raises RequestError for a wrong request. ``values`` by the names of the options of ``seatrial train``."""
    _refuse_contradictions(values)
    is_rank = joined.is_rank(identity)
    is_node = identity.level == "node" and joined.is_one_of_many(identity)
    where = where_of(values, ("train", *retyped((*TRAIN, *PROGRAM), values)))
    _refuse_here(values, where, identity, is_rank=is_rank, is_node=is_node)
    if where.target != "mpirun" and not TARGETS[where.target].calls_again:
        place.see_that_mpi_started(values["backend"], identity, "train", least=1)
    if is_rank:
        return _as_rank(values, where, identity, environ, debug)
    if values["spawn"] or is_node:
        return _as_spawn(values, where, identity if is_node else None, environ, debug)
    return _as_controller(values, where, environ, debug)


def _refuse_contradictions(values: Mapping[str, Any]) -> None:
    if not values["workload"]:
        raise RequestError(f"name what to train on: {', '.join(DEFAULT_MODELS)}-1x8x8.")
    # 0 is given, too, and equals False.
    given = {name for name, value in values.items() if value is not None and value is not False and value != ()}
    for one, other in (
        ("total_epochs", "epochs"),
        ("total_epochs", "max_steps"),
        ("epochs", "max_steps"),
        ("save_after", "save_every"),
        ("batch_size", "global_batch_size"),
    ):
        if one in given and other in given:
            raise RequestError(f"{flag(one)} and {flag(other)} say the same thing twice; give one of them.")
    steps = dict.fromkeys(("save_every", "save_after", "epochs", "total_epochs", "max_steps"), 0)
    sizes = {"nnodes": 1, "batch_size": 1, "global_batch_size": 1, "model_parallel_size": 2, "num_microbatches": 1}
    refuse_numbers(values, {**steps, **sizes})
    if values["lr"] is not None and not 0 < values["lr"] < math.inf:
        raise RequestError(f"--lr {values['lr']}: a positive number is expected.")
    for name, strategies in (("model_parallel_size", ("pipeline", "tensor")), ("num_microbatches", ("pipeline",))):
        if name in given and values["strategy"] not in strategies:
            chosen = values["strategy"] or "ddp"
            raise RequestError(
                f"{flag(name)} {values[name]}: strategy {chosen} has no use for it; add --strategy"
                f" {' or '.join(strategies)}, or leave it out."
            )
    target = values["target_accuracy"]
    if target is not None and not 0 < target <= 1:
        raise RequestError(f"--target-accuracy {target:g}: a share above 0 and up to 1 is expected, such as 0.95.")
    if values["timeout"] is not None and not 0 < values["timeout"] < 1e7:
        raise RequestError(f"--timeout {values['timeout']:g}: a positive number of seconds is expected.")
    init = values["init"]
    if init not in (None, "env", "env://") and not re.fullmatch(r"tcp://\S+:\d{1,5}|file:///\S.*", init):
        raise RequestError(f"--init {init}: env, tcp://HOST:PORT or file:///PATH is expected.")


def _refuse_here(values: Mapping[str, Any], where: Where, identity: Identity, *, is_rank: bool, is_node: bool) -> None:
    """What does not go together with how the ranks are started."""
    if values["spawn"] and is_rank:
        raise RequestError(
            f"--spawn starts ranks, and {identity.launcher} has started this process as rank {identity.rank} already;"
            " leave one of the two out."
        )
    alone = not (values["spawn"] or is_rank or is_node)
    wrong: tuple[str, ...] = ("nnodes", "node_rank", "init") if alone else ("max_restarts", "output", "out")
    if alone and TARGETS[where.target].calls_again:
        wrong = ("nnodes", "node_rank")
    if is_rank:
        wrong = (*wrong, "nnodes", "node_rank", "nproc_per_node", "grace")
    who = "without --spawn" if alone else "with --spawn" if values["spawn"] else f"under {identity.launcher}"
    if not alone:
        joined.refuse_elsewhere(where, who)
    why = {
        "max_restarts": "nobody is there to start the ranks again"
        if values["spawn"]
        else f"the launcher starts ranks again, not they themselves; tell {identity.launcher}",
        "init": "seatrial chooses itself where its ranks meet; add --spawn",
        "output": "no agents are there to hold back the output of ranks",
        "out": "no agents are there to keep the files of a run",
        "grace": f"the time to save is up to {identity.launcher}",
        "": "add --spawn" if alone else "the launcher has decided that; leave it out",
    }
    refuse_decided(values, (*TRAIN, *PROGRAM, *WHERE), wrong, who, why)


# The three ways in which ranks come to life


def _as_rank(
    values: Mapping[str, Any], where: Where, identity: Identity, environ: Mapping[str, str], debug: bool
) -> TrainRequest:
    env = joined.rank_environ(identity, environ)
    assert identity.world_size is not None
    local_world_size = identity.local_world_size
    alone = local_world_size == identity.world_size
    here = _place(values, local_world_size, alone=alone, started=True)
    spec = _spec(values, identity.world_size, here, environ, debug)
    what = f"{processes(identity.world_size)} as {identity.launcher} started them"
    return _request(spec, None, values, {**here.env, **where.env, **env}, what, speaks=identity.rank == 0)


def _as_spawn(
    values: Mapping[str, Any], where: Where, identity: Identity | None, environ: Mapping[str, str], debug: bool
) -> TrainRequest:
    known = identity or Identity(launcher="none", level="none")
    nnodes = values["nnodes"] or known.nnodes or 1
    node_rank = values["node_rank"] if values["node_rank"] is not None else known.node_rank
    if node_rank is None:
        if nnodes > 1:
            raise RequestError(
                f"--nnodes {nnodes} without --node-rank: give each node its own, from 0 to {nnodes - 1}."
            )
        node_rank = 0
    if not 0 <= node_rank < nnodes:
        raise RequestError(f"--node-rank {node_rank}: it must be from 0 to {nnodes - 1}, as there are {nnodes} nodes.")
    here = _place(values, values["nproc_per_node"] or known.nproc_per_node, alone=nnodes == 1)
    init = values["init"] or "env"
    env = {**here.env, **where.env}
    if init == "env" and not (environ.get("MASTER_ADDR") and environ.get("MASTER_PORT")):
        if nnodes > 1:
            raise RequestError(
                "--spawn over several nodes needs a place to meet: --init tcp://HOST-OF-NODE-0:PORT, a shared"
                " file:///PATH, or MASTER_ADDR and MASTER_PORT in the environment."
            )
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    world_size = nnodes * here.nproc_per_node
    spec = _spec(values, world_size, here, environ, debug)
    spawned = Spawn(
        nnodes=nnodes, node_rank=node_rank, nproc_per_node=here.nproc_per_node, stop_grace_s=values["grace"]
    )
    if nnodes == 1:
        what = f"{processes(world_size)} on this machine, without agents"
    else:
        mine = f"{here.nproc_per_node} of them here as node {node_rank} of {nnodes}"
        what = f"{processes(world_size)}, {mine}, meeting at {spec.init}"
    return _request(replace(spec, spawn=spawned), None, values, env, what, speaks=True)


def _as_controller(values: Mapping[str, Any], where: Where, environ: Mapping[str, str], debug: bool) -> TrainRequest:
    if values["strategy"] == "dp":
        where = replace(where, nproc_per_node=_of_dp(where.nproc_per_node))
    placement = TARGETS[where.target].resolve(where)
    spec = _spec(values, placement.nodes * placement.nproc_per_node, placement, environ, debug)
    what = f"{processes(placement.nodes * placement.nproc_per_node)} {placement.words}"
    request = replace(_request(spec, None, values, placement.env, what, speaks=True), python=placement.python)
    job = ProgramJob(
        run="",
        **place_of_job(where, placement),
        argv=request.argv(),
        watched=True,
        output=values["output"],
        max_restarts=values["max_restarts"] or 0,
        stop_grace_s=values["grace"],
        cwd=os.getcwd(),
    )
    return replace(request, job=job)


# What is common to them


def _place(values: Mapping[str, Any], nproc_per_node: int | None, *, alone: bool, started: bool = False) -> Place:
    if values["strategy"] == "dp":
        nproc_per_node = _of_dp(nproc_per_node)
    return place.choose(
        device=values["device"],
        backend=values["backend"],
        nproc_per_node=nproc_per_node,
        python=values["python"] or sys.executable,
        alone=alone,
        started=started,
    )


def _of_dp(nproc_per_node: int | None) -> int:
    if nproc_per_node not in (None, 1):
        raise RequestError(
            f"--strategy dp: one process drives all devices, so --nproc-per-node {nproc_per_node} is too many."
        )
    return 1


def _spec(
    values: Mapping[str, Any], world_size: int, here: Place | Placement, environ: Mapping[str, str], debug: bool
) -> TrainSpec:
    init = values["init"] or "env"
    save_every = values["save_after"] if values["save_after"] is not None else values["save_every"]
    if save_every is None and values["max_restarts"]:
        save_every = 1  # or else a restart would begin from the start
    folder = values["checkpoint_dir"]
    if folder is None and (save_every or values["max_restarts"] or values["resume"] not in ("auto", "never")):
        folder = _FOLDER
    planted = tuple(filter(None, environ.get("SEATRIAL_PLANT", "").split(";")))
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
    recipe.data(Path(values["data"]) if values["data"] else None)
    return recipe


def _request(
    spec: TrainSpec, job: None, values: Mapping[str, Any], env: Mapping[str, str], where: str, *, speaks: bool
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
    where += f" ({spec.device}, {backend})" + (f"; PLANTED FAULTS: {'; '.join(spec.planted)}" if spec.planted else "")
    return TrainRequest(
        spec=spec,
        job=job,
        python=values["python"] or sys.executable,
        env=env,
        summary=f"seatrial train {recipe.workload}: {what}, {strategy}; {where}",
        out=values["out"],
        speaks=speaks,
    )


def _free_port() -> int:
    from seatrial.agent.program import free_port

    return free_port()
