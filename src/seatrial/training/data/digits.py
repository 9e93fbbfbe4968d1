"""The 1,797 handwritten digits of 8 x 8 pixels that ship with the package.

Source: Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine Learning Repository,
https://doi.org/10.24432/C50P49, licence CC BY 4.0; see NOTICE beside this file. These are the images of its test part,
as scikit-learn distributes them.

``digits.bin`` holds 65 columns of 1,797 numbers: the labels, then 64 pixels (0 to 16, row by row). In the columns of
pixels the images of one label stand together, each label's in their order. Beside the labels they stand in the order of
the SHA-256 of their number in the source (``str(number)``), so that the split, the first 1,437 to train and the last
360 to test, is a fixed mixture of classes and writers.

The numbers are range-coded, in integers only, each by how often it stood before in its column, among images with its
label and with like pixels above and beside it: 6 kB less than bz2 makes of them. The reverse is in
``tests/training/test_training_data.py``.
"""

from __future__ import annotations

import hashlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

from seatrial.errors import SeatrialError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NUM_TEST", "NUM_TRAIN", "read_digits"]

NUM_TRAIN = 1_437
NUM_TEST = 360
_NUM = NUM_TRAIN + NUM_TEST
_PRIOR = (2, *(1,) * 15, 2)
"""How often each value counts as seen before it was; no ink and full ink are the most frequent."""
_STEP = 5
"""What each time counts that it is seen."""
_SHADE = (0, *(1,) * 13, *(2,) * 3)
"""Pixels that are alike enough, as neighbours."""
_FILE = "digits.bin"
_SHA256 = "f1fd4fdb96edd7c9ef7b61f3377c626f2c28dc5e3a32ce7e529559b6d3fded3f"


def read_digits() -> tuple[Tensor, Tensor]:
    """All images, uint8 of shape (1797, 1, 8, 8), and their labels, int64.

    Raises SeatrialError when the file is missing or is not the one that was packed.
    """
    import torch

    columns = torch.frombuffer(bytearray(_columns()), dtype=torch.uint8).view(65, -1)
    images, labels = columns[1:].t().reshape(-1, 1, 8, 8).contiguous(), columns[0].long()
    return torch.empty_like(images).index_copy_(0, labels.argsort(stable=True), images), labels


@cache
def _columns() -> bytes:
    """All columns, one after another. It takes a tenth of a second, and a trial may train a thousand times."""
    packed = _packed()
    found = hashlib.sha256(packed).hexdigest()
    if found != _SHA256:
        raise SeatrialError(
            f"seatrial/training/data/{_FILE} is damaged: its SHA-256 is {found}, expected {_SHA256}; "
            "install seatrial again."
        )
    feed = iter(packed)
    code, span = 0, 1
    columns, labels = bytearray(), [0] * _NUM
    for column in range(65):
        counts = [[sum(_PRIOR), *_PRIOR] for _ in range(9 * len(set(labels)))]
        for kind in _kinds(columns, labels):
            seen = counts[kind]
            while span < 2**24:
                code, span = code << 8 | next(feed), span << 8
            unit = span // seen[0]
            left, entry = code // unit, 1
            while left >= seen[entry]:
                left -= seen[entry]
                code -= seen[entry] * unit
                entry += 1
            span = seen[entry] * unit
            seen[entry] += _STEP
            seen[0] += _STEP
            columns.append(entry - 1)
        if column == 0:
            labels = sorted(columns)
    return bytes(columns)


def _kinds(columns: bytearray, labels: list[int]) -> list[int]:
    """By which counts each number of the next column is told: those of its label and of the pixels above and beside."""
    pixel, blank = len(columns) // _NUM - 1, bytes(_NUM)
    above = columns[-8 * _NUM : -7 * _NUM] if pixel >= 8 else blank
    beside = columns[-_NUM:] if pixel > 0 and pixel % 8 else blank
    return [9 * label + 3 * _SHADE[up] + _SHADE[by] for label, up, by in zip(labels, above, beside, strict=True)]


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
