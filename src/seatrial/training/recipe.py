"""What is trained and how: everything that decides the result of a training, in one record."""

from __future__ import annotations

from dataclasses import dataclass, replace

from seatrial.errors import RequestError
from seatrial.training.data import Workload, find_workload
from seatrial.training.models import find_model

__all__ = ["MAX_DIGITS_RANKS", "Recipe", "fit_to_world"]

MAX_DIGITS_RANKS = 32
"""Above, a rank's share of a batch of digits would be too small to mean anything."""
_WORLD_WORKLOAD = "synthetic-1x8x8"
_WORLD_BATCH_SIZE = 16
_WORLD_SAMPLES = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One training. The number of ranks is not part of it: the global batch is the same for any.

    Raises RequestError when it is made of values that cannot be trained with.
    """

    workload: str
    model: str
    max_steps: int
    global_batch_size: int
    lr: float
    """Highest learning rate; see ``lr_at``."""
    num_samples: int
    """Training samples of a synthetic workload."""
    seed: int
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        for name, value in (("max_steps", self.max_steps), ("global_batch_size", self.global_batch_size)):
            if value < 1:
                raise RequestError(f"training.{name} is {value}; it must be 1 or more.")
        if not 0 < self.lr < float("inf"):
            raise RequestError(f"training.lr is {self.lr}; it must be a positive number.")
        find_model(self.model)
        num_train = self.data().num_train
        if self.global_batch_size > num_train:
            raise RequestError(
                f"training: the global batch of {self.global_batch_size} is more than the {num_train} training samples "
                f"of {self.workload}; make it smaller."
            )

    def data(self) -> Workload:
        """The workload of this recipe."""
        return find_workload(self.workload, num_samples=self.num_samples)

    def lr_at(self, step: int) -> float:
        """Up in a straight line over the first fifth of the steps, then down to nearly 0."""
        ramp = max(1, self.max_steps // 5)
        return self.lr * min((step + 1) / ramp, (self.max_steps - step) / (self.max_steps - ramp + 1))


def fit_to_world(asked: Recipe, world_size: int, *, batch_size: int | None, epochs: int | None) -> tuple[Recipe, str]:
    """What so many ranks train, and the key of its reference.

    ``batch_size`` is per rank and ``epochs`` are passes over the training part; where they are given, they decide in
    place of the global batch and of the steps. Above ``MAX_DIGITS_RANKS`` digits give way to a synthetic workload whose
    batch grows with the world. Raises RequestError for what cannot be trained.
    """
    batch = asked.global_batch_size if batch_size is None else batch_size * world_size
    workload, num_samples, told = asked.workload, asked.num_samples, f"{batch}"
    if workload == "digits" and world_size > MAX_DIGITS_RANKS:
        per_rank = batch_size or _WORLD_BATCH_SIZE
        workload, batch, told = _WORLD_WORKLOAD, per_rank * world_size, f"{per_rank} a rank"
        num_samples = max(_WORLD_SAMPLES, batch)
    num_train = find_workload(workload, num_samples=num_samples).num_train
    max_steps = asked.max_steps if epochs is None else epochs * -(-num_train // batch)
    fitted = replace(asked, workload=workload, num_samples=num_samples, global_batch_size=batch, max_steps=max_steps)
    return fitted, f"{workload}/{asked.model}, {max_steps} steps of {told}, lr {asked.lr:g}"
