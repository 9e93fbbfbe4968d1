"""``seatrial run``: the acceptance trial, from a request to its verdict."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from seatrial.cli.command import Command
from seatrial.targets.option import Option

if TYPE_CHECKING:
    from pathlib import Path

    from seatrial.environment.identity import Identity
    from seatrial.run.external_launcher import Rendezvous
    from seatrial.targets.job import Job


def options() -> Mapping[str, tuple[Option, ...]]:
    """Return the options by the heading under which help shows them."""
    from seatrial.request.common_options import TARGET_OPTIONS, UNPROTECTED, options_of_targets
    from seatrial.request.trial_options import RUN

    return {"Options": RUN, "Where it runs": (*TARGET_OPTIONS, UNPROTECTED), **options_of_targets()}


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Run the trial that the options ask for, as controller or as one process of many; return the exit code."""
    from seatrial.environment.identity import identify
    from seatrial.request.trial_request import job_of, request_of
    from seatrial.run import external_launcher
    from seatrial.run.handed_files import read_evidence
    from seatrial.targets.registry import print_dry_run
    from seatrial.util.job_signals import ignore_those_for_ranks
    from seatrial.util.streams import print_status

    ignore_those_for_ranks()
    request = request_of(options)
    identity = identify(os.environ)
    if identity.note:
        print_status(f"seatrial: {identity.note}")
    rendezvous = None
    if external_launcher.is_one_of_many(identity):
        # A dry run connects to nobody.
        unprotected = options["unprotected"] or options["dry_run"]
        rendezvous = external_launcher.find_rendezvous(identity, os.environ, unprotected=unprotected)
    # All processes of a job read the same request, so a wrong one ends all of them.
    job, location = job_of(request, identity, rendezvous)
    handed = read_evidence(request.evidence if rendezvous is None or rendezvous.number == 0 else ())
    if request.target_request.dry_run:
        print_dry_run(_dry_run(job, request.out, identity, rendezvous), job)
        return 0
    if rendezvous is not None:
        os.environ.update(external_launcher.agent_environ(identity))
        if rendezvous.number > 0:
            external_launcher.become_agent(job, rendezvous)
    # Imported here: --dry-run does not need it, and must be quick.
    from seatrial.report.show import show
    from seatrial.run.run_trial import run_trial

    return run_trial(
        job,
        request.out,
        rendezvous,
        handed,
        location=location,
        show=partial(show, as_json=request.as_json, verbose=request.verbose, quiet=request.quiet),
        quiet=request.quiet,
        debug=debug,
    )


def _dry_run(job: Job, out: Path, identity: Identity, rendezvous: Rendezvous | None) -> list[str]:
    from seatrial.run import external_launcher
    from seatrial.targets.command import DRY_RUN_TOKEN, shell_line
    from seatrial.targets.registry import dry_run_lines

    if rendezvous is None:
        return dry_run_lines(job, out)
    keep = str(out / "RUN-ID") if rendezvous.number == 0 else ""
    command = external_launcher.agent_command(
        job, rendezvous.number, control=rendezvous.control, token=DRY_RUN_TOKEN, keep=keep
    )
    return [shell_line({**external_launcher.agent_environ(identity), **command.env}, command.argv)]


COMMAND = Command(
    name="run",
    order=0,
    summary="the acceptance trial: a verdict and a report",
    text="""Run the acceptance trial of PLAN and answer PASS or FAIL.

PLAN is a file (TOML, or JSON named *.json) or a level: smoke (seconds), quick (under a minute; the default), standard
(minutes), acceptance (standard, and limits for all speeds), burn-in (hours). Exit code: 0 PASS, 1 FAIL,
2 invalid options, 3 INCONCLUSIVE, 130 interrupted.
""",
    options=options,
    run=run,
    sources_of="run",
)
