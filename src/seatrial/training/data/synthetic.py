"""Labeled images made from a seed: they can be learned, need no files, and have any shape and number.

Each class has one random pattern; an image is the pattern of its class under strong noise. Only integer random numbers
are used: their bits are the same on every processor, so each rank makes the same set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


_PATTERN_SEED = 20_261
_PATTERN_HEIGHT = 22
"""Distance of a pattern's pixels from the middle gray, up or down."""
_NOISE_HEIGHT = 31
"""Largest value of each of the four uniform terms of the noise, up or down: together a standard deviation of about
36."""


def make_images(shape: tuple[int, int, int], num_samples: int, *, seed: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return images, uint8 (num_samples, C, H, W), and labels, int64 (num_samples,); ``shape`` is (C, H, W).

    The patterns belong to the shape and the number of classes. ``seed`` decides only which samples are drawn, so sets
    with different seeds (training and test) show the same classes.
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
