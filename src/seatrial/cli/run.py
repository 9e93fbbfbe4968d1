"""``seatrial run``: the acceptance trial."""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from seatrial.errors import RequestError
from seatrial.plan.source import DEFAULT_LEVEL
from seatrial.report.streams import tell

__all__ = ["run"]


@click.command()
@click.argument("plan", default=DEFAULT_LEVEL)
@click.option("--only", multiple=True, metavar="CHECK[,..]", help="Ask for these checks only (and what they need).")
@click.option("--skip", multiple=True, metavar="CHECK[,..]", help="Leave these checks out; a PASS is then partial.")
@click.option("--validation-only", is_flag=True, help="Leave the training out.")
@click.option("--workload", help="What to train on: digits, synthetic-1x8x8, ...")
@click.option("--model", help="What to train: convnet.")
@click.option("--epochs", type=int, help="Epochs of the training.")
@click.option("--batch-size", type=int, help="Batch size per process of the training.")
@click.option("--deadline", type=float, metavar="SECONDS", help="The whole trial ends by then.")
@click.option("--on", "target", default="local", metavar="TARGET", help="Where: local.")
@click.option("--nproc-per-node", type=int, metavar="M", help="Processes; default: one per accelerator, else 2.")
@click.option("--device", type=click.Choice(["auto", "cuda", "rocm", "cpu"]), default="auto")
@click.option("--backend", type=click.Choice(["auto", "nccl", "gloo"]), default="auto")
@click.option("--python", metavar="PATH", help="The interpreter of the ranks; default: this one.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("reports"), help="Where reports go.")
@click.option("--json", "as_json", is_flag=True, help="Print the report alone, as JSON, on standard output.")
@click.option("--dry-run", is_flag=True, help="Print what would be executed, and nothing else.")
def run(plan: str, out: Path, as_json: bool, dry_run: bool, **options: Any) -> int:
    """Run the acceptance trial of PLAN and answer PASS or FAIL.

    PLAN is a TOML file or a level: smoke (seconds), quick (under a minute; the default), standard (minutes), burn-in
    (hours). Exit code: 0 PASS, 1 FAIL, 2 the request is wrong, 3 INCONCLUSIVE, 130 stopped.
    """
    from seatrial.cli.trial import hold
    from seatrial.launch import joined
    from seatrial.probe.identity import identify

    identity = identify(os.environ)
    if identity.note:
        tell(f"seatrial: {identity.note}")
    meeting = joined.meet(identity, os.environ) if joined.is_one_of_many(identity) else None
    # All processes of a job read the same request, so a wrong one ends them all alike.
    job = _job(plan, options, identity, meeting)
    if dry_run:
        click.echo("\n".join(_dry_run(job, out, meeting)))
        return 0
    if meeting is not None:
        os.environ.update(joined.agent_environ(identity))
        if meeting.number > 0:
            joined.become_agent(job, meeting)
    debug = bool(click.get_current_context().find_root().params.get("debug"))
    return hold(job, out, meeting, as_json=as_json, debug=debug)


def _job(plan: str, options: dict[str, Any], identity: Any, meeting: Any) -> Any:
    from seatrial.launch import place
    from seatrial.launch.job import Job
    from seatrial.launch.targets import TARGETS
    from seatrial.worker.inject import parse_fault

    target = options["target"]
    if target not in TARGETS:
        raise RequestError(f"--on {target}: no such target; there is {', '.join(TARGETS)}.")
    python = options["python"] or sys.executable
    here = place.choose(
        device=options["device"],
        backend=options["backend"],
        nproc_per_node=options["nproc_per_node"] if meeting is None else identity.local_world_size,
        python=python,
        alone=meeting is None or identity.local_world_size == identity.world_size,
    )
    planted = tuple(filter(None, os.environ.get("SEATRIAL_PLANT", "").split(";")))
    for fault in planted:
        parse_fault(fault)
    job = Job(
        run="",
        plan=_plan(plan, options),
        target=target,
        nodes=meeting.agents if meeting else 1,
        nproc_per_node=1 if identity.level == "rank" and meeting else identity.nproc_per_node or here.nproc_per_node,
        device=here.device,
        backend=here.backend,
        python=python,
        env=here.env,
        planted=planted,
    )
    _see_that_it_trains(job)
    return job


def _see_that_it_trains(job: Any) -> None:
    """Raises RequestError for a training that so many ranks cannot do: they would find it out after minutes."""
    from seatrial.checks import training

    if training.CHECK.name not in job.plan.checks:
        return
    params = job.plan.params(training.CHECK.name, training.Params)
    try:
        training.recipe_for(params, job.world_size)
    except RequestError as error:
        key = "global_batch_size" if params.batch_size is None else "batch_size"
        origin = job.plan.settings[training.CHECK.name][key].origin
        raise RequestError(f"{error} {job.world_size} ranks, {key} {getattr(params, key)} (from {origin}).") from error


def _plan(source: str, options: dict[str, Any]) -> Any:
    from seatrial.checks import registry
    from seatrial.plan.model import Setting
    from seatrial.plan.reader import read_plan

    checks = {name: registry.load(name) for name in registry.names()}
    overrides = [
        ("training", name, options[name], f"--{name.replace('_', '-')}")
        for name in ("workload", "model", "epochs", "batch_size")
        if options[name] is not None
    ]
    resolved = read_plan(
        source,
        schemas={name: check.params for name, check in checks.items()},
        scopes={name: check.scope for name, check in checks.items()},
        overrides=overrides,
        only=options["only"],
        skip=options["skip"],
        validation_only=options["validation_only"],
    )
    deadline_s = options["deadline"]
    if deadline_s is None:
        return resolved
    if not (math.isfinite(deadline_s) and deadline_s > 0):
        raise RequestError(f"--deadline {deadline_s}: a positive number of seconds is needed.")
    return dataclasses.replace(resolved, deadline_s=Setting(value=deadline_s, origin="--deadline"))


def _dry_run(job: Any, out: Path, meeting: Any) -> list[str]:
    from seatrial.launch.targets import TARGETS

    control = meeting.control if meeting else "127.0.0.1:PORT"
    commands = TARGETS[job.target](job, control=control, token="TOKEN", keep=str(out / "RUN-ID"))
    lines = [
        ["env", *(f"{name}={value}" for name, value in command.env.items()), *command.argv] for command in commands
    ]
    return [" ".join(map(_quoted, line)) for line in lines]


def _quoted(word: str) -> str:
    """The word for a shell; control characters as their escapes, so that a terminal shows what is meant."""
    if word.isprintable():
        return shlex.quote(word)
    plain = (
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\x{byte:02x}" for byte in os.fsencode(word)
    )
    return f"$'{''.join(plain)}'"
