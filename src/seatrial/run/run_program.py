"""Run a program on a target: what ``train`` and ``launch`` share, from the job to the exit code."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.errors import InternalError, RequestError, SeatrialError
from seatrial.targets.command import shell_line
from seatrial.targets.job import ProgramJob
from seatrial.targets.option import Option, is_given
from seatrial.targets.registry import TARGETS, dry_run_lines
from seatrial.util.streams import print_status, print_status_lines
from seatrial.util.text import format_seconds, printable

if TYPE_CHECKING:
    from seatrial.run.external_launcher import Rendezvous

_EXIT_INTERRUPTED = 130
_ARGUMENT_NAMES = {"total_epochs": "TOTAL_EPOCHS", "save_after": "SAVE_EVERY"}


def refuse_numbers(values: Mapping[str, Any], minimums: Mapping[str, int]) -> None:
    """Raise RequestError for a value below its minimum, and for a ``--grace`` that is no duration.

    ``minimums`` gives the lowest valid value by the option's name, in addition to those of both commands.
    """
    for name, minimum in {"max_restarts": 0, **minimums}.items():
        if values[name] is not None and values[name] < minimum:
            raise RequestError(f"{flag(name)} {values[name]}: expected {minimum} or more.")
    if not 0 <= values["grace"] < 1e7:
        raise RequestError(f"--grace {values['grace']:g}: expected a number of seconds, 0 or more.")


def flag(name: str) -> str:
    """Return the option of that name as it is typed."""
    return _ARGUMENT_NAMES.get(name) or f"--{name.replace('_', '-')}"


def refuse_decided(
    values: Mapping[str, Any], options: Sequence[Option], names: Iterable[str], origin: str, why: Mapping[str, str]
) -> None:
    """Raise RequestError for the first named option that was given although it is decided already.

    Args:
        values: value of each option by its name.
        options: the options of the command.
        names: the names of the options that are decided.
        origin: in which case, such as "under torchrun".
        why: the reason by the option's name, and under "" for all others.
    """
    options_by_name = {option.name: option for option in options}
    for name in names:
        if is_given(options_by_name[name], values[name]):
            given = flag(name) if values[name] is True else f"{flag(name)} {values[name]}"
            raise RequestError(f"{given} {origin}: {why.get(name) or why['']}.")


def process_count(number: int) -> str:
    """Return the number with its noun: "1 process", "8 processes"."""
    return "1 process" if number == 1 else f"{number} processes"


def dry_run(job: ProgramJob, out: Path) -> list[str]:
    """Return the lines of ``--dry-run``: the commands that start the agents, and the command of a rank."""
    commands = dry_run_lines(job, out)
    if TARGETS[job.target].conducts_remotely:
        return commands
    started = f"the one process of each of {job.nodes} nodes" if job.per_node else f"each of the {job.world_size} ranks"
    return [
        *commands,
        f"# {started}, started by its agent, in {shlex.quote(job.cwd)} where that exists, with RANK etc. set:",
        shell_line(job.env, (*job.argv, *job.args)),
    ]


def run_program(job: ProgramJob, out: Path, *, debug: bool, rendezvous: Rendezvous | None = None) -> int:
    """Conduct the program and return the exit code. Raises RequestError for what ranks found wrong with the request.

    Args:
        job: the program, without the name of its run.
        out: folder for the files of the run.
        debug: print tracebacks.
        rendezvous: given where a launcher has started the other agents.
    """
    # Imported here: --dry-run needs neither the conductor nor the display.
    from seatrial.report.program_display import ProgramDisplay
    from seatrial.run.conduct import catch_questions, catch_signals, conduct_program
    from seatrial.run.external_launcher import warn_unprotected
    from seatrial.run.record import Recorder, new_folder

    if rendezvous is not None:
        warn_unprotected(rendezvous)
    run_id, folder = new_folder(out)
    job = replace(job, run=run_id)
    recorder = Recorder(run_id, folder)
    # In a followed pod the lines of the recorder are all of standard output; the controller shows what ranks print.
    is_followed = "SEATRIAL_LIVE" in os.environ
    # Standard output is reserved for the result of a training, and for the output of a script.
    display = ProgramDisplay(
        None if is_followed else sys.stderr if job.watched else sys.stdout,
        sys.stderr,
        prefix=job.output == "all",
        kept=is_followed or "KUBERNETES_SERVICE_HOST" not in os.environ,
        grace_s=job.stop_grace_s,
    )
    problem: Exception | None = None
    held: dict[int, str] = {}

    def on_event(event: dict[str, Any]) -> None:
        recorder(event)
        display.on_event(event)

    def on_message(message: dict[str, Any]) -> None:
        recorder.send(message)
        is_output = message.get("kind") == "output"
        if not is_output or job.output == "all" or (job.output == "rank0" and message["rank"] == 0):
            display.on_message(message)

    with catch_signals() as signals, catch_questions() as questions:
        try:
            conduct_program(job, folder, on_event, on_message, signals, rendezvous, questions)
        except Exception as error:
            problem = error
            if debug:
                print_status_lines(traceback.format_exc())
        finally:
            recorder.close()
            held = display.close()
    if problem is not None:
        raise (
            problem
            if isinstance(problem, SeatrialError)
            else InternalError(
                f"a bug in seatrial ended the job ({type(problem).__name__}: {problem});"
                " run it again with --debug for the traceback, and please report it."
            )
        )
    # Lines of several ranks are mixed: there the last ones of one rank are shown again.
    seen = {rank: line for rank, line in display.last_lines.items() if rank in held or job.output == "rank0"}
    exit_code = _exit_code(recorder.events, folder, held, seen)
    if exit_code == 0 and not job.watched and not is_followed:
        print_status(f"seatrial: {_good_end(recorder.events, job)}; all output is in {folder}.")
    return exit_code


def _good_end(events: list[dict[str, Any]], job: ProgramJob) -> str:
    """Return in words that all processes exited with 0, and how long that took since they were started."""
    started = next(event for event in events if event.get("kind") == "generation")
    outcome = next(event for event in reversed(events) if event.get("kind") == "outcome")
    count = job.nodes if job.per_node else job.world_size
    duration = format_seconds(outcome["t"] - started["t"])
    restarts = f" (restarts: {outcome['restarts']})" if outcome["restarts"] else ""
    return f"{process_count(count)} exited with 0 after {duration}{restarts}"


def _exit_code(events: list[dict[str, Any]], folder: Path, held: Mapping[int, str], seen: Mapping[int, str]) -> int:
    """Print the result or the reason of the end, and return the exit code. Raises SeatrialError without an outcome.

    Args:
        events: of the run.
        folder: of the run.
        held: rank -> output that was held back, so that the first failure comes first.
        seen: rank -> the last line of its output, where that is on the terminal already or is held.
    """
    outcome = next((event for event in reversed(events) if event.get("kind") == "outcome"), None)
    suspicion = {} if outcome is None else _suspicion(events, outcome)
    failed = suspicion.get("rank")
    followed = {rank: text for rank, text in held.items() if failed not in (None, rank)}
    _print_output(text for rank, text in held.items() if rank not in followed)
    if outcome is None:
        raise SeatrialError(f"the job ended without an outcome; its events are in {folder}.")
    generation = outcome["gen"]
    results = [event for event in events if event.get("kind") == "result" and event.get("gen") == generation]
    # Also what the conductor refused is recorded.
    sound = (event["lines"] for event in results if event.get("rank") == 0 and isinstance(event.get("lines"), list))
    lines: list[str] = next(sound, [])
    if lines and outcome["how"] in ("ended", "interrupted"):
        restarts = outcome["restarts"]
        if restarts:
            lines = [*lines, f"restarts: {restarts}"]
        # The exit code stays that of the training, whether standard output can be written or not.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print("\n".join(printable(str(line)) for line in lines), flush=True)
    if outcome["how"] == "refused":
        raise RequestError(printable(outcome["text"]))
    if outcome["how"] == "absent":
        raise SeatrialError(f"{printable(outcome['text'])}; its output is in {folder}.")
    if outcome["how"] == "failed":
        for note in outcome.get("notes", []):
            print_status(f"seatrial: {printable(note)}.")
        last_lines = [line for line in outcome["last_lines"] if line.strip()]
        is_seen = bool(last_lines) and failed is not None and seen.get(failed, "").endswith(last_lines[-1])
        if last_lines and not is_seen:
            print_status(f"seatrial: the last output of rank {failed}:")
        for line in [] if is_seen else outcome["last_lines"]:
            # Not broken between words: the marks under a line of code would no longer stand where they belong.
            print_status_lines(f"  {printable(line)}")
        for rank, text in followed.items():
            how = "gave up waiting" if suspicion.get("how") == "late" else _how_followed(events, rank, generation)
            print_status(f"seatrial: the last output of rank {rank}, which {how}:")
            _print_output([text])
        print_status(f"Error: {printable(outcome['text']).rstrip('.')}; {_kept(events)} is in {folder}.")
        return 1
    if outcome["how"] == "interrupted":
        print_status(f"seatrial: {printable(outcome['text'])}; {_kept(events)} is in {folder}.")
        return _EXIT_INTERRUPTED
    code = int(outcome["code"])
    return code if code in (0, 2, _EXIT_INTERRUPTED) else 1


def _how_followed(events: list[dict[str, Any]], rank: int, generation: int) -> str:
    """Return why the traceback of a rank is not that of the first failure."""
    ends = (event for event in events if event.get("kind") == "exit" and event.get("gen") == generation)
    has_exited = any(event.get("rank") == rank and not event.get("ours") for event in ends)
    return "did not fail first" if has_exited else "printed a traceback, but had not exited before the first failure"


def _suspicion(events: list[dict[str, Any]], outcome: dict[str, Any]) -> dict[str, Any]:
    """Return the first suspicion of a program that failed, about the rank that the outcome names; empty without one."""
    if outcome["how"] != "failed":
        return {}
    troubles = (event for event in reversed(events) if event.get("kind") == "trouble")
    seen: list[dict[str, Any]] = next((event["seen"] for event in troubles if event.get("gen") == outcome["gen"]), [])
    return seen[0] if seen else {}


def _print_output(texts: Iterable[str]) -> None:
    # The exit code stays the same, whether standard output can be written or not.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        for text in texts:
            print(text, flush=True)


def _kept(events: list[dict[str, Any]]) -> str:
    """Return how much of the output of the ranks the folder has, in words."""
    from seatrial.run.conduct import LOGS

    return "what arrived of the output" if any(event.get("src") == LOGS for event in events) else "all output"
