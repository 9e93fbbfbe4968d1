"""torch tensors in MPI's terms: addresses, types, reductions.

MPI has no type for bfloat16 and float16; they travel as two bytes and are reduced by our functions, which call torch.
Data that is only moved, not reduced, travels as bytes, whatever its type.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from seatrial.mpi_backend.library import load_mpi

_MOST_COUNTED = 2**31 - 1
"""Counts have 32 bits before MPI 4.0."""
_BLOCK_BYTES = 2**26

Op = dist.ReduceOp
_MPI_NAMES = {
    torch.float64: "DOUBLE",
    torch.float32: "FLOAT",
    torch.int8: "INT8_T",
    torch.int16: "INT16_T",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
    torch.uint8: "UINT8_T",
    torch.bool: "C_BOOL",
}
for _name in ("uint16", "uint32", "uint64"):  # torch 2.3 brought them
    if hasattr(torch, _name):
        _MPI_NAMES[getattr(torch, _name)] = f"{_name.upper()}_T"
HALVES = (torch.float16, torch.bfloat16)
"""Reduced by our functions, which read the memory themselves: on the host only."""
_OPS = {Op.SUM: "SUM", Op.AVG: "SUM", Op.PRODUCT: "PROD", Op.MIN: "MIN", Op.MAX: "MAX"}
_BITS = {Op.BAND: "BAND", Op.BOR: "BOR", Op.BXOR: "BXOR"}
_BOOLS = {Op.SUM: "LOR", Op.MAX: "LOR", Op.PRODUCT: "LAND", Op.MIN: "LAND", Op.BAND: "LAND", Op.BOR: "LOR"}
_BOOLS[Op.BXOR] = "LXOR"
_KINDS = {hash(Op(kind)): kind for kind in (*_OPS, *_BITS)}
_HALF_OPS: dict[str, Any] = {"SUM": torch.add, "PROD": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum}


def byte_buffer(tensor: Tensor) -> list[Any]:
    """Return a contiguous host or device tensor as an MPI buffer for moving: elements of its size, without a number
    type."""
    return [_memory(tensor), *_extent(tensor.numel(), tensor.element_size())]


def byte_buffer_of_shares(whole: Tensor, share: Tensor) -> list[Any]:
    """Return a buffer as ``byte_buffer`` does, for a tensor with one share per rank; MPI wants the size of one
    share."""
    return [_memory(whole), *_extent(share.numel(), share.element_size())]


def counted_buffer(tensor: Tensor, counts: Sequence[int], starts: Sequence[int]) -> list[Any]:
    """Return a buffer as ``byte_buffer`` does, with ``counts`` elements for each rank, beginning at ``starts``."""
    if tensor.numel() > _MOST_COUNTED:
        _require_large_counts(tensor.numel(), "moves")
    return [_memory(tensor), (counts, starts), _element(tensor.element_size())]


class Reduction(NamedTuple):
    """A reduction of torch's, in MPI's terms."""

    op: Any
    type: Any
    divided: bool
    """Whether the result must still be divided by the number of ranks."""


def typed_buffer(whole: Tensor, share: Tensor, reduction: Reduction) -> list[Any]:
    """Return a contiguous tensor as an MPI buffer for reducing. MPI wants the size of one rank's share, or of the
    whole."""
    number = share.numel()
    if number > _MOST_COUNTED:
        _require_large_counts(number, "reduces")
    return [_memory(whole), number, reduction.type]


def _require_large_counts(number: int, what: str) -> None:
    if not _has_large_counts():
        raise NotImplementedError(
            f"the MPI backend {what} at most {_MOST_COUNTED} elements in this call with an MPI older than 4.0, but got"
            f" {number}; split the tensor."
        )


@functools.cache
def _has_large_counts() -> bool:
    return bool(load_mpi().Get_version() >= (4, 0))


def _memory(tensor: Tensor) -> Any:
    return _from_address()(tensor.data_ptr(), tensor.nbytes)


@functools.cache
def _from_address() -> Any:
    return load_mpi().buffer.fromaddress


def _extent(number: int, element_size: int) -> tuple[int, Any]:
    """Return count and MPI type for this number of elements."""
    if number <= _MOST_COUNTED:
        return number, _element(element_size)
    return 1, _whole(number * element_size)


@functools.cache
def _element(size_bytes: int) -> Any:
    return load_mpi().BYTE.Create_contiguous(size_bytes).Commit()


@functools.cache
def _whole(size_bytes: int) -> Any:
    """Return an MPI type of that size, for sizes beyond a 32-bit count."""
    MPI = load_mpi()  # noqa: N806
    blocks, rest = divmod(size_bytes, _BLOCK_BYTES)
    block = _element(_BLOCK_BYTES)
    return MPI.Datatype.Create_struct([blocks, rest], [0, blocks * _BLOCK_BYTES], [block, MPI.BYTE]).Commit()


def _type(dtype: torch.dtype) -> Any:
    if dtype in HALVES:
        return _element(2)
    if dtype not in _MPI_NAMES:
        raise NotImplementedError(f"the MPI backend cannot reduce {dtype}; convert the tensor first.")
    return getattr(load_mpi(), _MPI_NAMES[dtype])


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """Return how MPI does a reduction. Raises NotImplementedError, with the name, for one that it cannot do."""
    # torch hashes an operation by its kind; comparing two of them would take as long as a small message.
    try:
        return _reduction(hash(op), dtype)
    except KeyError:
        raise NotImplementedError(f"the MPI backend has no {op.op.name}.") from None


@functools.cache
def _reduction(kind_hash: int, dtype: torch.dtype) -> Reduction:
    kind = _KINDS[kind_hash]
    if dtype == torch.bool:
        name = _BOOLS.get(kind)
    elif kind in _BITS:
        name = None if dtype.is_floating_point else _BITS[kind]
    else:
        name = _OPS.get(kind)
    mpi_type = _type(dtype)
    if name is None:
        raise NotImplementedError(f"the MPI backend has no {kind.name} of {dtype}.")
    mpi_op = _half_op(name, dtype) if dtype in HALVES else getattr(load_mpi(), name)
    return Reduction(mpi_op, mpi_type, kind == Op.AVG)


def _half_op(name: str, dtype: torch.dtype) -> Any:
    combine = _HALF_OPS[name]

    def apply(source: Any, target: Any, datatype: Any) -> None:
        if len(target):
            right = torch.frombuffer(target, dtype=dtype)
            # MPI passes the source read-only; a writable view of the same memory saves a copy and a warning.
            left = torch.frombuffer(load_mpi().buffer.fromaddress(source.address, len(source)), dtype=dtype)
            combine(left, right, out=right)

    return load_mpi().Op.Create(apply, commute=True)


def divide(host: Tensor, size: int) -> None:
    """Divide a sum over ``size`` ranks in place, to get the average. Integers are truncated, as NCCL does."""
    with torch.inference_mode():
        host.div_(size, rounding_mode=None if host.is_floating_point() else "trunc")
