"""Forward and backward on one batch that is the same on all ranks, before anything is reduced.

In a training all ranks take over the mean of all gradients, so a wrong one spoils every replica alike and shows
nowhere. Here each rank computes the same by itself, and equal ranks have to arrive at equal bits.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from seatrial.training.data.synthetic import make_images
from seatrial.training.digest import digest_state
from seatrial.training.models import build_model
from seatrial.training.recipe import Recipe

__all__ = ["OneBatch", "compute_one_batch"]

_FEWEST, _MOST = 2, 64
"""Images. BatchNorm needs two of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBatch:
    """What came out, each as SHA-256 in hex."""

    scores: str
    """Of forward."""
    gradients: str
    """Of backward, of all parameters."""


def compute_one_batch(recipe: Recipe, *, device: torch.device, local_count: int) -> OneBatch:
    """Forward and backward of the recipe's model on images of its workload's shape: as many as a rank's share of a
    batch, but 64 at most.

    Model and images come from the seed, so nothing is loaded. Of ways that sum in an order that is left to chance, none
    is taken where there is another one.
    """
    workload = recipe.data()
    model = build_model(recipe.model, workload.shape, workload.num_classes, recipe.seed).to(device)
    num_samples = max(_FEWEST, min(local_count, _MOST))
    images, labels = make_images(workload.shape, num_samples, seed=recipe.seed, num_classes=workload.num_classes)
    inputs = images.to(device).float().sub_(workload.mean).div_(workload.std)
    mode = torch.get_deterministic_debug_mode()
    try:
        torch.set_deterministic_debug_mode("warn")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores = model(inputs)
            cross_entropy(scores, labels.to(device), reduction="sum").backward()  # type: ignore[no-untyped-call]
    finally:
        torch.set_deterministic_debug_mode(mode)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return OneBatch(scores=digest_state({"scores": scores}), gradients=digest_state(gradients))
