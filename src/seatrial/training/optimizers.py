"""The optimizer of a recipe."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from seatrial.training.recipe import Recipe


def make_optimizer(recipe: Recipe, parameters: list[nn.Parameter], device: torch.device) -> torch.optim.Optimizer:
    """Return the optimizer of a recipe, fused where torch has it: one pass over each parameter, on a GPU one kernel for
    all.

    Adam uses betas 0.9 and 0.999. Parameters that are spread over ranks (DTensor) get no fused optimizer, since torch
    has no fused SGD for them.
    """
    kinds: dict[str, type[torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    kind = kinds[recipe.optimizer]
    options: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
    if recipe.optimizer == "sgd":
        options.update(momentum=recipe.momentum, nesterov=recipe.momentum > 0)
    spread = any(hasattr(parameter, "to_local") for parameter in parameters)
    if device.type in ("cpu", "cuda") and not spread and "fused" in inspect.signature(kind).parameters:
        options["fused"] = True
    return kind(parameters, **options)
