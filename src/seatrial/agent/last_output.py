"""The last output of a rank: the lines that are kept while it runs, and those of them that tell how it ended."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from seatrial.protocol.complaints import complains
from seatrial.protocol.exception_lines import (
    ASIDE,
    LINKS,
    MOST_LATER,
    QUIET,
    TRACEBACK,
    by_marks,
    nums_others,
    quiet,
    rank_of,
    root_cause,
    split_mark,
    states,
)
from seatrial.protocol.fabric_errors import ranks_passed_on, says_why_aborted
from seatrial.protocol.own_errors import is_of_device

_MOST_KEPT = 160
_MOST_SENT = 40
_MOST_AT_ONCE = 2_000
"""Lines of one piece of output that are looked at: a rank may print a hundred thousand a second."""
_HEAD_BYTES, _TAIL_BYTES = 300, 199
"""Bytes of a longer line that are kept: an exception has its name in front."""
_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[@-Z\\^_])")
"""Colors and links of a terminal, which Python and rich put into tracebacks."""

_MARKED = rb"(?:\[[A-Za-z_]{1,20}\d{1,9}\]: ?){0,4}"
_FRAME = re.compile(_MARKED + rb'(?:frame #\d|C\+\+ CapturedTraceback:|  Binary file "|#\d{1,4} (?=.))')
"""A line of a stack in C++ as torch writes it, or Python. Such a stack would push its message out."""
_PLACE = re.compile(rb" from [^\n]{1,400}:\d{1,9}\s{0,9}$")
"""The end of a line of torch that begins with its number: ``#4 c10d::TCPStore::get() from ??:0``."""
_THREAD = re.compile(_MARKED + rb"(Current thread|Thread) 0x[0-9a-f]+ .{0,100}\(most recent call first\):")
_THREAD_FRAME = re.compile(_MARKED + rb'  (?:File "[^"\n]*", line \d+ in |\.\.\.$|<no Python frame>)')
"""Lines of faulthandler, which writes the calls of all threads when a signal ends the rank."""

_WORDS = (b"atchdog", b"gloo::", b"dump ")
"""One of these is in each line for which ``says_why_aborted`` holds."""
_MOST_WORDS, _MOST_MORE_WORDS = 12, 8
_MOST_WORDS_AGE_S = 600.0
"""Time within which a library ends the process after it has said why: monitors of NCCL wait for 8 minutes."""

_WARNING = re.compile(r"(?:\[rank\d{1,9}\]:)?\[[WI]\d{0,8} [\d:.]{1,20} (?=\S)|(?=Exception raised from )")
"""Before what torch warns of. The monitor of NCCL does so each second, once the store is gone."""
_OF_RANK = re.compile(rb"((?:\[[A-Za-z_]{1,20}\d{1,9}\]: ?){0,5}\[rank\d{1,9}\]:) ?")
"""Before the lines of an exception that nothing caught, below torch, and maybe torchrun."""
_HEAD, _BETWEEN = TRACEBACK.encode(), tuple(words.encode() for words in LINKS)
_MOST_RANKS, _MOST_OF_RANK = 64, 24
_QUIET_S = 60.0
"""What a rank printed so long before anything else, or before its end, did not end it."""
_IN_GROUP, _DIVIDER = re.compile(r"(?: {2,80}\| ?)?"), re.compile(r" {2,80}\+[-+]{1,80} \d")
"""Before each line of an ExceptionGroup, and each of its exceptions."""
_RAISED = re.compile(r"(?!nccl\w*Error\b)[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?::|$)|NCCL error(?: in)?: ")
_MOST_MESSAGE_LINES, _MOST_LINES_BETWEEN = 32, 4
_NUM_MESSAGE_LINES, _NUM_FRAME_LINES, _NUM_LAST, _NUM_VERY_LAST, _NUM_FIRST = 4, 6, 10, 3, 4
_LATER, _AT_EXIT = "  [... then ", "wandb: "
_GAP = "  [...]"
"""In place of lines that are left out. It begins as a frame does, so that it is no message below one."""


@dataclass(slots=True)
class _OfRank:
    """The exceptions of one rank without their frames: several ranks may print into one output, below torchrun."""

    at: float
    lines: list[tuple[int, str]] = field(default_factory=list)
    left: int = 0
    """Lines of the message that are still to come."""
    in_frames: bool = False


