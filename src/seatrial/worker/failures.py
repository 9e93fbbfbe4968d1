"""Classification of an exception in a rank: memory, device, fabric, request, or a bug in seatrial."""

from __future__ import annotations

import re

from seatrial.errors import RequestError
from seatrial.mpi_backend.finalize import is_mpi_error
from seatrial.protocol.fabric_errors import FABRIC_MARKS
from seatrial.rank.meeting import MeetingError

_MEMORY = ("out of memory", "can't allocate memory", "alloc_failed", "cannot allocate memory")
_LACKING = re.compile(
    r"(was|is|been) (build|built|compiled) without|not (compiled|built) with|does(n.t| not) have .* built in"
)
_OF_DEVICE = ("cuda error", "hip error")
"""How torch's own words for a device begin. Further on may stand what any rank has written at the store."""
_DEVICE = ("cuda error", "hip error", "cublas", "cudnn", "miopen", "rocblas", "hipblas", "acceleratorerror")


def cause_of(error: BaseException) -> str:
    """Return ``memory``, ``device``, ``fabric``, ``request`` or ``own`` (a bug in seatrial).

    torch raises a plain RuntimeError for many hardware faults, so its text decides. A Python exception of any other
    kind is a bug in seatrial and must never be reported as a fault of the cluster.
    """
    import torch
    import torch.distributed as dist

    if isinstance(error, RequestError):
        return "request"
    # torch 2.4 has this class only in torch.cuda.
    out_of_memory = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    if isinstance(error, (MemoryError, out_of_memory)):
        return "memory"
    if isinstance(error, getattr(dist, "DistError", ())) or is_mpi_error(error):
        return "fabric"
    if not isinstance(error, (RuntimeError, OSError)) or isinstance(error, (NotImplementedError, RecursionError)):
        return "own"
    text = str(error).lower()
    # Its text may quote what any rank has written at the store.
    if (
        isinstance(error, MeetingError)
        and not _LACKING.search(text)
        and not text.startswith(("cuda error", "hip error"))
    ):
        return "fabric"
    for cause, marks in (("memory", _MEMORY), ("device", _DEVICE)):
        if any(mark in text for mark in marks):
            return cause
    # A build of torch without this or that was somebody's choice, and no mistake of ours.
    if isinstance(error, RuntimeError) and _LACKING.search(text):
        return "request"
    if any(mark in text for mark in FABRIC_MARKS):
        return "fabric"
    if isinstance(error, getattr(torch, "AcceleratorError", ())):
        return "device"
    return "fabric" if isinstance(error, ConnectionError) else "own"
