"""IDX, the format of MNIST and Fashion-MNIST: a short header, then bytes.

Two zero bytes, 0x08 for unsigned bytes, the number of dimensions, each dimension as a big-endian 32-bit number, then
the values with the last dimension changing fastest (http://yann.lecun.com/exdb/mnist/).
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.training.data.data_file import MAX_BYTES, NOT_PUBLISHED, DataFile, open_data_file

if TYPE_CHECKING:
    from torch import Tensor


_UNSIGNED_BYTES = 0x08


def read_sizes(path: Path, num_dimensions: int, folder: Path | None = None) -> tuple[int, ...]:
    """Return the dimensions in the header: (N, H, W) for images, (N,) for labels.

    Raises RequestError, with file and offset, for a header with another number of dimensions or another format.
    """
    with open_data_file(path, folder) as file:
        return _read_header(file, num_dimensions)


def read_images(path: Path, folder: Path | None = None, sizes: tuple[int, ...] = ()) -> Tensor:
    """Return all images, uint8 (N, 1, H, W). Raises RequestError, with file and offset.

    ``sizes``: the dimensions that the header must have; empty: any.
    """
    import torch

    with open_data_file(path, folder) as file:
        count, height, width = _read_header(file, 3, sizes)
        pixels = file.read(count * height * width, "the images")
        file.end()
    return torch.frombuffer(pixels, dtype=torch.uint8).view(count, 1, height, width)


def read_labels(path: Path, num_classes: int, folder: Path | None = None, sizes: tuple[int, ...] = ()) -> Tensor:
    """Return all labels, int64 (N,). Raises RequestError, with file and offset, also for a label that is too high.

    ``sizes``: as in ``read_images``.
    """
    import torch

    with open_data_file(path, folder) as file:
        (count,) = _read_header(file, 1, sizes)
        begin = file.at
        labels = torch.frombuffer(file.read(count, "the labels"), dtype=torch.uint8)
        file.end()
        if int(labels.max()) >= num_classes:
            first = int((labels >= num_classes).nonzero()[0])
            raise file.wrong(f"label {int(labels[first])}, expected 0 to {num_classes - 1}", at=begin + first)
    return labels.long()


def _read_header(file: DataFile, num_dimensions: int, wanted: tuple[int, ...] = ()) -> tuple[int, ...]:
    expected = bytes((0, 0, _UNSIGNED_BYTES, num_dimensions))
    header = bytes(file.read(4, "the IDX header"))
    if header != expected:
        raise file.wrong(
            f"it begins with {header.hex()}, expected {expected.hex()} (IDX, unsigned bytes, "
            f"{num_dimensions} dimension{'s' if num_dimensions > 1 else ''})",
            at=0,
        )
    sizes = struct.unpack(f">{num_dimensions}I", file.read(4 * num_dimensions, "the IDX header"))
    if wanted and sizes != wanted:
        found, other = (" x ".join(map(str, each)) for each in (sizes, wanted))
        raise file.wrong(f"its header says {found}, expected {other}: {NOT_PUBLISHED}", at=4)
    size_bytes = math.prod(sizes)
    if not 0 < size_bytes <= MAX_BYTES:
        product = " x ".join(map(str, sizes))
        raise file.wrong(f"its header says {product} bytes, expected from 1 to {MAX_BYTES}", at=4)
    if file.size_bytes is not None and file.at + size_bytes != file.size_bytes:
        raise file.wrong(f"its header says a file of {file.at + size_bytes} bytes, but it has {file.size_bytes}", at=4)
    file.require_size(file.at + size_bytes)
    return sizes
