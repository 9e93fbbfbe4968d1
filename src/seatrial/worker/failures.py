"""Classification of an exception in a rank: memory, device, setup, processes, fabric, request, or a bug in seatrial."""

from __future__ import annotations

import errno
import socket

from seatrial.errors import RequestError
from seatrial.mpi_backend.finalize import is_mpi_error
from seatrial.protocol.events import Cause
from seatrial.protocol.fabric_errors import names_fabric
from seatrial.protocol.own_errors import first_lack, is_of_link, lack_in, lacks_processes, own_cause
from seatrial.rank.meeting import MeetingError

_LACKED = (
    errno.EADDRINUSE,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOSPC,
    errno.EDQUOT,
)
_UNREACHED = (
    errno.EHOSTUNREACH,
    errno.EHOSTDOWN,
    errno.ENETUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENOTCONN,
)


def cause_of(error: BaseException) -> Cause:
    """Return why a rank failed.

    torch raises a plain RuntimeError for many hardware faults, so the beginning of its text decides: further on it may
    quote any rank. A Python exception of any other kind is a bug in seatrial and must never be reported as a fault of
    the cluster.
    """
    if isinstance(error, RequestError):
        return "request"
    try:
        import torch
        import torch.distributed as dist
    except Exception:  # that is what the error is about
        return "memory" if isinstance(error, MemoryError) else "request" if isinstance(error, ImportError) else "own"
    # torch 2.4 has this class only in torch.cuda.
    out_of_memory = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    if isinstance(error, (MemoryError, out_of_memory)):
        return "memory"
    if isinstance(error, MeetingError) or is_mpi_error(error):
        return "fabric"
    if isinstance(error, OSError):
        if error.errno == errno.ENOMEM:
            return "memory"
        if error.errno in _LACKED and lack_in(error.strerror or ""):
            return "processes"
        if error.errno == errno.EAGAIN and error.filename is None:
            return "processes"
        is_of_peer = isinstance(error, (ConnectionError, TimeoutError, socket.gaierror)) or error.errno in _UNREACHED
        # A file system says so, too, with the name of the file.
        return "fabric" if is_of_peer and error.filename is None else "own"
    if not isinstance(error, RuntimeError) or isinstance(error, (NotImplementedError, RecursionError)):
        return "own"
    text = str(error)
    is_of_store = isinstance(error, getattr(dist, "DistError", ()))
    is_of_backend = isinstance(error, getattr(dist, "DistBackendError", ()))
    if lacks_processes(text) and (is_of_backend or not is_of_store):
        return "processes"
    if is_of_store:
        own = own_cause(text) if is_of_backend else ""
        return own if own in ("memory", "device", "setup") else "fabric"
    # A build of torch without this or that was somebody's choice, and no mistake of ours.
    if cause := own_cause(text):
        return cause
    if is_of_link(text) or names_fabric(text):
        return "fabric"
    if first_lack(text):
        return "processes"
    return "device" if isinstance(error, getattr(torch, "AcceleratorError", ())) else "own"
