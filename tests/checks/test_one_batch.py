"""One batch, the same on all ranks: the same bits each time, and other bits when any part of it differs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from seatrial.checks.training.one_batch import OneBatch, compute_one_batch
from seatrial.training.models import MODELS
from seatrial.training.recipe import Recipe

RECIPE = Recipe(workload="digits", model="convnet", max_steps=1, global_batch_size=64, lr=0.1)
CPU = torch.device("cpu")


def _computed(recipe: Recipe = RECIPE, local_count: int = 8, device: torch.device = CPU) -> OneBatch:
    return compute_one_batch(recipe, recipe.data(), device=device, local_count=local_count)


def test_the_batch_comes_from_the_recipe_alone() -> None:
    first = _computed()
    torch.manual_seed(1234)
    assert _computed() == first
    other = _computed(replace(RECIPE, seed=2))
    assert (other.scores != first.scores, other.gradients != first.gradients) == (True, True)


@pytest.mark.parametrize("model", MODELS)
def test_a_share_of_one_image_can_be_computed_too_and_again(model: str) -> None:
    first, again = (_computed(replace(RECIPE, model=model), local_count=1) for _ in range(2))
    assert first == again


@pytest.mark.gpu
@pytest.mark.parametrize("model", MODELS)
def test_an_accelerator_repeats_itself(model: str) -> None:
    recipe = replace(RECIPE, model=model)
    assert len({_computed(recipe, 64, torch.device("cuda", 0)) for _ in range(10)}) == 1


def test_of_a_large_share_64_images_are_computed() -> None:
    assert _computed(local_count=100) == _computed(local_count=64) != _computed(local_count=63)


def test_a_wrong_gradient_shows_in_the_gradients_only(monkeypatch: pytest.MonkeyPatch) -> None:
    right = _computed()
    backward = torch.Tensor.backward

    def spoiled(self: torch.Tensor, *arguments: object) -> None:
        backward(self, 1.0000001 * torch.ones_like(self))  # type: ignore[no-untyped-call]

    monkeypatch.setattr(torch.Tensor, "backward", spoiled)
    wrong = _computed()
    assert (wrong.scores, wrong.gradients != right.gradients) == (right.scores, True)


@pytest.mark.parametrize("mode", ["default", "error"])
def test_torch_settings_are_restored(mode: str) -> None:
    before = torch.get_deterministic_debug_mode()
    try:
        torch.set_deterministic_debug_mode(mode)
        during = torch.get_deterministic_debug_mode()
        _computed()
        assert torch.get_deterministic_debug_mode() == during
    finally:
        torch.set_deterministic_debug_mode(before)