class LastOutput:
    """The last lines of a rank, without stacks that say nothing of the reason."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, str]] = []
        """Each with its number: twice that in the output, so that there is one between two lines."""
        self._of_ranks: dict[bytes, _OfRank] = {}
        self._words: list[tuple[int, str]] = []
        """The lines from the first in which a library says why it aborts the rank: much may follow."""
        self._words_at = 0.0
        self._num_seen = 0
        self._quiet: tuple[int, str] | None = None
        self._at = time.monotonic()

    def add(self, lines: Sequence[bytes]) -> None:
        """Keep what counts of the lines that were printed."""
        self._quiet, self._at = self._last_quiet(), time.monotonic()
        first, self._num_seen = self._num_seen, self._num_seen + len(lines)
        self._keep_words(lines, first)
        self._keep_exceptions(lines, first)
        last = list(itertools.islice(self._without_stacks(lines), _MOST_KEPT))
        new = [each for index in reversed(last) for each in _numbered(first + index, lines[index])]
        kept = [*self._kept, *new]
        if any(not text.strip() or _key(text) is not None for _, text in new):
            kept = _without_repeats(kept)
        self._kept = kept[-_MOST_KEPT:]

    def last_line(self, rest: bytes = b"") -> str:
        """Return the last line that is not blank. ``rest``: a line without end that follows."""
        texts = itertools.chain([shown(rest)], (text for _, text in reversed(self._kept)))
        return next((text for text in texts if text.strip()), "")

    def telling(self) -> list[str]:
        """Return the lines that tell how the rank ended."""
        now, lines = time.monotonic(), dict(self._kept)
        for of_rank in self._of_ranks.values():
            if now - of_rank.at < _MOST_WORDS_AGE_S:
                lines = dict(of_rank.lines) | lines
        if now - self._words_at < _MOST_WORDS_AGE_S:
            lines = dict(self._words) | lines
        if found := self._last_quiet():
            lines[found[0]] = found[1]
        return telling_lines([lines[number] for number in sorted(lines)])

    def _last_quiet(self) -> tuple[int, str] | None:
        quiet_s = time.monotonic() - self._at
        return (2 * self._num_seen - 1, quiet(quiet_s)) if quiet_s > _QUIET_S else self._quiet

    def _keep_exceptions(self, lines: Sequence[bytes], first: int) -> None:
        """Keep the head and the message of each exception that torch has marked with its rank."""
        if not any(each.left for each in self._of_ranks.values()) and not any(_HEAD in line for line in lines):
            return
        for index, line in enumerate(lines):
            found = _OF_RANK.match(line) if line.startswith(b"[") else None
            if found is None:
                continue
            text, own = line[found.end() :], self._of_ranks.get(found[1])
            if _HEAD in text and (own is not None or len(self._of_ranks) < _MOST_RANKS):
                own = self._of_ranks.setdefault(found[1], _OfRank(at=0.0))
                own.left, own.in_frames = _NUM_MESSAGE_LINES, True
            elif own is None or not text.strip() or (own.in_frames and text.startswith(b" ")) or _is_frame(line):
                continue
            elif not text.startswith(_BETWEEN):
                if not own.left:
                    continue
                own.left, own.in_frames = own.left - 1, False
            own.lines = [*own.lines, (2 * (first + index), shown(line))][-_MOST_OF_RANK:]
            own.at = time.monotonic()

    def _keep_words(self, lines: Sequence[bytes], first: int) -> None:
        now, begin = time.monotonic(), 0
        if not self._words or now - self._words_at > _MOST_WORDS_AGE_S:
            found = _first_words(lines)
            if found is None:
                return
            begin, self._words, self._words_at = found, [], now
        room = _MOST_WORDS - len(self._words)
        following = (n for n in range(begin, len(lines)) if not _is_of_stack(lines[n]))
        self._words += [(2 * (first + n), shown(lines[n])) for n in itertools.islice(following, room)]

    def _without_stacks(self, lines: Sequence[bytes]) -> Iterator[int]:
        """Yield the indices of the lines that are kept, the last one first.

        Of the threads that faulthandler shows the one counts in which the signal came.
        """
        frames: list[int] = []
        is_blank = False
        for index in range(len(lines) - 1, max(-1, len(lines) - 1 - _MOST_AT_ONCE), -1):
            line = lines[index]
            if _THREAD_FRAME.match(line):
                frames.append(index)
                continue
            if thread := _THREAD.match(line):
                if thread[1] != b"Thread":
                    yield from (*frames, index)
                    is_blank = False
            elif not _is_frame(line) and not (is_blank and not line.strip()):
                yield index
                is_blank = not line.strip()
            frames = []
        if frames and self._kept and _is_of_stack(self._kept[-1][1].encode()):
            yield from frames


@dataclass(slots=True, kw_only=True)
class _Raised:
    """An exception in the output: the numbers of its lines."""

    rank: int | None
    """The one of its mark."""
    is_aside: bool
    """It did not end the program."""
    head: list[int]
    """The first line of its traceback, and before it the one that says what it is, and one aside that it followed."""
    frames: list[int] = field(default_factory=list)
    message: list[int] = field(default_factory=list)
    telling: list[int] = field(default_factory=list)
    """Lines far down in its message that count: an error of another rank."""
    age: int = 0
    """How many exceptions of the same mark followed."""

    @property
    def core(self) -> list[int]:
        """What makes the exception known. A reader takes another line for the message where one of these is missing."""
        return [*self.head, *self.message[:_NUM_MESSAGE_LINES], *self.telling[:1], *self.telling[-1:]]

    @property
    def rest(self) -> list[int]:
        """The other lines, those first that say most: the script is on top of the frames, the call that raised last."""
        top, below = self.frames[:_NUM_FRAME_LINES], self.frames[_NUM_FRAME_LINES:]
        return [*top, *reversed(below), *self.message]


def shown(line: bytes) -> str:
    """Return a line of output as text: without colors, cut in its middle, and of a progress bar the last state."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2]
    if b"\x1b" in text:
        text = _ESCAPE.sub(b"", text)
    if len(text) > _HEAD_BYTES + 1 + _TAIL_BYTES:
        text = text[:_HEAD_BYTES] + "…".encode() + text[-_TAIL_BYTES:]
    return text.decode(errors="replace")


