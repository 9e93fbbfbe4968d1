"""The group of DDP, on which each rank checks the integers of other ranks before C++ reads them.

DDP sends gradients, parameters, and integers: how many parameters there are and of which shapes, and after the first
step in which order and buckets the first rank sums them. C++ takes that order as indices into its own memory, whatever
they are. Honest orders differ where ranks compute in different ways, as a share without images does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_SHOWN = 8
"""Integers of each side that the error shows."""

# Names and types of its methods differ between versions of torch, so mypy must not check against those of one version.
_ProcessGroup: Any = dist.ProcessGroup
_as_it_is: Callable[[Callable[..., Any]], Callable[..., Any]] = torch.compiler.disable
"""C++ calls these methods within the forward of a compiled model, and torch would compile them, too."""


class CheckedGroup(_ProcessGroup):  # type: ignore[misc]
    """Hands on to ``group`` what DDP asks of it; it waits for integers alone, which no later step sends.

    Its methods raise ConnectionError for integers that no rank with this model has.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group.rank(), group.size())
        self._group: Any = group
        self._num_ordered: int | None = None
        """Parameters in the order that has arrived, until the sizes of its buckets arrive."""

    def getBackendName(self) -> str:  # noqa: N802
        # Where this is the name of Gloo, DDP asks more of it, which only Gloo itself can answer.
        return "seatrial_checked"

    @_as_it_is
    def allreduce(self, tensors: Sequence[Tensor], opts: Any) -> Any:
        return self._group.allreduce(tensors, opts)

    @_as_it_is
    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Any:
        (tensor,) = tensors
        own = None if tensor.is_floating_point() else tensor.tolist()
        work = self._group.broadcast(tensors, opts)
        if own is not None:
            work.wait()
            received = tensor.tolist()
            is_sound = self._are_buckets(received, own) if tensor.dtype == torch.int32 else received == own
            _require(is_sound, received, own)
        return work

    @_as_it_is
    def allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> Any:
        work = self._group.allgather(outputs, inputs, opts)
        work.wait()
        own = inputs[0].tolist()
        for tensor in outputs[0]:
            received = tensor.tolist()
            _require(received == own, received, own)
        return work

    def _are_buckets(self, received: list[int], own: list[int]) -> bool:
        """Check one of the two messages of the first rank: the order of the parameters with the number of buckets
        behind it, then the size of each bucket."""
        if self._num_ordered is None:
            *order, num_buckets = received
            self._num_ordered = len(order)
            return sorted(order) == sorted(own[:-1]) and 1 <= num_buckets <= len(order)
        num_ordered, self._num_ordered = self._num_ordered, None
        return min(received) >= 1 and sum(received) == num_ordered


def _require(is_sound: bool, received: list[int], own: list[int]) -> None:
    if not is_sound:
        at = next((at for at, pair in enumerate(zip(received, own, strict=True)) if pair[0] != pair[1]), 0)
        raise ConnectionError(
            f"DDP: this rank received {received[at : at + _SHOWN]} where it has {own[at : at + _SHOWN]} itself (the "
            f"first {_SHOWN}), as numbers, shapes or buckets of the parameters. All ranks build one model: the fabric, "
            "or what another rank runs, is at fault; compare the versions of torch on the hosts."
        )
