"""The parameters of the training check, and the recipe that they mean for a world size."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from seatrial.environment.working_folder import typed_folder
from seatrial.training.data import find_workload, published_sizes
from seatrial.training.data.datasets import DATASETS
from seatrial.training.models import find_model
from seatrial.training.recipe import Recipe, fit_to_world

_LARGEST_BYTES = 2**30
"""Each rank holds all images of its workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Workload, model and optimizer, times, and limits."""

    workload: str = "digits"
    """The training data: ``digits``, ``synthetic-CxHxW``, or a data set of files."""
    data: str = ""
    """Folder with the files of that data set on each node; empty: the default folder (docs/data.md)."""
    model: str = "convnet"
    """The model to train."""
    max_steps: int = 300
    """Number of optimizer steps, unless ``epochs`` is set."""
    epochs: int | None = None
    """Number of epochs, in place of ``max_steps``; None: ``max_steps`` applies."""
    global_batch_size: int = 64
    """Samples a step over all ranks, whatever their number."""
    batch_size: int | None = None
    """Samples a step of each rank, in place of ``global_batch_size``; None: that applies."""
    num_samples: int = 32_768
    """Training samples of a synthetic workload."""
    lr: float = 0.1
    """Learning rate."""
    seed: int = 1
    """Seed of model, data order and synthetic data."""
    duration_s: float = 0.0
    """Seconds for which the training is repeated, each time with the next seed; 0: one training."""
    min_accuracy: float | None = None
    """The user's limit, a share from 0 to 1; None: the stored reference of the recipe, if there is one."""
    timeout_s: float = 60.0
    """Deadline of the step, seconds."""

    def __post_init__(self) -> None:
        """Raise ValueError or RequestError, with a sentence, for a value that cannot be used."""
        # A rank reads files in ``measure`` only, where a fault of them becomes a finding on its node.
        workload = None if self.workload in DATASETS else find_workload(self.workload, num_samples=self.num_samples)
        find_model(self.model)
        for key in ("max_steps", "epochs", "global_batch_size", "batch_size", "num_samples"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"{key} is {value}; it must be at least 1")
        if workload is not None and workload.size_bytes() > _LARGEST_BYTES:
            raise ValueError(
                f"workload is {self.workload} with num_samples {workload.num_train}: {workload.size_bytes()} bytes of "
                f"images on each rank, and at most {_LARGEST_BYTES} are allowed; make the images or num_samples smaller"
            )
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"lr is {self.lr}; it must be above 0")
        if self.min_accuracy is not None and not 0 < self.min_accuracy <= 1:
            raise ValueError(f"min_accuracy is {self.min_accuracy}; it must be above 0 and at most 1")
        if not 0 <= self.duration_s < self.timeout_s:
            raise ValueError(f"duration_s is {self.duration_s:g}; it must fit into timeout_s, {self.timeout_s:g} s")


def data_dir(params: Params) -> Path | None:
    """Return the folder with the files of the workload; None: the default folder."""
    return Path(typed_folder(), os.path.expanduser(params.data)) if params.data else None


def recipe_for(params: Params, world_size: int, num_train: int | None = None) -> tuple[Recipe, str]:
    """Return the recipe that ``world_size`` ranks train, and the key of its reference.

    ``num_train``: the number of training samples that the ranks have compared; None: the published number.

    Raises RequestError when that cannot be trained, as when the global batch is larger than the data.
    """
    recipe = Recipe(
        workload=params.workload,
        model=params.model,
        max_steps=params.max_steps,
        global_batch_size=params.global_batch_size,
        lr=params.lr,
        num_samples=params.num_samples,
        seed=params.seed,
    )
    if num_train is None:
        num_train, _ = published_sizes(params.workload, num_samples=params.num_samples)
    return fit_to_world(recipe, world_size, num_train, batch_size=params.batch_size, epochs=params.epochs)
