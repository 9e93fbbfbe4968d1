"""The end of every command: each failure becomes one sentence and an exit code."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

from seatrial.cli.command import Command, num_own_words, options_of, with_dashes
from seatrial.environment.home import give_home
from seatrial.environment.self_location import exit_on_sigterm
from seatrial.errors import SeatrialError
from seatrial.targets.hidden_values import HIDDEN, is_secret
from seatrial.util import streams
from seatrial.util.text import printable


def split_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """Return the arguments without ``--debug``, with dashes in options, and whether ``--debug`` was among them.

    It may be anywhere, because users add it at the end of the line that failed. Arguments of a script are kept.
    """
    count = num_own_words(arguments)
    own = [with_dashes(argument) for argument in arguments[:count] if argument != "--debug"]
    return own + arguments[count:], len(own) < count


def run_and_exit(command: Callable[[], Any], *, debug: bool) -> NoReturn:
    """Run the command and exit with its code, or with the code of the exception that it raised.

    Exit code 1 means that a cluster failed the trial, so no error of seatrial ends with it.

    Args:
        command: returns the exit code.
        debug: print the traceback of an error instead of one sentence.
    """
    streams.reopen_missing()
    streams.escape_output()
    give_home()
    exit_on_sigterm()
    code: Any
    try:
        with _ended_in_order():
            code = command()
    except KeyboardInterrupt:
        streams.print_status("seatrial: interrupted.")
        code = 130
    except SeatrialError as error:
        # The message may quote anything that was typed or read: print one line without control characters.
        if debug:
            streams.print_status_lines(_traceback())
        else:
            streams.print_status(f"Error: {printable(str(error))}")
        code = error.exit_code
    except SystemExit as error:
        # argparse ends this way after its help, and click when the reader of its output has gone away.
        code = SeatrialError.exit_code if error.code else 0
    except BrokenPipeError:
        code = SeatrialError.exit_code
    except Exception as error:
        if debug:
            streams.print_status_lines(_traceback())
        else:
            from seatrial.protocol.own_errors import lack_words

            words = lack_words(error) or (
                f"a bug in seatrial ({type(error).__name__}: {printable(str(error))});"
                " run it again with --debug for the traceback, and please report it"
            )
            streams.print_status(f"Error: {words}.")
        code = SeatrialError.exit_code
    streams.flush_or_drop()
    sys.exit(code if isinstance(code, int) else 0)


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the command as Ctrl-C does, so that it ends what it has started: each ssh of a
    survey, for instance, which a host could keep for ever, and fill the disk through it."""
    # nohup ignores SIGHUP, and that stays; process 1 has a handler already.
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _traceback() -> str:
    import traceback

    return traceback.format_exc()


_BEFORE_COMMANDS = ("--debug", "--help", "--version")
_OF_PLAN = ("--level", "--plan", "--config")
_USUAL_ELSEWHERE = {
    **dict.fromkeys(("--timeout", "--time-limit", "--max-time"), "--deadline"),
    **dict.fromkeys(("--gpus", "--num-gpus", "--world-size", "--ntasks", "--np", "-n", "-np"), "--nproc-per-node"),
    **dict.fromkeys(("--num-nodes", "-N"), "--nodes"),
    **dict.fromkeys(("--checks", "--include", "--tests"), "--only"),
    **dict.fromkeys(("--exclude", "--without"), "--skip"),
    **dict.fromkeys(("--ddp", "--fsdp", "--parallel"), "--strategy"),
    **dict.fromkeys(("--gpu", "--cpu", "--cuda"), "--device"),
}
"""Options of other tools -> ours."""
_OF_RENDEZVOUS = ("--rdzv", "--standalone", "--master-", "--node-rank", "--local-addr")
"""Options of torchrun about where its processes meet."""


def no_such_command(word: str, names: Collection[str]) -> str:
    """Return the message about an unknown command, with the nearest known one."""
    import difflib

    word = without_secret(word)
    if word.startswith("-"):
        if near := difflib.get_close_matches(word, _BEFORE_COMMANDS, n=1, cutoff=0.75):
            return f"no such option {word} (did you mean {near[0]}?)."
        return f"no such option {word} here: the options of a command stand after it. Commands: {', '.join(names)}."
    from seatrial.plan.plan_file import LEVELS

    group, _, last = word.rpartition(" ")
    if last in LEVELS or last.endswith((".toml", ".json")):
        meant = f"plan show {last}" if group or "show" in names else f"run {last}"
        return f"no such command {word!r}. Did you mean '{meant}'?"
    if last.endswith((".py", ".sh")):
        return f"no such command {word!r}. Did you mean 'launch {last}'?"
    near = [f"--{word}"] if word in ("help", "version") else difflib.get_close_matches(word, names, n=1)
    return f"no such command {word!r}." + (f" Did you mean {near[0]!r}?" if near else f" Commands: {', '.join(names)}.")


def without_secret(word: str) -> str:
    """Return a word that was typed where none belongs; of ``NAME=VALUE`` the name, and of a secret nothing."""
    name = word.partition("=")[0]
    return HIDDEN if is_secret("", name) else name


def without_value(flag: str, command: Command) -> str:
    """Return the message about an option at the end of a line, with the values that it takes."""
    option = next(option for option in options_of(command) if flag in option.flags)
    if isinstance(option.type, tuple):
        values = f"one of {', '.join(option.type)}"
    elif option.name in ("only", "skip"):
        from seatrial.checks import registry

        values = f"checks with commas between: {', '.join(registry.names())}"
    elif option.name == "target":
        from seatrial.targets.registry import TARGETS

        values = f"one of {', '.join(TARGETS)}"
    else:
        values = option.metavar or option.name.upper()
    return f"{flag}: the value is missing ({values})"


def no_such_option(word: str, command: Command) -> str:
    """Return the message about an unknown option: with one that begins like it, else the nearest, else none."""
    import difflib

    word = without_secret(word)
    if word.startswith(_OF_RENDEZVOUS):
        return f"no such option {word}: seatrial finds the addresses of its processes itself; leave it out"
    flags = [flag for option in options_of(command) for flag in option.flags if flag.startswith("--")]
    longer = [flag for flag in flags if len(word) > len("--x") and flag.startswith(word)]
    if word in _OF_PLAN:
        return f"no such option {word}: a plan or a level stands without one: seatrial run quick"
    usual = [flag for flag in (_USUAL_ELSEWHERE.get(word),) if flag in flags]
    near = usual or longer or difflib.get_close_matches(word, flags, n=1, cutoff=0.75)
    return f"no such option {word}" + (f" (did you mean {near[0]}?)" if near else "")
