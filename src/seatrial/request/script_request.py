"""From the options of ``seatrial launch`` to a job, or to the rank that this process becomes under a launcher."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from seatrial.environment.identity import Identity
from seatrial.environment.placeholders import fill_placeholders
from seatrial.environment.script_variables import CARRIED
from seatrial.errors import RequestError
from seatrial.files import exists, open_to_read
from seatrial.probe.cpu import usable_cores
from seatrial.probe.torch_install import interpreter
from seatrial.request.common_options import TARGET_OPTIONS
from seatrial.request.program_options import PROGRAM
from seatrial.request.script_options import LAUNCH
from seatrial.request.target_options import placement_fields, sends_in_clear, target_request_of
from seatrial.run import external_launcher
from seatrial.run.external_launcher import Rendezvous
from seatrial.run.run_program import process_count, refuse_decided, refuse_numbers
from seatrial.start import absolute_entries
from seatrial.targets.command import shell_line
from seatrial.targets.hidden_values import refuse_secret_arguments
from seatrial.targets.job import ProgramJob
from seatrial.targets.option import to_argv
from seatrial.targets.registry import TARGETS
from seatrial.targets.target import TargetRequest
from seatrial.util.streams import print_status

_HANDS_ON_PATHS = ("mpirun", "slurm")
"""Targets whose agents get the PYTHONPATH of the controller, without what is relative."""
_HEAD_BYTES = 200
_ONE_AGENT_PER_RANK = ("mpirun",)
"""Targets whose agents have one rank each, so that the variables of MPI in a rank are correct."""


def job_of(
    options: Mapping[str, Any],
    target_request: TargetRequest,
    identity: Identity,
    rendezvous: Rendezvous | None,
    environ: Mapping[str, str],
) -> tuple[ProgramJob, str]:
    """Return the job, without a run name yet, and a phrase that says where it runs ("on this machine").

    Raises RequestError for a request that cannot be carried out here.
    """
    if options["per_node"] and target_request.target in _ONE_AGENT_PER_RANK:
        raise RequestError(
            f"--per-node with --on {target_request.target}: mpirun starts as many processes as its hosts have slots;"
            " give each host one slot, and pass the number of processes to the script."
        )
    target = TARGETS[target_request.target]
    if rendezvous is None and sends_in_clear(target):
        refuse_secret_arguments(options["script"][1:], f"with --on {target.name}")
    placement = (
        target.resolve(target_request)
        if rendezvous is None
        else external_launcher.placement(target_request, identity, rendezvous)
    )
    if rendezvous is not None and external_launcher.sends_in_clear(identity, rendezvous):
        refuse_secret_arguments(options["script"][1:], f"under {identity.launcher}")
    fields = placement_fields(target_request, placement)
    if target_request.target == "local":
        # A variable that the user has set for the script wins over the default of seatrial.
        kept = [name for name in fields["env"] if name in target_request.env or name not in environ]
        fields["env"] = {name: fields["env"][name] for name in kept}
    if target.name in _HANDS_ON_PATHS and rendezvous is None and "PYTHONPATH" in absolute_entries(environ):
        # Ranks start in a folder in which nobody else can have put modules.
        fields["env"] = {"PYTHONPATH": environ["PYTHONPATH"], **fields["env"]}
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
        lacks_script_here=lacks_script_here(options),
        **fields,
    )
    return job, placement.words


def rank_of(
    options: Mapping[str, Any], target_request: TargetRequest, identity: Identity, environ: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that the environment of a launcher's rank lacks, and the command that it becomes.

    Raises RequestError for options that the launcher has decided, and for values that it does not provide.
    """
    origin = f"under {identity.launcher}"
    external_launcher.refuse_target_options(target_request, origin)
    wrong = ("nproc_per_node", "device", "per_node", "max_restarts", "output", "grace", "out")
    why = {"": f"{identity.launcher} has started this process already, and decides that; leave it out"}
    refuse_decided(options, (*LAUNCH, *PROGRAM, *TARGET_OPTIONS), wrong, origin, why)
    env = {**external_launcher.rank_environ(identity, environ), **target_request.env}
    local_world_size = identity.local_world_size
    on_one_node = local_world_size == identity.world_size
    defaults = {
        "GROUP_RANK": 0 if on_one_node else identity.node_rank,
        "GROUP_WORLD_SIZE": 1 if on_one_node else identity.nnodes,
        "OMP_NUM_THREADS": max(1, usable_cores() // (local_world_size or 1)),
        "PYTHONUNBUFFERED": 1,
    }
    known = {**environ, **env}
    env |= {name: str(value) for name, value in defaults.items() if value is not None and name not in known}
    try:
        args = fill_placeholders(_args(options), {**environ, **env}, 0)
    except KeyError as error:
        raise RequestError(
            f"{identity.launcher} does not set the {error.args[0]} of this process, which an argument of the script"
            " needs; set it in the environment, or leave it out."
        ) from error
    return env, (*_argv(options, interpreter(target_request.python or sys.executable)), *args)


def become_rank(options: Mapping[str, Any], target_request: TargetRequest, identity: Identity) -> int:
    """Replace this process by the script, or print the command for ``--dry-run`` and return the exit code."""
    env, argv = rank_of(options, target_request, identity, os.environ)
    if target_request.dry_run:
        print(shell_line(env, argv), flush=True)
        return 0
    if identity.rank == 0 and identity.world_size is not None:
        started = f"{process_count(identity.world_size)} as {identity.launcher} started them"
        print_status(f"seatrial launch {options['script'][0]}: {started}")
    sys.stdout.flush()
    environ = {**os.environ, **env}
    # Not in the working folder, where anybody may have put a program of this name.
    folders = (environ | absolute_entries(environ)).get("PATH")
    program = argv[0] if os.path.dirname(argv[0]) else shutil.which(argv[0], path=folders)
    try:
        if program is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        os.execve(program, argv, environ)
    except OSError as error:
        option = "" if options["no_python"] else "--python "
        raise RequestError(f"{option}{argv[0]}: cannot be started ({error.strerror}).") from error


def with_carried_script(options: Mapping[str, Any], environ: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the options with the script that came with this pod, unless the path typed is absolute and leads to one.

    A relative path is one of the user's machine, whatever lies where the pods start: a claim may be mounted below.
    """
    script = options["script"]
    if CARRIED not in environ or not script or (script[0].startswith("/") and exists(script[0])):
        return options
    return {**options, "script": [environ[CARRIED], *script[1:]]}


def script_target_request(options: Mapping[str, Any]) -> TargetRequest:
    """Return the target request of ``seatrial launch``. Raises RequestError for options that are wrong everywhere."""
    if not options["script"]:
        raise RequestError("name a script: seatrial launch SCRIPT [ARGS]...")
    script = options["script"][0]
    refuse_numbers(options, {})
    if options["pass_local_rank"] and options["per_node"]:
        raise RequestError(
            "--pass-local-rank with --per-node: the only process of a node has no local rank; use one of the two."
        )
    typed = ("launch", *to_argv((*LAUNCH, *PROGRAM), options))
    target_request = target_request_of({**options, "backend": "auto"}, typed)
    if options["module"] and options["no_python"]:
        raise RequestError("-m with --no-python: a module needs Python; use one of the two.")
    if options["no_python"]:
        _refuse_program(script, target_request)
    elif not options["module"]:
        _refuse_script(script, target_request)
    return target_request


def lacks_script_here(options: Mapping[str, Any]) -> bool:
    """Return whether the options name a script of Python that is not on this machine; the nodes may have it."""
    is_script = not options["module"] and not options["no_python"]
    return is_script and not exists(options["script"][0])


def _refuse_program(program: str, target_request: TargetRequest) -> None:
    # On another target it may exist on the nodes only.
    if target_request.target != "local" or shutil.which(program) is not None:
        return
    if exists(program):
        raise RequestError(f"{program}: not executable; run chmod +x on it, or leave --no-python out for Python.")
    raise RequestError(f"{program}: no such program; give its path (./NAME), or the name of a program on PATH.")


def _refuse_script(script: str, target_request: TargetRequest) -> None:
    try:
        with open_to_read(script) as file:
            start = file.read(_HEAD_BYTES)
    except OSError as error:
        if target_request.target == "local" and not exists(script):
            # A pod that a target started runs this command line again.
            place = (
                "it is not in the image of this pod; put it into the image or on a volume that the pods mount"
                if "KUBERNETES_SERVICE_HOST" in os.environ
                else "give its path relative to this folder"
                + ("; to start the program of this name, add --no-python" if shutil.which(script) else "")
            )
            raise RequestError(f"{script}: no such script; {place}.") from error
        return
    line = start.partition(b"\n")[0]
    if start.startswith(b"\x7fELF"):
        kind = "an executable"
    elif line.startswith(b"#!") and b"python" not in line and not script.endswith(".py"):
        kind = f"a script of {line[2:60].decode(errors='replace').strip()}"
    else:
        return
    raise RequestError(f"{script} is {kind}, not of Python; add --no-python to start it as it is.")


def _argv(options: Mapping[str, Any], python: str) -> tuple[str, ...]:
    script = options["script"][0]
    if options["no_python"]:
        return (script,)
    # Python would take a name with a dash in front for an option.
    dash = "./" if script.startswith("-") and not options["module"] else ""
    return (python, *(("-m",) if options["module"] else ()), dash + script)


def _args(options: Mapping[str, Any]) -> tuple[str, ...]:
    local_rank = ("--local_rank={local_rank}",) if options["pass_local_rank"] else ()
    return (*local_rank, *options["script"][1:])
