"""Run a program on a target: what ``train`` and ``launch`` share, from the job to the exit code."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.errors import InternalError, RequestError, SeatrialError
from seatrial.protocol.own_errors import lack_words
from seatrial.protocol.wire import PREFIX
from seatrial.targets.command import shell_line, shell_quote
from seatrial.targets.job import ProgramJob
from seatrial.targets.option import Option, is_given
from seatrial.targets.registry import TARGETS, dry_run_lines
from seatrial.util.streams import print_status, print_status_lines, print_text
from seatrial.util.text import printable

if TYPE_CHECKING:
    from seatrial.run.external_launcher import Rendezvous

_EXIT_INTERRUPTED = 130
_OUR_MARK = re.compile(f"^(?={re.escape(PREFIX.decode())})", re.MULTILINE)
"""Where a line of a rank begins as our messages do. With a space before it the controller of pods takes it for text."""
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
        f"# {started}, started by its agent, in {shell_quote(job.cwd)} where that exists, with RANK etc. set:",
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
    from seatrial.report.program_ending import ending, lines, print_ending
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
    if isinstance(problem, SeatrialError):
        raise problem
    if problem is not None:
        if words := lack_words(problem):
            raise SeatrialError(words)
        raise InternalError(
            f"a bug in seatrial ended the job ({type(problem).__name__}: {problem});"
            " run it again with --debug for the traceback, and please report it."
        )
    # Lines of several ranks are mixed: there the last ones of one rank are shown again.
    seen = {rank: line for rank, line in display.last_lines.items() if rank in held or job.output == "rank0"}
    exit_code = _exit_code(recorder.events, folder, held, seen)
    end = ending(recorder.events, str(folder))
    if end is not None and exit_code == 0 and not job.watched and not is_followed:
        print_ending([*lines(end)][-1:])
    return exit_code


def _exit_code(events: list[dict[str, Any]], folder: Path, held: Mapping[int, str], seen: Mapping[int, str]) -> int:
    """Print the result or the reason of the end, and return the exit code. Raises SeatrialError without an outcome.

    Args:
        events: of the run.
        folder: of the run.
        held: rank -> output that was held back, so that the first failure comes first.
        seen: rank -> the last line of its output, where that is on the terminal already or is held.
    """
    from seatrial.report.program_ending import ending, lines, output_heading, print_ending

    end = ending(events, str(folder))
    failed = None if end is None else end.rank
    followed = {rank: text for rank, text in held.items() if failed not in (None, rank)}
    _print_output(text for rank, text in held.items() if rank not in followed)
    if end is None:
        raise SeatrialError(f"the job ended without an outcome; its events are in {folder}.")
    _print_output(end.result)
    if end.how == "refused":
        raise RequestError(end.sentence)
    if end.how == "absent":
        raise SeatrialError(end.sentence)
    if end.how == "ended":
        return end.code if end.code in (0, 2, _EXIT_INTERRUPTED) else 1
    said = [line for line in end.last_lines if line.strip()]
    last_seen = "" if failed is None else printable(seen.get(failed, ""))
    is_seen = bool(said) and last_seen.endswith(said[-1])
    *before, last = lines(replace(end, result=(), last_lines=() if is_seen else end.last_lines))
    print_ending(before)
    for rank, text in followed.items():
        how = "gave up waiting" if end.has_given_up else _how_followed(events, rank, end.generation)
        print_status(output_heading(rank, f", which {how}"))
        _print_output([text])
    print_ending([last])
    return 1 if end.is_error else _EXIT_INTERRUPTED


def _how_followed(events: list[dict[str, Any]], rank: int, generation: int) -> str:
    """Return why the traceback of a rank is not that of the first failure."""
    ends = (event for event in events if event.get("kind") == "exit" and event.get("gen") == generation)
    has_exited = any(event.get("rank") == rank and not event.get("ours") for event in ends)
    return "did not fail first" if has_exited else "printed a traceback, but had not exited before the first failure"


def _print_output(texts: Iterable[str]) -> None:
    # The exit code stays the same, whether standard output can be written or not.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        for text in texts:
            print_text(sys.stdout, f"{_OUR_MARK.sub(' ', text)}\n")
            sys.stdout.flush()
