"""What can be trained on: each workload by name. Nothing here imports torch before data are asked for."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.errors import RequestError
from seatrial.training.data import cifar, digits, files, idx, synthetic
from seatrial.training.data.manifest import DATASETS

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
    """Of all pixels of the training part, over all channels; with ``std`` it brings them to mean 0 and deviation 1."""
    std: float
    load: Callable[[], Data]

    def size_bytes(self) -> int:
        """Of all images in memory, a byte a pixel."""
        return (self.num_train + self.num_test) * math.prod(self.shape)


def find_workload(name: str, *, num_samples: int, data_dir: Path | None = None) -> Workload:
    """The workload of that name; ``num_samples`` sizes the training part where it is made, not read.

    ``data_dir`` is where data sets lie (``seatrial data fetch`` puts them there); None: ``files.default_folder``. The
    sizes of a workload of files are those in their headers, or the published ones where the files are not there: a
    controller need not have what its nodes have. ``load`` raises RequestError for files that are not there.

    Raises RequestError for an unknown name, with the nearest one that exists, and for files with wrong headers.
    """
    folder = files.default_folder(os.environ) if data_dir is None else data_dir
    if name in WORKLOADS:
        return WORKLOADS[name](name, num_samples, folder)
    if _SYNTHETIC.fullmatch(name):
        return _synthetic(name, num_samples, folder)
    nearest = get_close_matches(name, WORKLOADS, n=1, cutoff=0.0)[0]
    raise RequestError(f"unknown workload {name!r}; did you mean {nearest!r}? Known: {', '.join(WORKLOADS)}.")


_SYNTHETIC = re.compile(r"synthetic-([1-9]\d{0,3})x([1-9]\d{0,3})x([1-9]\d{0,3})(?:-([2-9]|[1-9]\d{1,2}))?")


def _digits(name: str, num_samples: int, folder: Path) -> Workload:
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


def _synthetic(name: str, num_samples: int, folder: Path) -> Workload:
    match = _SYNTHETIC.fullmatch(name)
    if match is None:
        raise RequestError(
            f"workload {name!r}: put channels, height, width and, from 2 to 999, the number of classes in place of the "
            "letters, such as synthetic-1x8x8-5; without the last there are 10 classes."
        )
    channels, height, width, num_classes = (int(part) for part in match.groups(default="10"))
    shape = (channels, height, width)
    num_test = 1_000

    def load() -> Data:
        train_images, train_labels = synthetic.make_images(shape, num_samples, seed=1, num_classes=num_classes)
        test_images, test_labels = synthetic.make_images(shape, num_test, seed=2, num_classes=num_classes)
        return Data(
            train_images=train_images, train_labels=train_labels, test_images=test_images, test_labels=test_labels
        )

    return Workload(
        name=name,
        shape=shape,
        num_classes=num_classes,
        num_train=num_samples,
        num_test=num_test,
        mean=128.0,
        std=40.0,
        load=load,
    )


def _mnist(name: str, num_samples: int, folder: Path) -> Workload:
    # Of pixels from 0 to 1: what pytorch/examples has for MNIST, and what is in common use for Fashion-MNIST.
    mean, std = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530)}[name]
    shape, num_train, num_test = (1, 28, 28), 60_000, 10_000
    paths = files.find(name, folder)
    if paths is not None:
        (num_train, height, width), train_labels, (num_test, *test_size), test_labels = (
            idx.read_sizes(path, num_dimensions) for path, num_dimensions in zip(paths, (3, 1, 3, 1), strict=True)
        )
        if (train_labels, test_labels, test_size) != ((num_train,), (num_test,), [height, width]):
            raise RequestError(
                f"the files of {name} in {paths[0].parent} do not belong together: {num_train} images with "
                f"{train_labels[0]} labels to train, {num_test} with {test_labels[0]} to test, of {height} x {width} "
                f"and {' x '.join(map(str, test_size))} pixels; fetch or copy them again."
            )
        shape = (1, height, width)

    def load() -> Data:
        train_images, train_labels, test_images, test_labels = files.require(name, folder)
        return Data(
            train_images=idx.read_images(train_images),
            train_labels=idx.read_labels(train_labels, 10),
            test_images=idx.read_images(test_images),
            test_labels=idx.read_labels(test_labels, 10),
        )

    return Workload(
        name=name,
        shape=shape,
        num_classes=10,
        num_train=num_train,
        num_test=num_test,
        mean=mean * 255,
        std=std * 255,
        load=_held_to(name, folder, shape, num_train, num_test, load),
    )


def _cifar10(name: str, num_samples: int, folder: Path) -> Workload:
    num_train, num_test = 50_000, 10_000
    paths = files.find(name, folder)
    if paths is not None and not _is_published_archive(paths[0]):
        num_train, num_test = cifar.read_sizes(paths[0])

    def load() -> Data:
        (path,) = files.require(name, folder)
        train_images, train_labels, test_images, test_labels = cifar.read_images(path)
        return Data(
            train_images=train_images, train_labels=train_labels, test_images=test_images, test_labels=test_labels
        )

    return Workload(
        name=name,
        shape=cifar.SHAPE,
        num_classes=cifar.NUM_CLASSES,
        num_train=num_train,
        num_test=num_test,
        # From the usual values of the channels, 0.4914, 0.4822, 0.4465 and 0.2470, 0.2435, 0.2616: the channels differ
        # by less than a fifth of a deviation, which the first convolution takes in.
        mean=0.4734 * 255,
        std=0.2516 * 255,
        load=_held_to(name, folder, cifar.SHAPE, num_train, num_test, load),
    )


def _is_published_archive(path: Path) -> bool:
    """By its size: to count the images in the archive means to unpack all of it, which takes seconds."""
    (archive,) = DATASETS["cifar10"].downloads
    return path.name == archive.name and path.stat().st_size == archive.size_bytes


def _held_to(
    name: str, folder: Path, shape: tuple[int, ...], num_train: int, num_test: int, load: Callable[[], Data]
) -> Callable[[], Data]:
    """``load``, and a RequestError where what it gives has not the sizes that the recipe was made for."""

    def held() -> Data:
        data = load()
        expected = ((num_train, *shape), (num_train,), (num_test, *shape), (num_test,))
        tensors = (data.train_images, data.train_labels, data.test_images, data.test_labels)
        found = tuple(tuple(tensor.shape) for tensor in tensors)
        if found != expected:
            raise RequestError(
                f"the files of {name} in {folder} hold tensors of {found}, and {expected} were expected; they are not "
                "the published ones, or were changed meanwhile: start again when they are complete."
            )
        return data

    return held


WORKLOADS: dict[str, Callable[[str, int, Path], Workload]] = {
    "digits": _digits,
    "mnist": _mnist,
    "fashion-mnist": _mnist,
    "cifar10": _cifar10,
    "synthetic-CxHxW-K": _synthetic,
}
"""Workloads by name; the last stands for any shape and number of classes: ``synthetic-1x8x8-5``, and for 10 classes
``synthetic-1x8x8`` as well."""
