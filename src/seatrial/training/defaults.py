"""Default settings for each workload and model: one table, and the recipe made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seatrial.training.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Settings that suit one model on one workload."""

    epochs: int
    global_batch_size: int
    lr: float
    optimizer: str = "sgd"
    schedule: str = "cosine"
    weight_decay: float = 5e-4
    augment: str = "none"


DEFAULT_MODELS = {
    "digits": "convnet",
    "mnist": "convnet",
    "fashion-mnist": "resnet18",
    "cifar10": "resnet18",
    "synthetic": "convnet",
}
"""Workload -> the model that is trained on it when none is given."""

_ADAM: dict[str, Any] = {"optimizer": "adam", "weight_decay": 0.0}

DEFAULTS: dict[tuple[str, str], Defaults] = {
    ("digits", "toy"): Defaults(epochs=20, global_batch_size=64, lr=0.1),
    ("digits", "mlp"): Defaults(epochs=20, global_batch_size=64, lr=0.05),
    ("digits", "convnet"): Defaults(epochs=20, global_batch_size=64, lr=0.05),
    ("digits", "resnet18"): Defaults(epochs=10, global_batch_size=64, lr=0.05),
    ("mnist", "toy"): Defaults(epochs=5, global_batch_size=128, lr=0.1),
    ("mnist", "mlp"): Defaults(epochs=10, global_batch_size=128, lr=1e-3, **_ADAM),
    ("mnist", "convnet"): Defaults(epochs=10, global_batch_size=128, lr=0.05),
    ("mnist", "resnet18"): Defaults(epochs=10, global_batch_size=256, lr=0.1),
    ("fashion-mnist", "toy"): Defaults(epochs=5, global_batch_size=128, lr=0.1),
    ("fashion-mnist", "mlp"): Defaults(epochs=15, global_batch_size=128, lr=1e-3, **_ADAM),
    ("fashion-mnist", "convnet"): Defaults(epochs=20, global_batch_size=128, lr=0.05, augment="flip"),
    ("fashion-mnist", "resnet18"): Defaults(epochs=30, global_batch_size=128, lr=0.1, augment="flip"),
    ("cifar10", "toy"): Defaults(epochs=5, global_batch_size=128, lr=0.02),
    ("cifar10", "mlp"): Defaults(epochs=20, global_batch_size=128, lr=1e-3, **_ADAM),
    ("cifar10", "convnet"): Defaults(epochs=50, global_batch_size=128, lr=0.05, augment="crop-flip"),
    ("cifar10", "resnet18"): Defaults(epochs=200, global_batch_size=128, lr=0.1, augment="crop-flip"),
    ("synthetic", "toy"): Defaults(epochs=5, global_batch_size=128, lr=0.1),
    ("synthetic", "mlp"): Defaults(epochs=5, global_batch_size=128, lr=0.05),
    ("synthetic", "convnet"): Defaults(epochs=5, global_batch_size=128, lr=0.05),
    ("synthetic", "resnet18"): Defaults(epochs=5, global_batch_size=128, lr=0.1),
}
"""(workload, model) -> settings; ``synthetic`` covers every shape. docs/training.md lists the accuracy of each."""


def make_recipe(workload: str, *, model: str | None = None, **given: Any) -> Recipe:
    """Return a recipe from the table, with the values in ``given`` in place of the table's. None means: not given.

    ``max_steps`` replaces the epochs. Raises RequestError for settings that cannot be trained.
    """
    family = "synthetic" if workload.startswith("synthetic-") else workload
    model = model or DEFAULT_MODELS.get(family, "convnet")
    table = DEFAULTS.get((family, model), DEFAULTS["synthetic", "convnet"])
    values: dict[str, Any] = {name: getattr(table, name) for name in Defaults.__slots__}
    if given.get("max_steps") is not None and given.get("epochs") is None:
        values["epochs"] = None
    values.update({name: value for name, value in given.items() if value is not None})
    return Recipe(workload=workload, model=model, **values)
