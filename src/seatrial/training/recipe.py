"""Everything that decides the result of a training, in one record."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from seatrial.errors import RequestError
from seatrial.training.data import Workload, find_workload
from seatrial.training.models import find_model
from seatrial.training.strategies import STRATEGIES

MAX_DIGITS_RANKS = 32
"""With more ranks, a rank's share of a batch of digits would be too small to mean anything."""
_WORLD_WORKLOAD = "synthetic-1x8x8"
_WORLD_BATCH_SIZE = 16
_WORLD_SAMPLES = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """How training images are varied; ``augment.py`` does it."""

    crop_padding: int = 0
    """Black pixels added on each side of an image before a part of the old size is cut out; 0: the image is not
    shifted."""
    flip: bool = False
    """Whether half of the images are mirrored, left to right."""


AUGMENTATIONS = {
    "none": Augmentation(),
    "flip": Augmentation(flip=True),
    "crop-flip": Augmentation(crop_padding=4, flip=True),
}
"""The values of ``augment``."""

CHOICES: dict[str, tuple[str, ...]] = {
    "optimizer": ("sgd", "adam", "adamw"),
    "schedule": ("ramp", "constant", "cosine", "step"),
    "amp": ("off", "bf16", "fp16"),
    "augment": tuple(AUGMENTATIONS),
    "strategy": tuple(STRATEGIES),
}
"""Field of ``Recipe`` -> its allowed values."""

