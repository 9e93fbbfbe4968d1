"""Models: their sizes, their initial values, and the methods that strategies need."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seatrial.training.digest import digest
from seatrial.training.models import MODELS, build_model

SIZES = {
    ("toy", (10, 1, 1)): 10 * 10 + 10 + 10 * 10 + 10,
    ("mlp", (1, 28, 28)): 784 * 128 + 128 + 128 * 10 + 10,
    ("convnet", (1, 8, 8)): 25_866,
    ("resnet18", (3, 32, 32)): 11_173_962,
}


@pytest.mark.parametrize(("name", "shape"), SIZES, ids=str)
def test_the_number_of_parameters_is_the_known_one(name: str, shape: tuple[int, int, int]) -> None:
    model = build_model(name, shape, 10, seed=1)
    assert sum(parameter.numel() for parameter in model.parameters()) == SIZES[name, shape]


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_alone_decides_how_it_begins(name: str) -> None:
    torch.manual_seed(99)
    drawn_before = torch.random.get_rng_state()
    first = build_model(name, (1, 8, 8), 10, seed=1)
    assert torch.equal(torch.random.get_rng_state(), drawn_before)
    torch.manual_seed(100)
    assert digest(build_model(name, (1, 8, 8), 10, seed=1)) == digest(first)
    assert digest(build_model(name, (1, 8, 8), 10, seed=2)) != digest(first)


@pytest.mark.parametrize("name", ["toy", "mlp", "convnet"])
def test_the_blocks_one_after_the_other_are_the_model(name: str) -> None:
    model = build_model(name, (2, 7, 6), 5, seed=1)
    blocks = getattr(model, "blocks")()  # noqa: B009
    images = torch.randn(3, 2, 7, 6)
    assert torch.equal(nn.Sequential(*blocks)(images), model(images))


def test_resnet_keeps_small_images_large() -> None:
    model = build_model("resnet18", (1, 28, 28), 10, seed=1).eval()
    sizes = []
    for name in ("stem", "stage1", "stage2", "stage3", "stage4"):
        model.get_submodule(name).register_forward_hook(lambda module, given, made: sizes.append(made.shape[-1]))
    with torch.no_grad():
        model(torch.zeros(1, 1, 28, 28))
    # The wrong way: the stem for ImageNet is down to 7 before the first block.
    assert sizes == [28, 28, 14, 7, 4]
