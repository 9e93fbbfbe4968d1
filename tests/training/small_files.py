"""Small files in the formats of the published data sets: the bundled digits, enlarged, so that they can be learned."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path

import torch
from torch import Tensor

from seatrial.training.data import cifar
from seatrial.training.data.digits import NUM_TEST, NUM_TRAIN, read_digits

CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"


def write_mnist(folder: Path, num_train: int, num_test: int, *, name: str = "mnist") -> Path:
    """The four packed files of ``name`` (or ``fashion-mnist``) in ``folder``/NAME, which is given back.

    Up to 1,437 images to train and 360 to test differ from one another.
    """
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    for prefix, (images, labels) in {"train": _part(0, num_train), "t10k": _part(1, num_test)}.items():
        large = torch.nn.functional.pad(images.repeat_interleave(3, dim=2).repeat_interleave(3, dim=3), (2, 2, 2, 2))
        for kind, values in (("images-idx3", large[:, 0]), ("labels-idx1", labels)):
            (place / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(values), 1, mtime=0))
    return place


def write_cifar10(folder: Path, num_train: int, num_test: int) -> Path:
    """The archive of the binary version, with so many images, in ``folder``/cifar10, which is given back."""
    place = folder / "cifar10"
    place.mkdir(parents=True, exist_ok=True)
    (place / CIFAR_ARCHIVE).write_bytes(archive(cifar_members(num_train, num_test)))
    return place


def cifar_members(num_train: int, num_test: int) -> dict[str, bytes]:
    """The six files of the binary version, by name; at least one image in each."""
    parts = torch.arange(num_train).tensor_split(len(cifar.TRAIN_FILES))
    train_images, train_labels = _part(0, num_train)
    members = {
        name: _records(train_images[numbers], train_labels[numbers])
        for name, numbers in zip(cifar.TRAIN_FILES, parts, strict=True)
    }
    return {**members, cifar.TEST_FILE: _records(*_part(1, num_test))}


def archive(members: dict[str, bytes]) -> bytes:
    """A packed tar archive with the folder that the published one has."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as file:
        for name, content in members.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def idx_bytes(values: Tensor) -> bytes:
    """A tensor of bytes as an IDX file."""
    header = struct.pack(f">BBBB{values.dim()}I", 0, 0, 8, values.dim(), *values.shape)
    return header + _raw(values)


def _part(number: int, count: int) -> tuple[Tensor, Tensor]:
    """Digits of the training or of the test part, again from its begin where there are not enough."""
    images, labels = read_digits()
    begin, size = ((0, NUM_TRAIN), (NUM_TRAIN, NUM_TEST))[number]
    numbers = begin + torch.arange(count) % size
    return images[numbers] * 15, labels[numbers]


def _records(images: Tensor, labels: Tensor) -> bytes:
    large = images.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
    colours = torch.cat([large, large // 2, 255 - large], dim=1)
    return _raw(torch.cat([labels.to(torch.uint8)[:, None], colours.flatten(1)], dim=1))


def _raw(values: Tensor) -> bytes:
    # No numpy, so not through numpy().
    return bytes(values.to(torch.uint8).flatten().tolist())
