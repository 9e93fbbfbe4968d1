"""Labelled images made from a seed: learnable, without files, of any shape and number.

Each class has one random pattern; an image is the pattern of its class under strong noise. Only integer
random numbers are used: they are the same bits on every processor, so each rank makes the same set for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["make_images"]

_PATTERN_SEED = 20_261
_PATTERN_HEIGHT = 22
"""How far a pattern moves a pixel from the middle grey, to either side."""
_NOISE_HEIGHT = 31
"""Each of the four uniform terms of the noise reaches this far to either side: a standard deviation of about 36."""


def make_images(shape: tuple[int, int, int], num_samples: int, *, seed: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Images, uint8 of shape (num_samples, channels, height, width), and labels, int64.

    The patterns belong to the shape and the number of classes; ``seed`` only decides which samples are drawn, so sets
    with different seeds (one to train, one to test) show the same classes.
    """
    import torch

    patterns = (
        2 * torch.randint(0, 2, (num_classes, *shape), generator=torch.Generator().manual_seed(_PATTERN_SEED)) - 1
    )
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, num_classes, (num_samples,), generator=generator)
    images = 128 + _PATTERN_HEIGHT * patterns[labels]
    for _ in range(4):
        images += torch.randint(-_NOISE_HEIGHT, _NOISE_HEIGHT + 1, images.shape, generator=generator)
    return images.to(torch.uint8), labels