_SPLITS = (("model_parallel_size", 2), ("num_microbatches", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One training. The number of ranks is not part of it: the global batch is the same for any number.

    Raises RequestError for values that cannot be trained.
    """

    workload: str
    model: str
    epochs: int | None = None
    """Passes over the training part; 0 evaluates the untrained model. Exactly one of this and ``max_steps`` is
    given."""
    max_steps: int | None = None
    """Optimizer steps, in place of ``epochs``."""
    global_batch_size: int
    """Samples per step over all ranks. The last batch of an epoch has the remaining samples."""
    optimizer: str = "sgd"
    """``sgd`` with Nesterov momentum, ``adam`` or ``adamw``."""
    lr: float
    """Highest learning rate; see ``schedule``."""
    momentum: float = 0.9
    """Momentum of sgd; adam and adamw use betas 0.9 and 0.999."""
    weight_decay: float = 5e-4
    schedule: str = "ramp"
    """``ramp``: rises linearly over the first fifth of the steps, then falls to nearly 0; ``constant``; ``cosine``:
    falls from ``lr`` to 0 along half a cosine; ``step``: a tenth after half of the steps, a hundredth after three
    quarters."""
    seed: int = 1
    """Decides the initial parameters, the order of the samples, augmentation and dropout."""
    augment: str = "none"
    """``none``; ``flip``: mirrored left to right at random; ``crop-flip``: also shifted by up to 4 pixels."""
    amp: str = "off"
    """Type of the numbers in forward and backward (``off``, ``bf16``, ``fp16``); the parameters stay float32."""
    strategy: str = "ddp"
    """How the ranks share the work: a name in ``training/strategies``."""
    model_parallel_size: int = 2
    """Neighboring ranks that hold one copy of the model together: pipeline stages, or parts of a layer with tensor. The
    other strategies ignore it."""
    num_microbatches: int = 4
    """Parts into which pipeline divides each share of a batch."""
    compile: bool = False
    """Whether to compile the wrapped model with torch.compile."""
    channels_last: bool = False
    """Whether to use the NHWC memory layout everywhere; see ``batches.layout``."""
    num_samples: int = 32_768
    """Training samples of a synthetic workload."""

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.max_steps is None):
            raise RequestError(
                f"training: epochs is {self.epochs} and max_steps is {self.max_steps}; give exactly one of them."
            )
        for name, low in (("epochs", 0), ("max_steps", 0), ("global_batch_size", 1), ("num_samples", 1), *_SPLITS):
            value = getattr(self, name)
            if value is not None and value < low:
                raise RequestError(f"training.{name} is {value}; it must be {low} or more.")
        if not 0 < self.lr < math.inf:
            raise RequestError(f"training.lr is {self.lr}; it must be a positive number.")
        if not 0 <= self.momentum < 1:
            raise RequestError(f"training.momentum is {self.momentum}; it must be at least 0 and below 1.")
        if not 0 <= self.weight_decay < math.inf:
            raise RequestError(f"training.weight_decay is {self.weight_decay}; it must be 0 or a positive number.")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise RequestError(f"training.{name} is {getattr(self, name)!r}; known: {', '.join(known)}.")
        find_model(self.model)

    def data(self, data_dir: Path | None = None) -> Workload:
        """Return the workload of this recipe, with its files, if any, in ``data_dir``.

        Raises RequestError when it is unknown or has fewer training samples than a batch.
        """
        workload = find_workload(self.workload, num_samples=self.num_samples, data_dir=data_dir)
        self.require_enough(workload.num_train)
        return workload

    def require_enough(self, num_train: int) -> None:
        """Raise RequestError where ``num_train`` samples are fewer than a batch."""
        if self.global_batch_size > num_train:
            raise RequestError(
                f"training: the global batch of {self.global_batch_size} is larger than the {num_train} "
                f"training samples of {self.workload}; make it smaller."
            )

    def steps_per_epoch(self, num_train: int) -> int:
        """Return the number of batches in a pass over ``num_train`` samples; the last one may be short."""
        return -(-num_train // self.global_batch_size)

    def num_steps(self, num_train: int) -> int:
        """Return the optimizer steps of the whole training."""
        if self.max_steps is not None:
            return self.max_steps
        return (self.epochs or 0) * self.steps_per_epoch(num_train)

    def lr_at(self, step: int, num_steps: int) -> float:
        """Return the learning rate of a step, counted from 0: a pure function, so there is no scheduler to save."""
        if self.schedule == "ramp":
            ramp = max(1, num_steps // 5)
            return self.lr * min((step + 1) / ramp, (num_steps - step) / (num_steps - ramp + 1))
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * step / num_steps))
        if self.schedule == "step":
            return self.lr * (1.0 if 2 * step < num_steps else 0.1 if 4 * step < 3 * num_steps else 0.01)
        return self.lr

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name, for JSON and for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Recipe:
        """Make a recipe from what ``to_json`` returned. Raises RequestError for an unknown or missing name, or a wrong
        type."""
        known = {field.name: field for field in fields(cls)}
        unknown = sorted(values.keys() - known.keys())
        missing = sorted(known.keys() - values.keys())
        if unknown or missing:
            difference = f"unknown: {', '.join(unknown)}" if unknown else f"missing: {', '.join(missing)}"
            raise RequestError(
                f"this recipe was not written by this version of seatrial ({difference}); start a new training."
            )
        for name, value in values.items():
            kinds = _KINDS[str(known[name].type)]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise RequestError(f"training.{name} is {value!r}; it must be of type {known[name].type}.")
        return cls(**values)

    def digest(self) -> str:
        """Return the SHA-256, in hex, of all fields."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "int | None": (int, type(None)),
}


def fit_to_world(
    asked: Recipe, world_size: int, num_train: int, *, batch_size: int | None, epochs: int | None
) -> tuple[Recipe, str]:
    """Return the recipe that this number of ranks trains in the acceptance trial, and the key of its reference.

    Above ``MAX_DIGITS_RANKS`` ranks, digits is replaced by a synthetic workload whose batch grows with the world.
    Raises RequestError for values that cannot be trained.

    Args:
        asked: The recipe for any number of ranks.
        world_size: Number of ranks.
        num_train: Number of training samples of that recipe's workload.
        batch_size: Samples per rank and step; replaces the global batch. None: keep the global batch.
        epochs: Passes over the training part; replaces the steps. None: keep the steps.
    """
    batch = asked.global_batch_size if batch_size is None else batch_size * world_size
    name, num_samples, batch_text = asked.workload, asked.num_samples, f"{batch}"
    if name == "digits" and world_size > MAX_DIGITS_RANKS:
        per_rank = batch_size or _WORLD_BATCH_SIZE
        name, batch, batch_text = _WORLD_WORKLOAD, per_rank * world_size, f"{per_rank} a rank"
        num_samples = num_train = max(_WORLD_SAMPLES, batch)
    fitted = replace(asked, workload=name, num_samples=num_samples, global_batch_size=batch)
    fitted.require_enough(num_train)
    max_steps = asked.num_steps(num_train) if epochs is None else epochs * fitted.steps_per_epoch(num_train)
    fitted = replace(fitted, epochs=None, max_steps=max_steps)
    return fitted, f"{name}/{asked.model}, {max_steps} steps of {batch_text}, lr {asked.lr:g}"
