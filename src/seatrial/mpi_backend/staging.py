"""Staging: contiguous memory for MPI, on the host unless MPI takes device addresses, and the copies back.

These functions run in the caller's thread (``host_of``) and in the thread of a lane (``copy_back``), where autograd and
inference mode are not set as in the caller's. So nothing here is recorded by autograd.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def host_of(tensor: Tensor, *, direct: bool, filled: bool = True) -> Tensor:
    """Return the tensor itself where MPI can use its memory, else a contiguous copy, pinned for a device tensor.

    Raises NotImplementedError for a sparse tensor.

    Args:
        tensor: A tensor of any shape.
        direct: Whether MPI may take the address of its memory.
        filled: Whether its values are needed.
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


def concatenated(parts: Sequence[Tensor], *, direct: bool) -> Tensor:
    """Return all elements of the parts in order, as one flat tensor, shape (elements,), that MPI can take."""
    with torch.inference_mode():
        return host_of(torch.cat([part.reshape(-1) for part in parts]), direct=direct)


def copy_back(tensor: Tensor, host: Tensor) -> None:
    """Copy MPI's result to the caller's tensor, if it is in another tensor."""
    if host is tensor:
        return
    with torch.inference_mode():
        tensor.copy_(host.view(tensor.shape))
    if tensor.is_cuda:
        # The copy ran on this thread's stream; the caller's stream must see the values.
        torch.cuda.current_stream(tensor.device).synchronize()


def distribute(flat: Tensor, parts: Sequence[Tensor]) -> None:
    """Copy the elements of a flat tensor to the parts, in order."""
    for part, elements_of_part in zip(parts, flat.split(elements(parts)), strict=True):  # type: ignore[no-untyped-call]
        copy_back(part, elements_of_part)


def separated(tensor: Tensor, other: Tensor) -> Tensor:
    """Return the tensor, or a copy where both share memory: MPI forbids overlapping send and receive buffers."""
    if tensor.numel() and tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr():
        with torch.inference_mode():
            return tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def elements(tensors: Sequence[Tensor]) -> list[int]:
    """Return the number of elements of each tensor."""
    return [tensor.numel() for tensor in tensors]


def starts(counts: Sequence[int]) -> list[int]:
    """Return the offset of each part when parts of these sizes follow one another."""
    return [sum(counts[:index]) for index in range(len(counts))]


def check_equal_sizes(name: str, tensors: Sequence[Tensor]) -> None:
    """Raise ValueError where numbers of elements or types differ."""
    first = tensors[0]
    for tensor in tensors[1:]:
        if tensor.numel() != first.numel() or tensor.dtype != first.dtype:
            raise ValueError(
                f"{name}: tensors of one size and type are needed; got {tuple(first.shape)} {first.dtype} and"
                f" {tuple(tensor.shape)} {tensor.dtype}."
            )


def check_share(name: str, whole: Tensor, share: Tensor, size: int) -> None:
    """Raise ValueError where ``whole`` is not ``size`` times as large as ``share``, or of another type."""
    if whole.numel() != share.numel() * size or whole.dtype != share.dtype:
        raise ValueError(
            f"{name}: the larger tensor has {whole.numel()} elements of {whole.dtype}; {share.numel() * size} of"
            f" {share.dtype} are needed, {size} times those of the smaller one."
        )