def telling_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines that tell how a rank ended, in their order: 40 at most, with one for each gap.

    Not those nearest to the end: libraries and threads print more once an exception has ended the program. First come
    the lines in which a library says why it aborts the rank, and each exception with its head and its message, those
    that torch has marked in front; then the last lines; then the frames.
    """
    groups = by_marks(lines)
    raised = _exceptions(groups)
    handled_at = min((each.core[-1] for each in raised if each.rank is None), default=len(lines))
    is_kept = [number > handled_at or not line.startswith(_LATER) for number, line in enumerate(lines)]
    if not all(is_kept):
        return telling_lines([*itertools.compress(lines, is_kept)])
    root = root_cause(lines)
    aborts = [number for number, line in enumerate(lines) if says_why_aborted(line)]
    last = [number for number, line in enumerate(lines) if line.strip()]
    texts = {number: text for own in groups.values() for number, text in own}
    found = sorted(raised, key=lambda each: _order(each, texts, root.rank if root else None))
    first = [each for each in found if not each.is_aside and each.age < _NUM_FIRST]
    others = [each for each in found if each not in first]
    wanted = [*([number] for number in _words(lines, aborts)), last[-_NUM_VERY_LAST:], [*(root.lines if root else ())]]
    wanted += [each.core for each in first if each.rank is not None]
    wanted += [[number] for number in _later(groups, raised)]
    wanted += [each.core for each in first if each.rank is None]
    # The end of an exception that did not end the program is none of one that did.
    aside = {number: each.core for each in found if each.is_aside for number in each.core + each.rest}
    wanted += [[*aside.get(number, ()), number] for number in reversed(range(len(lines))[-_NUM_LAST:])]
    wanted += [[number] for each in first[:1] for number in each.rest[: 2 * _NUM_FRAME_LINES]]
    wanted += [each.core for each in others]
    wanted += [[*each.core, number] for each in found for number in each.rest]
    if aborts:
        wanted += [[*aside.get(number, ()), number] for number in reversed(range(len(lines)))]
    chosen: set[int] = set()
    for numbers in wanted:
        more = chosen.union(numbers)
        if len(more) + sum(number - 1 not in more for number in more) - 1 <= _MOST_SENT:
            chosen = more
    return list(_with_gaps(lines, sorted(chosen)))


def _words(lines: Sequence[str], aborts: Sequence[int]) -> list[int]:
    """Return the lines in which a library says why it aborts the rank. What the device did comes first."""
    first = [*range(aborts[0], min(aborts[0] + _MOST_WORDS, len(lines)))] if aborts else []
    later = sorted(set(aborts) - set(first), key=lambda number: (not is_of_device([lines[number]]), number))
    more = [number for abort in later for number in range(abort, min(abort + _NUM_MESSAGE_LINES, len(lines)))]
    return [*first, *dict.fromkeys(more)][: _MOST_WORDS + _MOST_MORE_WORDS]


def _order(each: _Raised, texts: Mapping[int, str], root: int | None) -> tuple[int, ...]:
    """Return what sorts exceptions by how much they say: that of the rank that torchrun saw fail first, then those that
    are no complaint of others."""
    message = "\n".join(texts[number] for number in each.message[:_NUM_MESSAGE_LINES])
    of_others = complains(message)
    return each.is_aside, each.rank is None, root is None or each.rank != root, of_others, each.age, each.core[-1]


def _later(groups: Mapping[str, Sequence[tuple[int, str]]], raised: Sequence[_Raised]) -> list[int]:
    """Return lines that show that the program went on after the last exception without the mark of a rank."""
    found: list[int] = []
    for mark, own in groups.items():
        numbers = {number for number, _ in own}
        ends = [each for each in raised if numbers.issuperset(each.message) and each.message]
        if rank_of(mark) is not None or not ends:
            continue
        end = max([each.message[0] for each in ends if not each.is_aside] or [each.message[0] for each in ends])
        counts = zip(own, nums_others([text for _, text in own]), strict=True)
        others = [number for (number, _), count in counts if count and number > end]
        found += [*others[-MOST_LATER - 1 :], *(n for n, text in own if text.startswith(QUIET) and n > end)]
    return found


def _exceptions(groups: Mapping[str, Sequence[tuple[int, str]]]) -> list[_Raised]:
    return [each for mark, own in groups.items() for each in _exceptions_of(rank_of(mark), own)]


def _exceptions_of(rank: int | None, lines: Iterable[tuple[int, str]]) -> list[_Raised]:
    found: list[_Raised] = []
    coming: _Raised | None = None  # its message is below the frames that are read now
    before: list[int] = []
    left = 0
    is_open = is_aside = in_group = False
    for number, line in lines:
        in_group |= "Exception Group " + TRACEBACK in line
        text = _IN_GROUP.sub("", line, count=1) if in_group else line
        left -= 1
        if line.startswith(_LATER):
            is_open = False
            continue
        if not left:
            before, is_aside = [], False
        is_error = _RAISED.match(text) is not None or bool(ranks_passed_on(text))
        if text.rstrip().endswith(TRACEBACK):
            coming, is_open = _Raised(rank=rank, is_aside=is_aside, head=[*before, number]), False
            found.append(coming)
            before, is_aside = [], False
        elif coming is not None:
            is_open = bool(text.strip()) and not text.startswith(" ")
            (coming.message if is_open else coming.frames).append(number)
            coming = None if is_open else coming
        elif text.startswith((*ASIDE, *LINKS)) or _DIVIDER.match(text):
            is_new = text.startswith(ASIDE)
            follows = bool(found) and found[-1].is_aside and not is_new
            before = [*found[-1].core, number] if follows else [number]
            is_open, is_aside, left = False, is_new or follows, _MOST_LINES_BETWEEN
        elif is_open and len(found[-1].message) < _MOST_MESSAGE_LINES:
            found[-1].message.append(number)
            if is_error:
                found[-1].telling.append(number)
        elif is_error:
            found.append(_Raised(rank=rank, is_aside=is_aside, head=before, message=[number]))
            before, is_open, is_aside = [], True, False
    followed = 0
    for each in reversed(found):
        each.age, followed = followed, followed + (not each.is_aside)
    return found


def _with_gaps(lines: Sequence[str], numbers: Sequence[int]) -> Iterator[str]:
    for before, number in itertools.pairwise([numbers[0] - 1, *numbers] if numbers else []):
        if number - before > 1:
            yield lines[before + 1] if number - before == 2 else _GAP
        yield lines[number]


def _numbered(number: int, line: bytes) -> Iterator[tuple[int, str]]:
    """Yield the text of a line with its number, before it that a progress bar had many states. Lines of a traceback
    that mark parts of the code are left out."""
    text = shown(line)
    num_states = line.count(b"\r")
    if num_states > MOST_LATER and not text.startswith(_AT_EXIT):
        yield 2 * number - 1, states(num_states)
    if not _is_below_code(text):
        yield 2 * number, text


def _first_words(lines: Sequence[bytes]) -> int | None:
    """Return the first line in which a library says why it aborts the rank."""
    text = b"\n".join(lines)
    if not any(words in text for words in _WORDS):  # no line of most output needs a look
        return None
    said = (number for number, line in enumerate(lines) if any(words in line for words in _WORDS))
    return next((number for number in said if says_why_aborted(shown(lines[number]))), None)


def _is_below_code(text: str) -> bool:
    """Return whether a line of a traceback has nothing but marks below the code: ``[rank0]:     ~~^^``."""
    return "^" in text and not split_mark(text)[1].strip(" ~^")


def _is_frame(line: bytes) -> bool:
    frame = _FRAME.match(line)
    return frame is not None and (not frame[0].endswith(b" ") or _PLACE.search(line[-500:]) is not None)


def _is_of_stack(line: bytes) -> bool:
    return _is_frame(line) or (_THREAD_FRAME.match(line) or _THREAD.match(line)) is not None


def _key(text: str) -> str | None:
    """Return what is the same in the lines that stand for one another; None: there are no others."""
    warning = _WARNING.match(text)
    return text[warning.end() :] if warning else None


def _without_repeats(kept: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the lines without those that are repeated later, and one blank line where several follow one another."""
    keys, found = set[str](), list[tuple[int, str]]()
    for number, text in reversed(kept):
        key = _key(text)
        if key not in keys and not (not text.strip() and found and not found[-1][1].strip()):
            found.append((number, text))
        if key is not None:
            keys.add(key)
    return found[::-1]
