"""Forward and backward on one batch that is the same on all ranks, before any reduction.

In a training all ranks apply the mean of all gradients, so a wrong gradient spoils every replica alike and no
comparison shows it. Here each rank computes the same batch by itself, and equal ranks must compute equal bits.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from seatrial.training.data import Workload
from seatrial.training.data.synthetic import make_images
from seatrial.training.digest import digest_state
from seatrial.training.models import build_model
from seatrial.training.recipe import Recipe

_FEWEST, _MOST = 2, 64
"""Least and largest number of images; BatchNorm needs two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBatch:
    """Digests of the results, each SHA-256 in hex."""

    scores: str
    """Digest of the result of forward."""
    gradients: str
    """Digest of the gradients of all parameters, from backward."""


def compute_one_batch(recipe: Recipe, workload: Workload, *, device: torch.device, local_count: int) -> OneBatch:
    """Run forward and backward of the recipe's model on synthetic images, and return the digests of the results.

    Model and images come from the seed. Where torch has deterministic algorithms, it uses them.

    Args:
        recipe: The model and the seed.
        workload: Its images have the shape that is used, and their normalization.
        device: The device of this rank.
        local_count: Samples of a rank's share of a batch; at most 64 are used.
    """
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
