"""Whether an error that a rank printed is about the connections to others, or about the rank itself."""

from __future__ import annotations

import re

from seatrial.protocol.exception_lines import OF_WORKER, RAISED
from seatrial.protocol.fabric_errors import gave_up, names_fabric, says_why_aborted
from seatrial.protocol.own_errors import in_one_line, own_cause

_TORCH_RAISES = re.compile(
    r"([\w.]+\.)?(\w*RuntimeError|AcceleratorError|Dist\w*Error|Rendezvous\w*Error|HorovodInternalError|Exception)"
)
"""Exceptions of torch, MPI, Horovod and JAX when a peer is gone. A URLError is about something else."""
_SOCKET_RAISES = re.compile(r"Connection(Reset|Aborted)?Error|BrokenPipeError")
"""Exceptions of Python's own sockets. Others that follow from them are about a host on the internet."""
_CLOSED = re.compile(r"\w+: \[Errno (?:32|103|104|108)\]")
"""EPIPE, ECONNABORTED, ECONNRESET and ESHUTDOWN: the words behind them are in the language of the host."""
_MISUSE = re.compile(
    r"\[enforce fail at |nccl ?invalid|nccl error[^\n]*, invalid (?:usage|argument)\b|duplicate gpu detected"
    r"|eaddrinuse|bootstrap ?: no socket interface found|cuda failure \d* ?'invalid device ordinal'"
    r"|\bgloo/transport/\w+/device\.cc:",
    re.I,
)
"""Words of Gloo, NCCL and the store about a call that is wrong by itself, or about what the host itself lacks."""
_REMOTE = "remote process exited"
"""In the first line of an error of NCCL whose last message is about a peer, and may quote it."""
_LOST_STORE = re.compile(r"(?:[\w.]+\.)?(?:Dist(?:Network|Store)|Rendezvous(?:Connection|Timeout))Error$")
"""Exceptions of torch that say nothing but that a peer or the store in it is gone or silent."""


def exception_name(message: str) -> str:
    """Return the name of the exception of a message, empty where the text is no exception."""
    found = RAISED.match(message.partition("\n")[0])
    return (found[1] or "") if found is not None else ""


def is_of_worker(message: str) -> bool:
    """Return whether the exception is that of a process or a thread of the rank that loads data."""
    return OF_WORKER.match(message) is not None


def is_of_socket(message: str) -> bool:
    """Return whether the exception is one of Python's own sockets, which a script may have opened to anybody."""
    return _SOCKET_RAISES.match(message) is not None


def is_own(message: str) -> bool:
    """Return whether a message is about the device, the memory or a wrong call of the rank itself."""
    first = message.partition("\n")[0]
    said = first if _REMOTE in first else in_one_line(message)
    return bool(own_cause(message)) or (not gave_up(first) and _MISUSE.search(said) is not None)


def complains(message: str) -> bool:
    """Return whether a message of torch is about the connections to other ranks."""
    exception, line = exception_name(message), message.partition("\n")[0]
    if is_of_worker(message) or is_own(message):
        return False
    has_socket = _SOCKET_RAISES.fullmatch(exception) is not None
    if exception and not has_socket and not _TORCH_RAISES.fullmatch(exception):
        return False
    is_said = gave_up(line) or says_why_aborted(line) or names_fabric(line)
    return is_said or _LOST_STORE.match(exception) is not None or (has_socket and _CLOSED.match(line) is not None)
