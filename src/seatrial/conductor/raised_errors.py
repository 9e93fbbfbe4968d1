"""The exceptions that Python printed in the output of a program, each with its whole message. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from seatrial.protocol.complaints import is_of_worker
from seatrial.protocol.exception_lines import (
    ASIDE,
    LINKS,
    MOST_LATER,
    QUIET,
    RAISED,
    TRACEBACK,
    by_marks,
    is_end_word,
    nums_others,
    rank_of,
)
from seatrial.protocol.fabric_errors import ranks_passed_on

_AFTER = re.compile(
    r"  \[\.\.\. then |"
    r"\[[A-Z]\d{0,8}[ \]]|\S{1,255}:\d{1,9}:\d{1,9} \[\d{1,9}\] |Exception raised from |terminate called |frame #\d|"
    + "|".join(re.escape(words) for words in (*ASIDE, *LINKS))
)
"""What follows a message: lines of torch and NCCL with their own heads, a stack in C++, another exception."""
_IN_GROUP, _DIVIDER = re.compile(r" {2,80}\| ?"), re.compile(r" {2,80}\+[-+]{1,80}( \d)?")
"""Before each line of an ExceptionGroup; before each of its exceptions, with their number, and at its end."""
_BOX_TOP = re.compile(r"[╭+][─-]{2,500} Traceback \(most recent call last\) [─-]{2,500}[╮+]$")
_BOX_END = re.compile(r"[╰+][─-]{20,500}[╯+]$")
"""How the package rich shows the traceback of an exception, as typer and several trainers have it do."""
_OF_CHILD = re.compile(r"subprocess\.CalledProcessError: Command .{0,400}python.{0,400} returned non-zero exit status")
"""The exception of a launcher above the rank, which says nothing but that the rank has failed."""
_MOST_LINES = 32
"""Lines of a message that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The exception that ended a program, and those before it from which it followed."""

    rank: int | None
    """The rank by which torch marked it, as it does where nothing catches an exception; None: it has no mark."""
    messages: list[str]
    """The first one in front."""
    num_later: int = 0
    """Lines that followed the last one and that a program does not print at its end: it may have handled that one."""
    is_old: bool = False
    """It printed nothing for a long time after the last one."""


@dataclass(slots=True, kw_only=True)
class _Raised:
    lines: list[str] = field(default_factory=list)
    linked: bool = False
    """It followed from the one before, or stands beside it in a group."""
    headed: bool = True
    """Its traceback was seen from the beginning."""
    aside: bool = False
    """It did not end the program."""
    at: int = 0
    """Number of its first line."""
    width: int = 0
    """Columns at which rich has broken its lines; 0: nobody has."""


def raised(lines: Sequence[str]) -> list[Chain]:
    """Return the exceptions that ended a program, by its last lines of output: one for each rank that printed there.

    Torch marks the lines of a rank; where some are marked, those without a mark are of a launcher above it, or of an
    exception that was logged.
    """
    chains = {}
    for mark, own in by_marks(lines).items():
        rank = rank_of(mark)
        if chain := _chain([text for _, text in own], rank):
            chains[mark] = chain
    unmarked = chains.pop("", None)
    return [*chains.values()] or ([unmarked] if unmarked else [])


def error_passed_on(message: str) -> str:
    """Return the last exception in a message by which torch passes on an error, in one line."""
    first, *rest = message.splitlines()
    return next((line.strip() for line in reversed(rest) if RAISED.match(line)), first)


def _exceptions(lines: Sequence[str]) -> list[_Raised]:
    found: list[_Raised] = []
    coming: _Raised | None = None  # the exception below the frames that are read now
    is_open = in_group = is_linked = is_aside = False
    width = 0
    for number, line in enumerate(lines):
        in_group |= "Exception Group " + TRACEBACK in line
        text = _IN_GROUP.sub("", line, count=1) if in_group else line
        divider = _DIVIDER.match(line) if in_group else None
        first = found[-1].lines[0] if is_open else ""
        is_worker = is_of_worker(first)
        is_head = text.rstrip().endswith(TRACEBACK)
        # A traceback that neither torch nor a link announces is that of a later exception, which no message holds.
        is_held = is_worker and (not is_head or is_linked or text.startswith("Original "))
        is_passed_on = is_held or bool(ranks_passed_on(first))
        if is_head and text.startswith("Original ") and not is_open:
            found.append(_Raised(lines=[text], at=number, linked=is_linked, aside=is_aside))
            coming, is_open, is_linked, is_aside = None, True, False, False
        elif (is_head and not is_passed_on) or _BOX_TOP.match(text):
            coming, is_open = _Raised(linked=is_linked, aside=is_aside), False
            is_linked = is_aside = False
        elif _BOX_END.match(text):
            width = len(text)
            continue
        elif coming is not None:
            if text.strip() and not text.startswith((" ", "│", "|")):
                coming.lines.append(text)
                coming.at, coming.width = number, width
                found.append(coming)
                coming, is_open = None, True
        elif (_AFTER.match(text) and not (is_held and text.startswith(LINKS))) or divider:
            is_open = False
            is_linked = text.startswith(LINKS) or (divider is not None and divider[1] is not None)
            is_aside = text.startswith(ASIDE) or (is_linked and bool(found) and found[-1].aside)
        elif (RAISED.match(text) or ranks_passed_on(text)) and not (is_open and (found[-1].headed or is_passed_on)):
            found.append(_Raised(lines=[text], at=number, linked=is_linked, headed=False, width=width))
            is_open, is_linked = True, False
        elif is_open and len(found[-1].lines) < _MOST_LINES:
            is_linked = is_held and (text.startswith(LINKS) or (is_linked and not is_head))
            if not (is_held and text.startswith(" ")):
                found[-1].lines.append(text)
        width = 0
    return found


def _chain(lines: Sequence[str], rank: int | None) -> Chain | None:
    """Return the exceptions of one mark that ended the program: torch marks no other, so that what follows counts only
    where there is no rank."""
    found = _exceptions(lines)
    found = [each for each in found if not (each.aside or _OF_CHILD.match(each.lines[0]))] or found
    if not found:
        return None
    others = nums_others(lines)
    quiet_at = max((number for number, line in enumerate(lines) if line.startswith(QUIET)), default=-1)
    nums = [sum(others[each.at + 1 :]) - _num_broken(each) if rank is None else 0 for each in found]
    old = [rank is None and each.at < quiet_at for each in found]
    near = [number for number in range(len(found)) if nums[number] <= MOST_LATER and not old[number]]
    ends = [number for number in near if found[number].headed] or near
    ends = ends or [number for number, each in enumerate(found) if each.headed] or [*range(len(found))]
    last = first = ends[-1]
    while first > 0 and found[first].linked:
        first -= 1
    while last + 1 < len(found) and found[last + 1].linked:
        last += 1
    messages = [_unbroken(each).rstrip() for each in found[first : last + 1]]
    return Chain(rank=rank, messages=messages, num_later=nums[last], is_old=old[last])


def _num_broken(each: _Raised) -> int:
    """Return how many lines rich has made of the first line of a message, beyond the first one."""
    message = _unbroken(each).partition("\n")[0] if each.width else ""
    return sum(line.strip() in message and not is_end_word(line) for line in each.lines[1:])


def _unbroken(each: _Raised) -> str:
    """Return the message of an exception, with the lines that rich has broken in one."""
    if not each.width:
        return "\n".join(each.lines)
    message = each.lines[0]
    for before, line in itertools.pairwise(each.lines):
        # A word that is longer than the box fills whole lines; a space before a break is left out where it has no room.
        between = "" if before.endswith(" ") else "\n" if len(before) < each.width else " " if " " in before else ""
        message += between + line
    return message
