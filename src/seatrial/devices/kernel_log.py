"""The kernel log: lines about devices, from /dev/kmsg or from a file in its form or in that of dmesg.

Forms: ``leptonai/gpud`` components/accelerator/nvidia/xid (Apache-2.0), NVIDIA's XID documents, and AMD's amdgpu RAS
messages. A line that no form matches is no event, and never an error.

Other users decide what the kernel says within its lines: it quotes their options, and names their processes. Hence a
form begins where the message begins, and messages of programs are none of the kernel's.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator

from seatrial.devices import xid
from seatrial.devices.readers import short_bus
from seatrial.devices.state import KernelEvent

KMSG = "/dev/kmsg"
_MOST_ALIKE = 10
"""Events of one kind and device in one reading: a broken device may log thousands, and the first ones say why."""
_MOST_EVENTS = 1000
_MOST_BYTES = 1 << 24
_RECORD_BYTES = 1 << 13
"""A record of /dev/kmsg is at most 8 KiB; a shorter buffer would be refused."""
_TEXT_CHARS = 400
_XID = re.compile(r"NVRM: Xid \(((?:PCI:)?[0-9a-fA-F:.]+)(?: GPU-[^)]{1,40})?\): (\d{1,4})\b,?")
"""In the brackets a slice of the device may follow (MIG): ``PCI:0000:01:00 GPU-I:05 GPU-CI:00``."""
_SXID = re.compile(r"nvidia-nvswitch\d{1,4}: SXid \((PCI:[0-9a-fA-F:.]+)\): (\d{1,6})\b,?")
_FALLEN = re.compile(r"NVRM:\s+GPU (?:at )?(?:PCI:)?([0-9a-fA-F:.]+?):? (?:GPU\S{0,60} )?has fallen off the bus")
_AMDGPU = re.compile(
    r"amdgpu ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d): (?:(?!process |proc |task |comm).){0,80}"
    r"(uncorrectable hardware errors? detected|GPU reset begin|GPU fault detected|ring \S+ timeout|RAS poison)",
    re.IGNORECASE,
)
"""After ``process``, ``proc`` and ``task`` comes the name of a program, which may be any of these words; the line of a
crash begins with such a name, of 15 characters."""
_LINK = re.compile(r"(Fatal|Nonfatal) XC\d i\d+ Link (-?\d{1,4}) \((0x[0-9a-fA-F]{1,16})\b")
_FOLLOWS = re.compile(r"caused by previous Xid (\d{1,4})\b")
_FATAL = re.compile(r"\b(Non-?fatal|Fatal)\b", re.IGNORECASE)
_KMSG_HEADER = re.compile(r"(\d{1,9}),\d+,(\d{1,18}),[^;]*;(.*)", re.DOTALL)
_DMESG_HEADER = re.compile(
    # The names of syslog and journald, or those of dmesg -x; a time of dmesg; a date; the number of a thread.
    r"(?:<\d+>)?(?:(?:[\w:+.,/-]+\s+){0,5}?kernel(?:\[\d+\])?(?::| - - -)\s*|kern\s*:\s*\w+\s*:\s*)?"
    r"(?:\[\s*(\d{1,18}\.\d{1,9})\]\s*|\[[\w :.+<>-]{1,40}\]\s*|\d{4}-\d\d-\d\dT\S{1,40}\s+){0,3}(.*)",
    re.DOTALL,
)
"""Heads of lines in a file, which anybody may have written; this matches any line."""


class KernelLog:
    """An open log; each ``read`` returns the events since the last one."""

    def __init__(self, path: str = KMSG) -> None:
        """Open it. Raises OSError."""
        self._path = path
        self._fd = _opened(path)
        status = os.fstat(self._fd)
        self._is_device = stat.S_ISCHR(status.st_mode)
        if status.st_size > _MOST_BYTES:
            # What the first reading leaves would look new in the next one.
            os.lseek(self._fd, -_MOST_BYTES, os.SEEK_END)
        self._rest = b""
        self._old = True
        self.was_cut = False
        """Whether records may have been lost: the kernel overwrote them, the file was cut or replaced, or there were
        too many."""

    def read(self) -> tuple[KernelEvent, ...]:
        """Return the new events; of the first reading, which are older than the trial, ``old`` ones."""
        events, alike = list[KernelEvent](), Counter[object]()
        for line in (*self._lines(), *(self._lines() if self._begins_again() else ())):
            event = parse(line, old=self._old)
            if event is None:
                continue
            alike[_sort(event)] += 1
            if alike[_sort(event)] > _MOST_ALIKE or len(events) == _MOST_EVENTS:
                self.was_cut = True
            else:
                events.append(event)
        self._old = False
        return tuple(events)

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)

    def _begins_again(self) -> bool:
        """Return whether the file was cut, or replaced (logrotate); then it is read from its beginning."""
        if self._is_device:
            return False
        try:
            if os.fstat(self._fd).st_size < os.lseek(self._fd, 0, os.SEEK_CUR):
                os.lseek(self._fd, 0, os.SEEK_SET)
            elif not os.path.samestat(os.fstat(self._fd), os.stat(self._path, follow_symlinks=False)):
                new = _opened(self._path)
                os.close(self._fd)
                self._fd = new
            else:
                return False
        except OSError:
            return False
        self._rest, self.was_cut = b"", True
        return True

    def _lines(self) -> Iterator[str]:
        received = 0
        while received < _MOST_BYTES:
            try:
                piece = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # EPIPE: the next record was overwritten; the read after it goes on
                self.was_cut = True
                continue
            except OSError:
                return
            if not piece:
                return
            received += len(piece)
            if self._is_device:
                yield piece.decode(errors="replace")
                continue
            *lines, self._rest = (self._rest + piece).split(b"\n")
            # Where a message begins decides whether it is the kernel's.
            self._rest = self._rest[:_RECORD_BYTES]
            yield from (line.decode(errors="replace") for line in lines)
        # The last reading leaves the rest unread.
        self.was_cut = self.was_cut or not self._old


def parse(line: str, *, old: bool = False) -> KernelEvent | None:
    """Return the event of a line, with or without the header of /dev/kmsg or dmesg; None: it is about no device."""
    seconds, text = None, line
    if header := _KMSG_HEADER.match(line):
        if int(header[1]) >> 3:  # the facility: a program wrote it
            return None
        seconds, text = int(header[2]) / 1e6, header[3]
    elif header := _DMESG_HEADER.match(line):
        seconds, text = None if header[1] is None else float(header[1]), header[2]
    text = text.split("\n")[0].strip()[:_TEXT_CHARS]
    if match := _XID.match(text):
        return _xid(match, text, seconds, old)
    if match := _SXID.match(text):
        fatal = _FATAL.search(text[match.end() :])
        return KernelEvent(
            kind="sxid",
            bus=short_bus(match[1]),
            code=int(match[2]),
            text=text,
            seconds=seconds,
            fatal=None if fatal is None else fatal[1].lower() == "fatal",
            old=old,
        )
    if match := _FALLEN.match(text):
        return KernelEvent(kind="off the bus", bus=short_bus(match[1]), text=text, seconds=seconds, old=old)
    if match := _AMDGPU.match(text):
        return KernelEvent(kind="amdgpu", bus=short_bus(match[1]), text=text, seconds=seconds, old=old)
    return None


def _sort(event: KernelEvent) -> object:
    """Return what decides how grave an event is, and for which device."""
    words = _AMDGPU.match(event.text)
    kind = words[2].lower() if words else event.kind
    return kind, event.bus, event.code, event.subcode, event.link, event.follows, event.fatal


def _xid(match: re.Match[str], text: str, seconds: float | None, old: bool) -> KernelEvent:
    code, rest = int(match[2]), text[match.end() :]
    subcode = link = fatal = None
    if code in xid.NVLINK_5 and (found := _LINK.search(rest)):
        # Bits 20 to 25 of the first word.
        subcode, link, fatal = int(found[3], 16) >> 20 & 0x3F, int(found[2]), found[1] == "Fatal"
    follows = _FOLLOWS.search(rest)
    return KernelEvent(
        kind="xid",
        bus=short_bus(match[1]),
        code=code,
        text=text,
        seconds=seconds,
        subcode=subcode,
        link=link,
        follows=int(follows[1]) if follows else None,
        fatal=fatal,
        old=old,
    )


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)


def open_log(path: str = KMSG) -> tuple[KernelLog | None, str]:
    """Return the log, or why it cannot be read."""
    try:
        return KernelLog(path), ""
    except PermissionError:
        return None, f"{path}: not permitted; dmesg needs CAP_SYSLOG here (kernel.dmesg_restrict)"
    except OSError as error:
        with contextlib.suppress(ValueError):
            return None, f"{path}: {os.strerror(error.errno or 0)}"
        return None, f"{path}: {error}"
