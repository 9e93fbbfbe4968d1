"""Between torch tensors and memory that MPI can take: contiguous, on the host unless MPI takes device addresses.

What stands here runs in the caller's thread (``host_of``) and in the thread of a lane (``bring_back``), where autograd
and inference mode are not as the caller has set them: so nothing here is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["apart", "bring_back", "check_alike", "check_fits", "deal", "elements", "host_of", "joined", "starts"]


def host_of(tensor: Tensor, *, direct: bool, filled: bool = True) -> Tensor:
    """The tensor itself where MPI can take it, else a contiguous copy, pinned for a device tensor.

    ``direct``: MPI takes the address of its memory. ``filled``: its values are needed. Raises NotImplementedError for a
    sparse tensor.
    """
    if tensor.layout != torch.strided:
        raise NotImplementedError(f"the MPI backend takes no {tensor.layout} tensors; make it dense first.")
    # A conjugate or negative view holds other values in memory than it shows.
    if direct and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    with torch.inference_mode():
        device = tensor.device if direct else "cpu"
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device=device, pin_memory=tensor.is_cuda and not direct)
        return host.copy_(tensor) if filled else host


def joined(parts: Sequence[Tensor], *, direct: bool) -> Tensor:
    """All elements of the parts, one part after the other, as one flat tensor that MPI can take."""
    with torch.inference_mode():
        return host_of(torch.cat([part.reshape(-1) for part in parts]), direct=direct)


def bring_back(tensor: Tensor, host: Tensor) -> None:
    """What MPI left in a copy, to the tensor that the caller knows."""
    if host is tensor:
        return
    with torch.inference_mode():
        tensor.copy_(host.view(tensor.shape))
    if tensor.is_cuda:
        # This thread has a stream of its own; the caller's must find the values there.
        torch.cuda.current_stream(tensor.device).synchronize()


def deal(flat: Tensor, parts: Sequence[Tensor]) -> None:
    """The elements of a flat tensor, to the parts one after the other."""
    for part, elements_of_part in zip(parts, flat.split(elements(parts)), strict=True):  # type: ignore[no-untyped-call]
        bring_back(part, elements_of_part)


def apart(tensor: Tensor, other: Tensor) -> Tensor:
    """The tensor, or a copy where both lie in one memory: MPI forbids that what is sent and received overlap."""
    if tensor.numel() and tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr():
        with torch.inference_mode():
            return tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def elements(tensors: Sequence[Tensor]) -> list[int]:
    """How many each of them has."""
    return [tensor.numel() for tensor in tensors]


def starts(counts: Sequence[int]) -> list[int]:
    """Where each begins when they lie one after the other."""
    return [sum(counts[:index]) for index in range(len(counts))]


def check_alike(name: str, tensors: Sequence[Tensor]) -> None:
    """Raises ValueError where number of elements or type differ."""
    first = tensors[0]
    for tensor in tensors[1:]:
        if tensor.numel() != first.numel() or tensor.dtype != first.dtype:
            raise ValueError(
                f"{name}: tensors of one size and type are needed; there are {tuple(first.shape)} {first.dtype} and"
                f" {tuple(tensor.shape)} {tensor.dtype}."
            )


def check_fits(name: str, whole: Tensor, share: Tensor, size: int) -> None:
    """Raises ValueError where ``whole`` is not ``size`` times ``share``."""
    if whole.numel() != share.numel() * size or whole.dtype != share.dtype:
        raise ValueError(
            f"{name}: the larger tensor has {whole.numel()} elements of {whole.dtype}; {share.numel() * size} of"
            f" {share.dtype} are needed, {size} times those of the smaller one."
        )
