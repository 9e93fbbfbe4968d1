"""The models, by name: one file per model. torch is imported when a model is built."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import TYPE_CHECKING

from seatrial.errors import RequestError

if TYPE_CHECKING:
    from torch import nn


MODELS: dict[str, tuple[str, str]] = {
    "toy": ("toy", "Toy"),
    "mlp": ("mlp", "Mlp"),
    "convnet": ("convnet", "ConvNet"),
    "resnet18": ("resnet18", "ResNet18"),
}
"""Name -> file here, and the class in it; its arguments are (channels, height, width) and the number of classes."""


def find_model(name: str) -> tuple[str, str]:
    """Return the entry of ``MODELS``. Raises RequestError for an unknown name; the message suggests the closest known
    one."""
    if name in MODELS:
        return MODELS[name]
    near = get_close_matches(name.lower(), MODELS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise RequestError(f"unknown model {name!r}{hint} Known: {', '.join(MODELS)}.")


def build_model(name: str, shape: tuple[int, int, int], num_classes: int, seed: int) -> nn.Module:
    """Return the model of that name on the CPU, float32. The seed alone decides the parameters: the same bits on all
    ranks.

    They are drawn on the CPU, whose generator gives the same numbers everywhere. Torch's own generator state is left
    unchanged. ``shape`` is (C, H, W).
    """
    import torch

    file, class_name = find_model(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = getattr(importlib.import_module(f"{__name__}.{file}"), class_name)(shape, num_classes)
    return model
