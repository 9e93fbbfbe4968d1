"""CIFAR-10 in its binary version: records of one label byte and 3,072 pixels, in an archive or in a folder.

A record has the 1,024 red, then green, then blue values of a 32 x 32 image, row by row
(https://www.cs.toronto.edu/~kriz/cifar.html). Archives are read as a stream: nothing is extracted, no path of theirs is
used. The version for Python is a pickle, which is never opened.
"""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, cast

from seatrial.training.data.source import MAX_BYTES, Source, damaged, open_source

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NUM_CLASSES", "SHAPE", "TEST_FILE", "TRAIN_FILES", "read_images", "read_sizes"]

SHAPE = (3, 32, 32)
NUM_CLASSES = 10
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
_RECORD_BYTES = 1 + 3 * 32 * 32


def read_sizes(path: Path) -> tuple[int, int]:
    """Images to train and to test in a folder or an archive. Raises RequestError, with file and offset."""
    if path.is_dir():
        sizes = {}
        for name in (*TRAIN_FILES, TEST_FILE):
            with open_source(path / name) as source:
                sizes[name] = source.size_bytes or 0
                _check_size(source, name, sizes[name])
    else:
        sizes = _scan(path, keep=False)[0]
    counts = {name: size_bytes // _RECORD_BYTES for name, size_bytes in sizes.items()}
    return sum(counts[name] for name in TRAIN_FILES), counts[TEST_FILE]


def read_images(path: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, then those to test: images uint8 (N, 3, 32, 32), labels int64 (N,).

    ``path`` is the archive or the folder. Raises RequestError, with file and offset.
    """
    import torch

    parts = {}
    if path.is_dir():
        for name in (*TRAIN_FILES, TEST_FILE):
            with open_source(path / name) as source:
                size_bytes = source.size_bytes or 0
                _check_size(source, name, size_bytes)
                parts[name] = source.read(size_bytes, name)
                source.end()
    else:
        parts = _scan(path, keep=True)[1]
    images, labels = [], []
    for name in (*TRAIN_FILES, TEST_FILE):
        records = torch.frombuffer(parts.pop(name), dtype=torch.uint8).view(-1, _RECORD_BYTES)
        wrong = (records[:, 0] >= NUM_CLASSES).nonzero()
        if len(wrong):
            first = int(wrong[0])
            found = f"label {int(records[first, 0])}, expected 0 to {NUM_CLASSES - 1}"
            raise damaged(path, f"at byte {first * _RECORD_BYTES} of {name}", found)
        labels.append(records[:, 0].long())
        images.append(records[:, 1:].reshape(-1, *SHAPE))
    return torch.cat(images[:-1]), torch.cat(labels[:-1]), images[-1], labels[-1]


def _scan(path: Path, *, keep: bool) -> tuple[dict[str, int], dict[str, bytearray]]:
    """Bytes of each of the six members of an archive, and their content where it is wanted."""
    sizes: dict[str, int] = {}
    contents: dict[str, bytearray] = {}
    with open_source(path) as source:
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", _Stream(source)), mode="r|") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if name not in (*TRAIN_FILES, TEST_FILE):
                        continue
                    if name in sizes or not member.isreg():
                        raise source.wrong(f"{member.name} is there twice or is no regular file")
                    _check_size(source, member.name, member.size)
                    sizes[name] = member.size
                    if keep:
                        file = archive.extractfile(member)
                        assert file is not None  # it is regular
                        contents[name] = bytearray(file.read())
        except (tarfile.TarError, ValueError, OverflowError) as error:
            raise source.wrong(f"it is no tar archive, or is cut short ({error})") from error
        while source.read_some(2**20):  # to its end, where its checksum is compared
            pass
        missing = [name for name in (*TRAIN_FILES, TEST_FILE) if name not in sizes]
        if missing:
            raise source.wrong(f"it does not hold {', '.join(missing)}, as the binary version of CIFAR-10 does")
    return sizes, contents


class _Stream:
    """What tarfile reads from."""

    def __init__(self, source: Source) -> None:
        self.read = source.read_some


def _check_size(source: Source, name: str, size_bytes: int) -> None:
    if not 0 < size_bytes <= MAX_BYTES or size_bytes % _RECORD_BYTES:
        raise source.wrong(
            f"{name} has {size_bytes} bytes, expected a multiple of {_RECORD_BYTES}, at most {MAX_BYTES}",
            at=size_bytes // _RECORD_BYTES * _RECORD_BYTES if name == source.path.name else None,
        )
