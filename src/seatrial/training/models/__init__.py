"""Which models can be trained, by name: one file a model. torch is imported when a model is built."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import TYPE_CHECKING

from seatrial.errors import RequestError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MODELS", "build_model", "find_model"]

MODELS: dict[str, tuple[str, str]] = {
    "toy": ("toy", "Toy"),
    "mlp": ("mlp", "Mlp"),
    "convnet": ("convnet", "ConvNet"),
    "resnet18": ("resnet18", "ResNet18"),
}
"""Name -> file here, and class in it, which is made from (channels, height, width) and the number of classes."""


def find_model(name: str) -> tuple[str, str]:
    """The entry of ``MODELS``. Raises RequestError for an unknown name, with the nearest one that exists."""
    if name in MODELS:
        return MODELS[name]
    nearest = get_close_matches(name, MODELS, n=1, cutoff=0.0)[0]
    raise RequestError(f"unknown model {name!r}; did you mean {nearest!r}? Known: {', '.join(MODELS)}.")


def build_model(name: str, shape: tuple[int, int, int], num_classes: int, seed: int) -> nn.Module:
    """The model of that name on the CPU, float32. The seed alone decides the parameters: the same bits on all ranks.

    They are drawn on the CPU, whose generator gives the same numbers everywhere; torch's own state is left as it was.
    """
    import torch

    file, kind = find_model(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = getattr(importlib.import_module(f"{__name__}.{file}"), kind)(shape, num_classes)
    return model
