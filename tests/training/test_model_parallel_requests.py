"""Requests that model parallelism refuses, each with one sentence, before any group is made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from seatrial.errors import RequestError
from seatrial.training.models import build_model
from seatrial.training.recipe import Recipe
from seatrial.training.step_clock import StepClock
from seatrial.training.strategies.strategy import find_strategy

CPU = torch.device("cpu")
RECIPE = Recipe(workload="digits", model="mlp", max_steps=1, global_batch_size=64, lr=0.1)


class _StubGroup:
    """A group that only knows how many ranks it has."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return 0


def _build(recipe: Recipe, world_size: int, model: nn.Module | None = None) -> None:
    group: Any = _StubGroup(world_size)
    built = model or build_model(recipe.model, recipe.data().shape, 10, recipe.seed)
    find_strategy(recipe.strategy)(built, recipe, device=CPU, group=group, clock=StepClock(CPU))


@pytest.mark.parametrize(
    ("changes", "world_size", "message"),
    [
        ({}, 1, r"1 ranks cannot be divided into pipelines of 2 stages \(--model-parallel-size\)"),
        ({}, 5, "5 ranks cannot be divided into pipelines of 2 stages"),
        ({"model_parallel_size": 4}, 2, "2 ranks cannot be divided into pipelines of 4 stages"),
        ({"model_parallel_size": 3}, 3, "model mlp has 2 blocks with parameters, too few for 3 stages"),
        ({"num_microbatches": 1}, 4, r"1 microbatches \(--num-microbatches\) do not fill 2 stages"),
        ({"global_batch_size": 7}, 4, "a global batch of 7 gives a pipeline 3 samples, fewer than its 4 microbatches"),
        ({"model": "resnet18"}, 4, "model resnet18 .*; use ddp or fsdp"),
        ({"compile": True}, 4, "compile was not verified"),
        ({"channels_last": True}, 4, "channels_last was not verified"),
    ],
)
def test_pipeline_refuses(changes: dict[str, Any], world_size: int, message: str) -> None:
    with pytest.raises(RequestError, match=rf"^strategy pipeline: .*{message}"):
        _build(replace(RECIPE, strategy="pipeline", **changes), world_size)


class _StagedNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


def test_pipeline_refuses_batch_norm_in_models_that_have_stages() -> None:
    with pytest.raises(RequestError, match="has BatchNorm, which would normalize by a microbatch instead of the batch"):
        _build(replace(RECIPE, strategy="pipeline"), 2, _StagedNorms())


class _Forgetful(_StagedNorms):
    def blocks(self) -> list[nn.Module]:
        return list(self.layers)[:2]


def test_blocks_that_leave_parameters_out_are_noticed() -> None:
    model = _Forgetful()
    model.layers[2] = nn.Identity()
    with pytest.raises(ValueError, match="do not contain all of its parameters"):
        _build(replace(RECIPE, strategy="pipeline"), 2, model)


@pytest.mark.parametrize(
    ("changes", "world_size", "message"),
    [
        ({}, 3, r"3 ranks cannot be divided into groups of 2 \(--model-parallel-size\)"),
        ({}, 1, "1 ranks cannot be divided into groups of 2"),
        ({"model_parallel_size": 3}, 3, "layer hidden of mlp has 128 outputs, which 3 ranks .* cannot share evenly"),
        ({"model": "toy", "model_parallel_size": 4}, 4, "layer net1 of toy has 10 outputs"),
        ({"model": "convnet"}, 4, "model convnet has no layers that can be cut; use toy or mlp"),
        ({"model": "resnet18"}, 4, "model resnet18 has no layers that can be cut"),
        ({"compile": True}, 4, "torch.compile was not verified"),
        ({"channels_last": True}, 4, "channels_last cannot be sharded"),
    ],
)
def test_tensor_refuses(changes: dict[str, Any], world_size: int, message: str) -> None:
    with pytest.raises(RequestError, match=rf"^strategy tensor: .*{message}"):
        _build(replace(RECIPE, strategy="tensor", **changes), world_size)


@pytest.mark.parametrize("setting", ["compile", "channels_last"])
def test_fsdp_refuses_what_was_not_verified(setting: str) -> None:
    changes: dict[str, Any] = {setting: True}
    with pytest.raises(RequestError, match=r"^strategy fsdp: .*leave"):
        _build(replace(RECIPE, strategy="fsdp", **changes), 2)


@pytest.mark.parametrize(("name", "value"), [("model_parallel_size", 1), ("num_microbatches", 0)])
def test_sizes_that_mean_nothing_are_refused(name: str, value: int) -> None:
    changes: dict[str, Any] = {name: value}
    with pytest.raises(RequestError, match=rf"training.{name} is {value}; it must be "):
        replace(RECIPE, **changes)


@pytest.mark.parametrize("name", ["toy", "mlp", "convnet"])
def test_the_blocks_of_a_model_are_its_forward(name: str) -> None:
    model: Any = build_model(name, (1, 8, 8), 10, seed=3)
    images = torch.randn(2, 1, 8, 8)
    values = images
    for block in model.blocks():
        values = block(values)
    assert torch.equal(values, model(images))
