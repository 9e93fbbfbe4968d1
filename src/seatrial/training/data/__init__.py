"""What can be trained on: each workload by name. Nothing here imports torch before data are asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from seatrial.errors import RequestError
from seatrial.training.data import digits, synthetic

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["WORKLOADS", "Data", "Workload", "find_workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A whole workload in memory: images as uint8 (N, channels, height, width), labels as int64."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is known of a workload before its data are loaded."""

    name: str
    shape: tuple[int, int, int]
    """Channels, height, width."""
    num_classes: int
    num_train: int
    num_test: int
    mean: float
    """Of all pixels of the training part; with ``std`` it brings the input to mean 0 and deviation 1."""
    std: float
    load: Callable[[], Data]

    def size_bytes(self) -> int:
        """Of all images in memory, a byte a pixel."""
        return (self.num_train + self.num_test) * math.prod(self.shape)


def find_workload(name: str, num_samples: int) -> Workload:
    """The workload of that name; ``num_samples`` sizes the training part where it is made, not read.

    Raises RequestError for an unknown name, with the nearest one that exists.
    """
    if name in WORKLOADS:
        return WORKLOADS[name](name, num_samples)
    if _SYNTHETIC.fullmatch(name):
        return _synthetic(name, num_samples)
    nearest = get_close_matches(name, WORKLOADS, n=1, cutoff=0.0)[0]
    raise RequestError(f"unknown workload {name!r}; did you mean {nearest!r}? Known: {', '.join(WORKLOADS)}.")


_SYNTHETIC = re.compile(r"synthetic-([1-9]\d{0,3})x([1-9]\d{0,3})x([1-9]\d{0,3})")


def _digits(name: str, num_samples: int) -> Workload:
    def load() -> Data:
        images, labels = digits.read_digits()
        cut = digits.NUM_TRAIN
        return Data(
            train_images=images[:cut], train_labels=labels[:cut], test_images=images[cut:], test_labels=labels[cut:]
        )

    return Workload(
        name=name,
        shape=(1, 8, 8),
        num_classes=10,
        num_train=digits.NUM_TRAIN,
        num_test=digits.NUM_TEST,
        mean=4.88,
        std=6.01,
        load=load,
    )


def _synthetic(name: str, num_samples: int) -> Workload:
    match = _SYNTHETIC.fullmatch(name)
    if match is None:
        raise RequestError(
            f"workload {name!r}: put channels, height and width in place of C, H and W, such as synthetic-1x8x8."
        )
    channels, height, width = (int(part) for part in match.groups())
    shape = (channels, height, width)
    num_test = 1_000

    def load() -> Data:
        train_images, train_labels = synthetic.make_images(shape, num_samples, seed=1)
        test_images, test_labels = synthetic.make_images(shape, num_test, seed=2)
        return Data(
            train_images=train_images, train_labels=train_labels, test_images=test_images, test_labels=test_labels
        )

    return Workload(
        name=name,
        shape=shape,
        num_classes=synthetic.NUM_CLASSES,
        num_train=num_samples,
        num_test=num_test,
        mean=128.0,
        std=40.0,
        load=load,
    )


WORKLOADS: dict[str, Callable[[str, int], Workload]] = {"digits": _digits, "synthetic-CxHxW": _synthetic}
"""Workloads by name; ``synthetic-CxHxW`` stands for one of any shape, such as ``synthetic-1x8x8``."""
