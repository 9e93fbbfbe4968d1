"""``seatrial launch``: a user's script in every process of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from seatrial.cli.command import Command
from seatrial.targets.option import Option


def options() -> Mapping[str, tuple[Option, ...]]:
    """Return the options by the heading under which help shows them."""
    from seatrial.request.common_options import TARGET_OPTIONS, UNPROTECTED, options_of_targets
    from seatrial.request.program_options import PROGRAM
    from seatrial.request.script_options import LAUNCH

    # A script chooses its backend itself.
    target_options = tuple(option for option in TARGET_OPTIONS if option.name != "backend")
    return {"Where it runs": (*target_options, UNPROTECTED), "Options": (*PROGRAM, *LAUNCH), **options_of_targets()}


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Launch the script that the options name; return the exit code, unless this process becomes a rank or agent."""
    from seatrial.environment.identity import identify
    from seatrial.environment.script_variables import CONDUCT
    from seatrial.request.script_options import misplaced
    from seatrial.request.script_request import become_rank, job_of, script_target_request, with_carried_script
    from seatrial.run import external_launcher
    from seatrial.run.run_program import dry_run, process_count, run_program
    from seatrial.targets.registry import print_dry_run
    from seatrial.util.streams import print_status

    identity = identify(os.environ)
    if identity.note:
        print_status(f"seatrial: {identity.note}")
    if not identity.rank and (note := misplaced(options["script"])):
        print_status(f"seatrial: {note}.")
    options = with_carried_script(options, os.environ)
    target_request = script_target_request(options)
    conducts = CONDUCT in os.environ
    if external_launcher.is_rank(identity) and not conducts:
        return become_rank(options, target_request, identity)
    rendezvous = None
    if external_launcher.is_one_of_many(identity) or conducts:
        # A dry run connects to nobody.
        unprotected = options["unprotected"] or options["dry_run"]
        rendezvous = external_launcher.find_rendezvous(identity, os.environ, unprotected=unprotected)
    job, location = job_of(options, target_request, identity, rendezvous, os.environ)
    if target_request.dry_run:
        print_dry_run(dry_run(job, options["out"]), job)
        return 0
    if conducts:
        os.environ.update(external_launcher.agent_environ(identity) | external_launcher.group_environ(identity))
    if rendezvous is not None and rendezvous.number > 0:
        external_launcher.become_agent(job, rendezvous)
    if job.lacks_script_here:
        print_status(f"seatrial: {options['script'][0]} is not on this machine; the nodes start what they have there.")
    started = f"1 process on each of {job.nodes} nodes" if job.per_node else process_count(job.world_size)
    print_status(f"seatrial launch {options['script'][0]}: {started} {location} ({job.device}), until all have exited")
    return run_program(job, options["out"], debug=debug, rendezvous=rendezvous)


COMMAND = Command(
    name="launch",
    order=2,
    summary="any PyTorch script, unmodified",
    text="""Start SCRIPT with ARGS in every process of the job, with RANK, LOCAL_RANK, WORLD_SIZE etc. set.

In ARGS, {rank}, {local_rank}, {node_rank}, {nnodes}, {nproc_per_node}, {master_addr} and {master_port} are replaced;
{{rank}} becomes {rank}. Under torchrun, mpirun or srun this process becomes SCRIPT. Exit code: 0 all processes
succeeded, 1 a process failed, 2 invalid options, 3 not started, 130 interrupted.
""",
    options=options,
    run=run,
    sources_of="launch",
    passes_rest=True,
)
