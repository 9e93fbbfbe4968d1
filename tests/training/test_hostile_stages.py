"""A rank of a pipeline that has its neighbors read pickled objects, by which Python runs what their sender likes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from training.rank_processes import run_ranks

from seatrial.training.models import build_model
from seatrial.training.recipe import Recipe
from seatrial.training.step_clock import StepClock
from seatrial.training.strategies.pipeline import build

_RECIPE = Recipe(
    workload="digits",
    model="mlp",
    strategy="pipeline",
    max_steps=1,
    global_batch_size=8,
    lr=0.1,
    model_parallel_size=2,
    num_microbatches=2,
)


_LIARS = (0, 3)
"""The first stage of one pipeline, and the last one of the other."""


def _first_step(rank: int) -> str:
    """The error of this rank in the first step of two pipelines."""
    group, cpu, shape = dist.group.WORLD, torch.device("cpu"), _RECIPE.data().shape
    assert group is not None
    model = build_model(_RECIPE.model, shape, 10, _RECIPE.seed)
    strategy = build(model, _RECIPE, device=cpu, group=group, clock=StepClock(cpu))
    if rank in _LIARS:
        _vote_against_all(rank, strategy._group)
        return ""
    try:
        strategy.forward(torch.zeros(4, *shape), torch.zeros(4, dtype=torch.long), 1.0)
    except (RuntimeError, OSError) as error:
        return str(error)
    return ""


def _vote_against_all(rank: int, group: dist.ProcessGroup) -> None:
    """Vote as a stage does that lacks a shape: then torch exchanges objects."""
    no, peer = torch.zeros(1, dtype=torch.int32), rank ^ 1
    if rank == 0:
        dist.send(no, peer, group=group)
    dist.recv(torch.zeros_like(no), peer, group=group)
    if rank == 3:
        dist.send(no, peer, group=group)


@pytest.mark.skipif(not hasattr(PipelineStage, "_warmup_forward_vote"), reason="the stages of this torch hold no vote")
def test_a_stage_that_asks_for_pickled_objects_is_refused() -> None:
    errors = run_ranks(4, _first_step)
    assert "pickled" in errors[1]
    assert "pickled" in errors[2]
