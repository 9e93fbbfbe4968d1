"""Batches, made where they are used: the whole data set is kept on the device, one byte per pixel.

There are no worker processes, so nothing is forked after the group was formed, no shared memory can run out, and no
order depends on which process was faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seatrial.training.augment import augment
from seatrial.training.data import Workload
from seatrial.training.recipe import AUGMENTATIONS, Recipe
from seatrial.training.sampling import Shard, shard


def layout(recipe: Recipe, device: torch.device) -> torch.memory_format:
    """Return the memory layout of images and filters: NHWC if the recipe asks for it, and where a CPU gains by it.

    The convnet's steps take 0.79 to 0.97 of the time in NHWC, those of resnet18 0.92 to 1.26
    (bench/results/layouts.json). The other strategies cut the parameters, which must then be contiguous.
    """
    gains = device.type == "cpu" and recipe.model == "convnet" and recipe.strategy in ("ddp", "dp")
    return torch.channels_last if recipe.channels_last or gains else torch.contiguous_format


class Batches:
    """The data of one recipe on one device."""

    def __init__(self, recipe: Recipe, workload: Workload, device: torch.device) -> None:
        self.workload = workload
        self.device = device
        self._recipe = recipe
        self._augmentation = AUGMENTATIONS[recipe.augment]
        self._format = layout(recipe, device)
        data = workload.load()
        self._train = (data.train_images.to(device), data.train_labels.to(device))
        self._test = (data.test_images.to(device), data.test_labels.to(device))

    def shard(self, step: int, data_rank: int, data_size: int) -> Shard:
        """Return the samples of one share at a step, counted from 0; ``data_size`` is the number of shares."""
        return shard(
            num_samples=self.workload.num_train,
            global_batch_size=self._recipe.global_batch_size,
            seed=self._recipe.seed,
            step=step,
            rank=data_rank,
            world_size=data_size,
        )

    def train(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Return training images, float32 (N, C, H, W), normalized and augmented, and labels, int64 (N,).

        ``indices``: sample numbers, int64 (N,).
        """
        images, labels = self._train
        indices = indices.to(self.device)
        picked = images.index_select(0, indices)
        picked = augment(picked, indices, self._augmentation, seed=self._recipe.seed, epoch=epoch)
        return self._normalize(picked), labels.index_select(0, indices)

    def test(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return test images and labels in the shapes of ``train``, normalized but not augmented."""
        images, labels = self._test
        return self._normalize(images.index_select(0, indices)), labels.index_select(0, indices)

    def _normalize(self, images: Tensor) -> Tensor:
        floats = images.float().sub_(self.workload.mean).div_(self.workload.std)
        return floats.contiguous(memory_format=self._format)
