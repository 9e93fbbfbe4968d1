"""The lines around the tracebacks in the output of a rank: its agent sends them, and the conductor reads them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TRACEBACK = "Traceback (most recent call last):"
LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
ASIDE = (
    "Exception ignored ",
    "Exception in thread ",
    "Exception in callback ",
    "Exception occurred during processing of request ",
    "Unhandled exception in thread started by ",
    "Unhandled exception in client_connected_cb",
    "unhandled exception during asyncio.run() shutdown",
    "Error in atexit.",
    "Error in sys.",
    "--- Logging error ---",
    "Task exception was never retrieved",
    "Future exception was never retrieved",
)
"""Before the traceback of an exception that does not end the program: one of a thread, a callback, a handler."""
RAISED = re.compile(
    r"(?!nccl\w*Error\b)([A-Za-z_][\w.]*(?:Error|Exception|Interrupt))(?::|$)|NCCL error(?: in)?: (?=[^\n]*, )"
)
"""The line that names an exception, or an error of NCCL that a script printed. ``ncclRemoteError:`` is a line in a
message of torch."""
OF_WORKER = re.compile(
    r"[\w.]{1,200}: Caught [\w.]{1,200} in (?:DataLoader worker|pin memory thread)|Original " + re.escape(TRACEBACK)
)
"""The first line of an exception of a process or a thread that loads data: torch raises it again where the data is
read. An agent may have cut off the lines before the second form."""
QUIET = "  [... then nothing for "
"""An agent writes this line where a rank printed nothing for a long time after an exception."""
MOST_LATER = 4
"""Lines that a shell or a launcher may print after the exception that ended the program, besides those it is known to
print. More of them come from a program that handled the exception and went on."""
ROOT_CAUSE = "Root Cause (first observed failure):"
"""What torchrun prints last of several failures."""
_ROOT_RANK = re.compile(r"  rank {1,9}: (\d{1,9}) ")
_ROOT_CODE = re.compile(r"  exitcode {1,9}: (-?\d{1,9}) ")
_NUM_ROOT_LINES = 9
_STATES = "  [... then "
_STATES_OF = re.compile(re.escape(_STATES) + r"(\d{1,9}) states of one line\]")

_MARKS = re.compile(r"(?:\[[A-Za-z_]{1,20}\d{1,9}\]: ?){0,6}")
"""What torch and torchrun put before the lines of a rank: ``[rank3]: ``, ``[default3]:[rank3]: ``."""
_RANK = re.compile(r"\[rank(\d{1,9})\]")
_PREFIXED = re.compile(r"(.{1,100}?)(?:\[[A-Za-z_]{1,20}\d{1,9}\]: ?){0,6}" + re.escape(TRACEBACK) + r"\s*$")
_NO_PREFIX = re.compile(r"[ \t]|.*(?:Exception Group|Original) $")
"""What Python and torch themselves write before the word Traceback."""
_CLOCK = re.compile(r"\d\d:\d\d")
_MOST_PREFIXES, _MOST_LINES_TO_NEXT = 64, 12

_END_WORDS = re.compile(
    # The rest of a message: frames, lines of NCCL and Gloo, a log of torch.
    r"\s(?!\s{0,9}\d{1,3}%\|)|$|nccl\w{1,40}: |Last error:|\[[^\[\]\s]{1,300}\.(?:cc|cpp|cu|h|hpp):\d{1,9}\] "
    r"|\[[EFIW](?:\d{3,8} | \w{1,60}\.cpp:)|[EFIW]\d{4} \d\d:\d\d:[\d.]{1,12} {1,6}\d{1,9} \S{0,200}torch/"
    r"|.{1,300} NCCL (?:INFO|WARN) "
    r"|Exception raised from |frame #|Call stack:|Message: "
    r"|Arguments: |(?:future|task|handle): <|Traceback |.{0,200}Warning: "
    # A crash.
    r"|terminate called |Fatal Python error: |Python runtime state: |Extension modules: |<no Python frame>"
    r"|.{0,100}\(most recent call first\):|free\(\): |double free |malloc|munmap_chunk\(\): |corrupted "
    r"|pure virtual method |\*\*\* |.{0,200}(?:Segmentation fault|core dumped)"
    r"|\[[^\[\]\s]{1,255}:\d{1,9} {0,9}:\d{1,9}:\d{1,9}\] Caught signal |={4}|-{4}"
    # Those that record or start the program.
    r"|wandb: |COMET |Set the environment variable HYDRA_FULL_ERROR|srun: |slurmstepd: |make(?:\[\d{1,4}\])?: \*\*\*"
    r"|\[mpiexec@|Killed$|Failures:$|Root Cause |\[\d{1,4}\]:$|\S{1,255} FAILED$"
    r"|\[[\d :,.-]{10,30}\] \[\w{1,20}\] \[launch\.py|" + "|".join(re.escape(words) for words in (*ASIDE, *LINKS))
)
"""Lines that a program prints between the exception that ended it and its end. After one that it handled others follow
soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """The failure that torchrun saw first."""

    lines: range
    """The numbers of its lines."""
    rank: int
    code: int
    """Exit code; negative: number of the signal."""


