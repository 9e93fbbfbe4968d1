"""One batch, the same on all ranks: the same bits each time, and other ones when anything in it is other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from seatrial.training.models import MODELS
from seatrial.training.one_batch import OneBatch, compute_one_batch
from seatrial.training.recipe import Recipe

RECIPE = Recipe(workload="digits", model="convnet", max_steps=1, global_batch_size=64, lr=0.1)
CPU = torch.device("cpu")


def _computed(recipe: Recipe = RECIPE, local_count: int = 8) -> OneBatch:
    return compute_one_batch(recipe, device=CPU, local_count=local_count)


@pytest.mark.parametrize("model", MODELS)
def test_it_comes_from_the_recipe_alone(model: str) -> None:
    recipe = replace(RECIPE, model=model)
    first = _computed(recipe)
    torch.manual_seed(1234)
    assert _computed(recipe) == first
    other = _computed(replace(recipe, seed=2))
    assert (other.scores != first.scores, other.gradients != first.gradients) == (True, True)


def test_a_share_of_one_image_can_be_computed_too() -> None:
    for model in MODELS:
        _computed(replace(RECIPE, model=model), local_count=1)
    assert _computed(local_count=100) == _computed(local_count=64)


def test_a_wrong_gradient_shows_in_the_gradients_only(monkeypatch: pytest.MonkeyPatch) -> None:
    right = _computed()
    backward = torch.Tensor.backward

    def spoiled(self: torch.Tensor, *arguments: object) -> None:
        backward(self, 1.0000001 * torch.ones_like(self))

    monkeypatch.setattr(torch.Tensor, "backward", spoiled)
    wrong = _computed()
    assert (wrong.scores, wrong.gradients != right.gradients) == (right.scores, True)


@pytest.mark.parametrize("mode", ["default", "error"])
def test_how_torch_was_set_is_left_as_it_was(mode: str) -> None:
    before = torch.get_deterministic_debug_mode()
    try:
        torch.set_deterministic_debug_mode(mode)
        during = torch.get_deterministic_debug_mode()
        _computed()
        assert torch.get_deterministic_debug_mode() == during
    finally:
        torch.set_deterministic_debug_mode(before)
