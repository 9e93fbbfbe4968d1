"""Random crops and flips on the device: a pure function of (seed, epoch, sample), whatever rank holds the sample."""

from __future__ import annotations

import torch
from torch import Tensor

from seatrial.training.randomness import LOW_BITS, derive, mix
from seatrial.training.recipe import Augmentation


def augment(images: Tensor, indices: Tensor, augmentation: Augmentation, *, seed: int, epoch: int) -> Tensor:
    """Return each image shifted and mirrored by random numbers that belong to its sample; the same bits on every
    device.

    With ``crop_padding`` p, p black pixels are put around an image and a part of the old size is cut out, at each of
    the (2 p + 1)**2 positions with equal probability. With ``flip``, half of the images are mirrored.

    Args:
        images: Shape (N, C, H, W), any type.
        indices: Shape (N,), int64, on the same device: numbers of these samples in the whole training part.
        augmentation: Which of the two to do.
        seed: Seed of the training.
        epoch: Counted from 0.

    Returns:
        The images with unchanged shape (N, C, H, W) and type.
    """
    if augmentation == Augmentation():
        return images
    count, channels, height, width = images.shape
    sample = mix(mix(indices & LOW_BITS) ^ derive(seed, epoch))
    rows = torch.arange(height, device=images.device).expand(count, height)
    columns = torch.arange(width, device=images.device).expand(count, width)
    if augmentation.flip:
        columns = torch.where(_draw(sample, 0, 2)[:, None] == 1, width - 1 - columns, columns)
    padding = augmentation.crop_padding
    if padding:
        images = torch.nn.functional.pad(images, (padding,) * 4)
        rows = rows + _draw(sample, 1, 2 * padding + 1)[:, None]
        columns = columns + _draw(sample, 2, 2 * padding + 1)[:, None]
    pixels = rows[:, :, None] * images.shape[3] + columns[:, None, :]
    picked = images.flatten(2).gather(2, pixels.view(count, 1, height * width).expand(-1, channels, -1))
    return picked.view(count, channels, height, width)


def _draw(sample: Tensor, number: int, below: int) -> Tensor:
    """Return the ``number``-th random integer of each sample, from 0 to ``below`` - 1, shape (N,): the high bits of a
    64-bit product.

    Lemire, Fast Random Integer Generation in an Interval, 2019; some values are likelier by ``below`` / 2**32.
    """
    return (mix((sample + number * 0x9E37_79B9) & LOW_BITS) * below) >> 32
