"""The 1,797 handwritten digits of 8 x 8 pixels that ship with the package.

Source: Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine Learning Repository,
https://doi.org/10.24432/C50P49, licence CC BY 4.0; see NOTICE beside this file. These are the images of its test part,
as scikit-learn distributes them.

``digits.bin`` is a bz2 stream of 65 columns of 1,797 bytes: the labels, then 64 pixels (0 to 16, row by row). In the
columns of pixels the images of one label stand together, each label's in their order: so they pack smallest. Beside the
labels they stand in the order of the SHA-256 of their number in the source (``str(number)``), so that the split, the
first 1,437 to train and the last 360 to test, is a fixed mixture of classes and writers.
"""

from __future__ import annotations

import bz2
import hashlib
import pkgutil
from typing import TYPE_CHECKING

from seatrial.errors import SeatrialError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NUM_TEST", "NUM_TRAIN", "read_digits"]

NUM_TRAIN = 1_437
NUM_TEST = 360
_FILE = "digits.bin"
_SHA256 = "cc9e8c18d60a4cef4ca96be93b7b9e72081b1add075d601600f88040154ecd2c"


def read_digits() -> tuple[Tensor, Tensor]:
    """All images, uint8 of shape (1797, 1, 8, 8), and their labels, int64.

    Raises SeatrialError when the file is missing or is not the one that was packed.
    """
    import torch

    packed = _packed()
    found = hashlib.sha256(packed).hexdigest()
    if found != _SHA256:
        raise SeatrialError(
            f"seatrial/training/data/{_FILE} is damaged: its SHA-256 is {found}, expected {_SHA256}; "
            "install seatrial again."
        )
    columns = torch.frombuffer(bytearray(bz2.decompress(packed)), dtype=torch.uint8).view(65, -1)
    images, labels = columns[1:].t().reshape(-1, 1, 8, 8).contiguous(), columns[0].long()
    return torch.empty_like(images).index_copy_(0, labels.argsort(stable=True), images), labels


def _packed() -> bytes:
    # pkgutil asks the loader, so that the file is found inside a zip too.
    try:
        packed = pkgutil.get_data(__package__, _FILE)
    except OSError:
        packed = None
    if packed is None:
        raise SeatrialError(
            f"seatrial/training/data/{_FILE} is missing from this installation; install seatrial again."
        )
    return packed
