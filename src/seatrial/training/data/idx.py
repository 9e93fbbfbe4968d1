"""IDX, the format of MNIST and of sets like it: a short header, then bytes.

Two zero bytes, 0x08 for unsigned bytes, the number of dimensions, each dimension as a big-endian 32-bit number, then
the values with the last dimension changing fastest (http://yann.lecun.com/exdb/mnist/).
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.training.data.source import MAX_BYTES, Source, open_source

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["read_images", "read_labels", "read_sizes"]

_UNSIGNED_BYTES = 0x08


def read_sizes(path: Path, num_dimensions: int) -> tuple[int, ...]:
    """The dimensions in the header: of images number, height and width; of labels their number.

    Raises RequestError, with file and offset, for a header that is not such a one.
    """
    with open_source(path) as source:
        return _read_header(source, num_dimensions)


def read_images(path: Path) -> Tensor:
    """All images, uint8 of shape (N, 1, height, width). Raises RequestError, with file and offset."""
    import torch

    with open_source(path) as source:
        count, height, width = _read_header(source, 3)
        pixels = source.read(count * height * width, "the images")
        source.end()
    return torch.frombuffer(pixels, dtype=torch.uint8).view(count, 1, height, width)


def read_labels(path: Path, num_classes: int) -> Tensor:
    """All labels, int64 of shape (N,). Raises RequestError, with file and offset, also for a label too high."""
    import torch

    with open_source(path) as source:
        (count,) = _read_header(source, 1)
        begin = source.at
        labels = torch.frombuffer(source.read(count, "the labels"), dtype=torch.uint8)
        source.end()
        if int(labels.max()) >= num_classes:
            first = int((labels >= num_classes).nonzero()[0])
            raise source.wrong(f"label {int(labels[first])}, expected 0 to {num_classes - 1}", at=begin + first)
    return labels.long()


def _read_header(source: Source, num_dimensions: int) -> tuple[int, ...]:
    expected = bytes((0, 0, _UNSIGNED_BYTES, num_dimensions))
    found = bytes(source.read(4, "the IDX header"))
    if found != expected:
        raise source.wrong(
            f"it begins with {found.hex()}, expected {expected.hex()} (IDX, unsigned bytes, "
            f"{num_dimensions} dimension{'s' if num_dimensions > 1 else ''})",
            at=0,
        )
    sizes = struct.unpack(f">{num_dimensions}I", source.read(4 * num_dimensions, "the IDX header"))
    size_bytes = math.prod(sizes)
    if not 0 < size_bytes <= MAX_BYTES:
        told = " x ".join(map(str, sizes))
        raise source.wrong(f"its header promises {told} bytes, expected from 1 to {MAX_BYTES}", at=4)
    if source.size_bytes is not None and source.at + size_bytes != source.size_bytes:
        raise source.wrong(
            f"its header promises a file of {source.at + size_bytes} bytes, and it has {source.size_bytes}", at=4
        )
    return sizes
