"""Random crops and flips on the device: a pure function of (seed, epoch, sample), whatever rank holds the sample."""

from __future__ import annotations

import torch
from torch import Tensor

from seatrial.training.randomness import LOW_BITS, derive, mix
from seatrial.training.recipe import Augmentation

__all__ = ["augment"]


def augment(images: Tensor, indices: Tensor, augmentation: Augmentation, *, seed: int, epoch: int) -> Tensor:
    """Each image shifted and mirrored by numbers of its own; the same bits on every device.

    ``images`` has shape (N, channels, height, width), ``indices`` shape (N,): the numbers of these samples in the whole
    training part, int64 on the same device. With ``crop_padding`` p, as if p black pixels were put around an image and
    a part of its old size cut out, each of (2 p + 1)**2 places alike; then half of the images are mirrored. Images come
    back with the shape and type they had.
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
    """The ``number``-th random integer of each sample, from 0 to ``below`` - 1: the high bits of a 64-bit product.

    Lemire, Fast Random Integer Generation in an Interval, 2019; some values are likelier by ``below`` / 2**32.
    """
    return (mix((sample + number * 0x9E37_79B9) & LOW_BITS) * below) >> 32
