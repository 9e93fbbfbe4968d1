"""A first rank that lies about the buckets of DDP, which C++ takes as indices into the memory of the other ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from training.rank_processes import run_jobs

from seatrial.training.step_clock import StepClock
from seatrial.training.strategies.ddp import wrap
from seatrial.worker.failures import cause_of

_ProcessGroup: Any = dist.ProcessGroup
_CPU = torch.device("cpu")
_COUNT, _SHAPES, _ORDER, _SIZES = range(4)
"""The messages of integers, in the order in which DDP sends them for a model without buffers."""


def _first(value: int) -> Callable[[Tensor], object]:
    return lambda numbers: numbers[:1].fill_(value)


def _last(value: int) -> Callable[[Tensor], object]:
    return lambda numbers: numbers[-1:].fill_(value)


def _twice(numbers: Tensor) -> None:
    numbers[1] = numbers[0]


_LIES: dict[str, tuple[int, Callable[[Tensor], object]]] = {
    "fewer parameters": (_COUNT, _first(2)),
    "a number of parameters that no int holds": (_COUNT, _first(2**40)),
    "another shape": (_SHAPES, _first(5)),
    "an index beyond all parameters": (_ORDER, _first(2**30)),
    "the index after the last": (_ORDER, _first(6)),
    "a negative index": (_ORDER, _first(-1)),
    "one index twice": (_ORDER, _twice),
    "more buckets than parameters": (_ORDER, _last(2**30)),
    "no buckets": (_ORDER, _last(0)),
    "a negative number of buckets": (_ORDER, _last(-1)),
    "a large bucket": (_SIZES, _last(2**31 - 1)),
    "an empty bucket": (_SIZES, _last(0)),
    "a negative size": (_SIZES, _last(-1)),
    "too few parameters in buckets": (_SIZES, _last(1)),
}
_COMPILED = "no buckets, to a compiled model"


class _Liar(_ProcessGroup):  # type: ignore[misc]
    """The group of a rank that changes one message of integers before it sends it."""

    def __init__(self, real: Any, message: int, change: Callable[[Tensor], object]) -> None:
        super().__init__(real.rank(), real.size())
        self._real, self._left, self._change = real, message, change

    def getBackendName(self) -> str:  # noqa: N802
        return "liar"

    def allreduce(self, tensors: Any, opts: Any) -> Any:
        return self._real.allreduce(tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return self._real.allgather(outputs, [self._said(inputs[0])], opts)

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        return self._real.broadcast([self._said(tensors[0])], opts)

    def _said(self, tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return tensor
        if self._left < 0:
            raise ConnectionError("the lie is told, and the other rank may answer no more")
        said = tensor.clone()
        if self._left == 0:
            self._change(said)
        self._left -= 1
        return said


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    # BatchNorm has its gradients in another order where a share has no images.
    normalized = nn.BatchNorm2d(4, track_running_stats=False)
    return nn.Sequential(nn.Conv2d(1, 4, 3), normalized, nn.Flatten(), nn.Linear(4 * 6 * 6, 2))


def _hear(rank: int, lie: str, compiled: bool) -> str:
    """Build, and begin the second step; return the cause of what ended that here."""
    group: Any = dist.group.WORLD
    try:
        model: Any = wrap(_model(), _CPU, _Liar(group, *_LIES[lie]) if rank == 0 else group, StepClock(_CPU))
        model = torch.compile(model, backend="eager") if compiled else model
        model(torch.ones(4, 1, 8, 8)).sum().backward()
        model(torch.ones(4, 1, 8, 8))
    except (OSError, RuntimeError) as error:
        return f"{cause_of(error)}: {error}"
    return ""


def _train(rank: int, sizes: Sequence[int]) -> bool:
    """Train with the group of ``wrap`` and with the plain one; return whether both come to the same bits."""
    group: Any = dist.group.WORLD
    plain = DistributedDataParallel(_model(), process_group=group, gradient_as_bucket_view=True)
    results = []
    for model in (wrap(_model(), _CPU, group, StepClock(_CPU)), plain):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            images = torch.full((sizes[rank], 1, 8, 8), 0.1 * step) + torch.arange(8) / 8
            model(images).square().sum().backward()
            optimizer.step()
        results.append([value.detach().clone() for value in model.parameters()])
    return all(map(torch.equal, *results))


@pytest.fixture(scope="module")
def ranks() -> dict[str, list[Any]]:
    jobs = {lie: (_hear, (lie, False)) for lie in _LIES} | {_COMPILED: (_hear, ("no buckets", True))}
    return run_jobs(2, {**jobs, "both have images": (_train, ((4, 3),)), "one has none": (_train, ((4, 0),))})


@pytest.mark.parametrize("lie", [*_LIES, _COMPILED])
def test_a_first_rank_that_lies_to_ddp_ends_others_with_an_error(ranks: dict[str, list[Any]], lie: str) -> None:
    assert ranks[lie][1].startswith("fabric: DDP: this rank received ")


@pytest.mark.parametrize("shares", ["both have images", "one has none"])
def test_honest_ranks_train_to_the_bits_of_the_plain_group(ranks: dict[str, list[Any]], shares: str) -> None:
    assert ranks[shares] == [True, True]
