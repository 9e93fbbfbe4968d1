"""The workloads that can be trained, by name. torch is imported only when data is loaded."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.errors import RequestError
from seatrial.files import status_behind_links
from seatrial.training.data import cifar, dataset_files, digits, idx, synthetic
from seatrial.training.data.data_file import NOT_TOGETHER
from seatrial.training.data.datasets import DATASETS, PUBLISHED_IMAGES

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A whole workload in memory: images as uint8 (N, C, H, W), labels as int64 (N,)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The description of a workload, before its data is loaded."""

    name: str
    shape: tuple[int, int, int]
    """(C, H, W): channels, height and width of an image."""
    num_classes: int
    num_train: int
    num_test: int
    mean: float
    """Mean of all pixels of the training part, over all channels; normalization subtracts it."""
    std: float
    """Standard deviation of those pixels; normalization divides by it."""
    load: Callable[[], Data]
    """Loads the data. Raises RequestError for missing or damaged files."""

    def size_bytes(self) -> int:
        """Return the size of all images in memory, one byte per pixel."""
        return (self.num_train + self.num_test) * math.prod(self.shape)

    def in_memory(self) -> Workload:
        """Return this workload with its data loaded: no file is read from then on. Raises RequestError as ``load``."""
        data = self.load()
        return replace(self, load=lambda: data)


def find_workload(name: str, *, num_samples: int, data_dir: Path | None = None) -> Workload:
    """Return the workload of that name.

    The sizes of a workload of files come from their headers, so only a rank asks for one: ``published_sizes`` reads
    nothing. ``load`` raises RequestError for missing files.

    Raises RequestError for an unknown name, with the closest known one, and for files with wrong headers.

    Args:
        name: A key of ``WORKLOADS``, or such as ``synthetic-1x8x8-5``.
        num_samples: Size of the training part of a synthetic workload.
        data_dir: Folder with the data sets that ``seatrial data fetch`` has put there; None:
            ``dataset_files.default_folder``.
    """
    folder = dataset_files.default_folder(os.environ) if data_dir is None else data_dir
    if name in WORKLOADS:
        return WORKLOADS[name](name, num_samples, folder)
    if _SYNTHETIC.fullmatch(name):
        return _synthetic(name, num_samples, folder)
    near = get_close_matches(name.lower(), WORKLOADS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise RequestError(f"unknown workload {name!r}{hint} Known: {', '.join(WORKLOADS)}.")


def published_sizes(name: str, *, num_samples: int) -> tuple[int, int]:
    """Return how many samples a workload has to train and to test, by its name alone: for files as they were published.

    No file is read: a controller need not have the files of its nodes, and of processes that a launcher has started,
    one that ended here would be missed by all others. Raises RequestError for an unknown name.
    """
    if name in PUBLISHED_IMAGES:
        return PUBLISHED_IMAGES[name]
    workload = find_workload(name, num_samples=num_samples)
    return workload.num_train, workload.num_test


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
            f"workload {name!r}: replace the letters by channels, height, width and the number of classes (2 to 999), "
            "such as synthetic-1x8x8-5; without the last number there are 10 classes."
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
    # For pixels from 0 to 1: the values of pytorch/examples for MNIST, and those in common use for Fashion-MNIST.
    mean, std = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530)}[name]
    shape, (num_train, num_test) = (1, 28, 28), PUBLISHED_IMAGES[name]
    paths = dataset_files.find(name, folder)
    if paths is not None:
        (num_train, height, width), train_labels, (num_test, *test_size), test_labels = (
            idx.read_sizes(path, num_dimensions, folder)
            for path, num_dimensions in zip(paths, (3, 1, 3, 1), strict=True)
        )
        if (train_labels, test_labels, test_size) != ((num_train,), (num_test,), [height, width]):
            raise RequestError(
                f"the files of {name} in {paths[0].parent} {NOT_TOGETHER}: {num_train} images with "
                f"{train_labels[0]} labels to train, {num_test} with {test_labels[0]} to test, of {height} x {width} "
                f"and {' x '.join(map(str, test_size))} pixels; fetch or copy them again."
            )
        most = (*PUBLISHED_IMAGES[name], *shape[1:])
        _require_not_larger(name, paths[0].parent, (num_train, num_test, height, width), most)
        shape = (1, height, width)

    def load() -> Data:
        train_images, train_labels, test_images, test_labels = dataset_files.require(name, folder)
        return Data(
            train_images=idx.read_images(train_images, folder, (num_train, *shape[1:])),
            train_labels=idx.read_labels(train_labels, 10, folder, (num_train,)),
            test_images=idx.read_images(test_images, folder, (num_test, *shape[1:])),
            test_labels=idx.read_labels(test_labels, 10, folder, (num_test,)),
        )

    return Workload(
        name=name,
        shape=shape,
        num_classes=10,
        num_train=num_train,
        num_test=num_test,
        mean=mean * 255,
        std=std * 255,
        load=load,
    )


def _cifar10(name: str, num_samples: int, folder: Path) -> Workload:
    num_train, num_test = PUBLISHED_IMAGES[name]
    paths = dataset_files.find(name, folder)
    if paths is not None and not _is_published_archive(paths[0], folder):
        num_train, num_test = cifar.read_sizes(paths[0], folder)
        _require_not_larger(name, paths[0], (num_train, num_test), PUBLISHED_IMAGES[name])

    def load() -> Data:
        (path,) = dataset_files.require(name, folder)
        train_images, train_labels, test_images, test_labels = cifar.read_images(path, folder, (num_train, num_test))
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
        # by less than a fifth of a standard deviation, which the first convolution can absorb.
        mean=0.4734 * 255,
        std=0.2516 * 255,
        load=load,
    )


def _require_not_larger(name: str, place: Path, found: tuple[int, ...], published: tuple[int, ...]) -> None:
    """Raise RequestError for more or larger images than the published ones: all ranks would run out of memory, and the
    first of them would count as broken."""
    if any(number > most for number, most in zip(found, published, strict=True)):
        numbers = " ".join(str(number) for number in found)
        raise RequestError(
            f"the files of {name} in {place} have {numbers} images to train and to test, or pixels, and the published "
            f"ones {' '.join(map(str, published))}; fetch or copy them again."
        )


def _is_published_archive(path: Path, folder: Path) -> bool:
    """Return whether the archive has the published size. Counting its images would mean unpacking it, which takes
    seconds."""
    (archive,) = DATASETS["cifar10"].downloads
    with contextlib.suppress(OSError):
        return path.name == archive.name and status_behind_links(path, folder).st_size == archive.size_bytes
    return False


WORKLOADS: dict[str, Callable[[str, int, Path], Workload]] = {
    "digits": _digits,
    "mnist": _mnist,
    "fashion-mnist": _mnist,
    "cifar10": _cifar10,
    "synthetic-CxHxW-K": _synthetic,
}
"""Workloads by name. The last stands for any shape and number of classes, such as ``synthetic-1x8x8-5``;
``synthetic-1x8x8`` has 10 classes."""
