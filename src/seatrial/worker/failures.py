"""What an exception in a rank says about the cluster: memory, device, fabric, or a mistake of ours."""

from __future__ import annotations

from seatrial.errors import RequestError
from seatrial.verdict.complaints import FABRIC
from seatrial.worker.mpi_end import is_mpi_error

__all__ = ["cause_of"]

_MEMORY = ("out of memory", "can't allocate memory", "alloc_failed", "cannot allocate memory")
_DEVICE = ("cuda error", "hip error", "cublas", "cudnn", "miopen", "rocblas", "hipblas", "acceleratorerror")


def cause_of(error: BaseException) -> str:
    """``memory``, ``device``, ``fabric``, ``request`` or ``own``.

    torch raises a plain RuntimeError for much of what hardware does, so its text decides; a Python exception of any
    other kind is a mistake of ours and must never be told as a fault of the cluster.
    """
    import torch
    import torch.distributed as dist

    if isinstance(error, RequestError):
        return "request"
    # torch 2.4 has it under torch.cuda only.
    out_of_memory = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    if isinstance(error, (MemoryError, out_of_memory)):
        return "memory"
    if isinstance(error, getattr(dist, "DistError", ())) or is_mpi_error(error):
        return "fabric"
    if not isinstance(error, (RuntimeError, OSError)) or isinstance(error, (NotImplementedError, RecursionError)):
        return "own"
    text = str(error).lower()
    for cause, marks in (("memory", _MEMORY), ("device", _DEVICE), ("fabric", FABRIC)):
        if any(mark in text for mark in marks):
            return cause
    if isinstance(error, getattr(torch, "AcceleratorError", ())):
        return "device"
    return "fabric" if isinstance(error, ConnectionError) else "own"
