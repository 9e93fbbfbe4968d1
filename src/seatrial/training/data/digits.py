"""The 1,797 handwritten digits of 8 x 8 pixels that ship with the package.

Source: Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine Learning Repository,
https://doi.org/10.24432/C50P49, license CC BY 4.0; see NOTICE in this folder. These are the images of its test
part, as scikit-learn distributes them.

``digits.bin`` holds 1,797 rows of 65 bytes: the label, then the 64 pixels (0 to 16, row by row). The rows are in the
order of the SHA-256 of their number in the source (``str(number)``), so that the split, the first 1,437 to train and
the last 360 to test, is a fixed mixture of classes and writers.
"""

from __future__ import annotations

import hashlib
import pkgutil
from typing import TYPE_CHECKING

from seatrial.errors import SeatrialError

if TYPE_CHECKING:
    from torch import Tensor

NUM_TRAIN = 1_437
NUM_TEST = 360
_ROW_BYTES = 65
_FILE = "digits.bin"
_SHA256 = "734267b6bd30c713be2b5dd2edee8f771b2e9e894c74f47cb8e9e6bb5403cea2"


def read_digits() -> tuple[Tensor, Tensor]:
    """Return all images, uint8 of shape (1797, 1, 8, 8), and their labels, int64 of shape (1797,).

    Raises SeatrialError when the file is missing or damaged.
    """
    import torch

    rows = torch.frombuffer(bytearray(_content()), dtype=torch.uint8).view(-1, _ROW_BYTES)
    return rows[:, 1:].reshape(-1, 1, 8, 8).contiguous(), rows[:, 0].long()


def _content() -> bytes:
    try:
        # pkgutil asks the loader, so the file is also found inside a zip.
        content = pkgutil.get_data(__package__, _FILE)
    except OSError:
        content = None
    if content is None:
        raise SeatrialError(
            f"seatrial/training/data/{_FILE} is missing from this installation; install seatrial again."
        )
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != _SHA256:
        raise SeatrialError(
            f"seatrial/training/data/{_FILE} is damaged: its SHA-256 is {sha256}, expected {_SHA256};"
            " install seatrial again."
        )
    return content