def split_mark(line: str) -> tuple[str, str]:
    """Return the marks of torch and torchrun before a line, without spaces, and the rest."""
    found = _MARKS.match(line)
    if found is None or not found[0]:
        return "", line
    return found[0].replace(" ", ""), line[found.end() :]


def rank_of(mark: str) -> int | None:
    """Return the rank of a mark. Only an exception that nothing caught has that of torch."""
    found = _RANK.search(mark)
    return int(found[1]) if found else None


def by_marks(lines: Sequence[str]) -> dict[str, list[tuple[int, str]]]:
    """Return the lines with their numbers, without marks and prefixes, by mark.

    A time without output is one of all marks. A script may write something of that form before what it
    prints: that is a mark only before an exception.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(_without_prefixes(lines)):
        mark, text = split_mark(line)
        if not mark and text.startswith(QUIET):
            for own in found.values():
                own.append((number, text))
        else:
            found.setdefault(mark, []).append((number, text))
    for mark in [mark for mark, own in found.items() if mark and rank_of(mark) is None and not _has_exception(own)]:
        found[""] = sorted((*found.get("", ()), *found.pop(mark)))
    return found


def _has_exception(lines: Sequence[tuple[int, str]]) -> bool:
    return any(TRACEBACK in text or RAISED.match(text) for _, text in lines)


def root_cause(lines: Sequence[str]) -> RootCause | None:
    """Return what torchrun says of the failure that it saw first, at the end of its output."""
    first = max((number for number, line in enumerate(lines) if line.startswith(ROOT_CAUSE)), default=len(lines))
    said = range(first, min(first + _NUM_ROOT_LINES, len(lines)))
    ranks = [(number, int(found[1])) for number in said if (found := _ROOT_RANK.match(lines[number]))]
    codes = [(number, int(found[1])) for number in said if (found := _ROOT_CODE.match(lines[number]))]
    if not ranks or not codes:
        return None
    return RootCause(lines=range(first, codes[0][0] + 1), rank=ranks[0][1], code=codes[0][1])


def quiet(seconds: float) -> str:
    """Return the line for a time without output."""
    return f"{QUIET}{seconds:.0f} s]"


def states(num_states: int) -> str:
    """Return the line before a line that was printed again and again: a progress bar."""
    return f"{_STATES}{num_states} states of one line]"


def nums_others(lines: Sequence[str]) -> list[int]:
    """Return for each line how many it stands for that a program does not print at its end."""
    return [_num_others(before, line) for before, line in itertools.pairwise(["", *lines])]


def is_end_word(line: str) -> bool:
    """Return whether a program may print this line between the exception that ended it and its end."""
    return _END_WORDS.match(line) is not None or RAISED.match(line) is not None


def _num_others(before: str, line: str) -> int:
    if found := _STATES_OF.match(line):
        return int(found[1])
    return int(not is_end_word(line) and before.strip() != "Last error:")


def _without_prefixes(lines: Sequence[str]) -> list[str]:
    """Return the lines without what ``ts``, ``srun -l``, pdsh or Ray puts before each, in its place a mark where
    several processes have one each."""
    patterns: dict[str, re.Pattern[str]] = {}
    for number, line in enumerate(lines):
        if TRACEBACK not in line or split_mark(line)[1].startswith(TRACEBACK):
            continue
        found = _PREFIXED.match(line)
        if found is None or _NO_PREFIX.match(found[1]) or len(patterns) >= _MOST_PREFIXES:
            continue
        has_clock = _CLOCK.search(found[1]) is not None
        pattern = re.escape(found[1])
        pattern = re.sub(r"\d+", r"\\d+", pattern) if has_clock else pattern
        compiled = re.compile(pattern)
        if any(compiled.match(other) for other in lines[number + 1 : number + 1 + _MOST_LINES_TO_NEXT]):
            patterns[pattern] = compiled
    return [_without_prefix(line, patterns) for line in lines] if patterns else [*lines]


def _without_prefix(line: str, patterns: Mapping[str, re.Pattern[str]]) -> str:
    for number, pattern in enumerate(patterns.values()):
        if found := pattern.match(line):
            return (f"[prefix{number}]: " if len(patterns) > 1 else "") + line[found.end() :]
    return line
