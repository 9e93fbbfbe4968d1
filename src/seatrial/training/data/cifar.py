"""CIFAR-10 in its binary version: records of one label byte and 3,072 pixels, in an archive or in a folder.

A record has the 1,024 red, then green, then blue values of a 32 x 32 image, row by row
(https://www.cs.toronto.edu/~kriz/cifar.html). An archive is read as a stream: nothing is extracted, and no path in it
is used. The Python version is a pickle and is never opened.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from seatrial.training.data.data_file import MAX_BYTES, NOT_PUBLISHED, DataFile, damaged, is_folder, open_data_file

if TYPE_CHECKING:
    from torch import Tensor


SHAPE = (3, 32, 32)
NUM_CLASSES = 10
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
_RECORD_BYTES = 1 + 3 * 32 * 32
_BLOCK_BYTES = 512
_MOST_MEMBERS = 1_000
"""Members of an archive that are looked at; the published one has nine."""


def read_sizes(path: Path, folder: Path | None = None) -> tuple[int, int]:
    """Return the numbers of training and test images in a folder or an archive. Raises RequestError, with file and
    offset."""
    if is_folder(path, folder):
        sizes = {}
        for name in (*TRAIN_FILES, TEST_FILE):
            with open_data_file(path / name, folder) as file:
                sizes[name] = file.size_bytes or 0
                _check_size(file, name, sizes[name])
    else:
        sizes = _scan(path, folder, keep=False)[0]
    return _counts(sizes)


def read_images(
    path: Path, folder: Path | None = None, counts: tuple[int, int] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels, then test images and labels: images uint8 (N, 3, 32, 32), labels int64 (N,).

    ``path`` is the archive or the folder. ``counts``: the numbers of training and test images that must be there; None:
    any. Raises RequestError, with file and offset.
    """
    import torch

    parts, sizes = {}, {}
    if is_folder(path, folder):
        for name in (*TRAIN_FILES, TEST_FILE):
            with open_data_file(path / name, folder) as file:
                sizes[name] = size_bytes = file.size_bytes or 0
                _check_size(file, name, size_bytes)
                _check_counts(file, sizes, counts)
                parts[name] = file.read(size_bytes, name)
                file.end()
    else:
        parts = _scan(path, folder, keep=True, counts=counts)[1]
    images, labels = [], []
    for name in (*TRAIN_FILES, TEST_FILE):
        records = torch.frombuffer(parts.pop(name), dtype=torch.uint8).view(-1, _RECORD_BYTES)
        wrong = (records[:, 0] >= NUM_CLASSES).nonzero()
        if len(wrong):
            first = int(wrong[0])
            label_text = f"label {int(records[first, 0])}, expected 0 to {NUM_CLASSES - 1}"
            raise damaged(path, f"at byte {first * _RECORD_BYTES} of {name}", label_text)
        labels.append(records[:, 0].long())
        images.append(records[:, 1:].reshape(-1, *SHAPE))
    return torch.cat(images[:-1]), torch.cat(labels[:-1]), images[-1], labels[-1]


def _scan(
    path: Path, folder: Path | None, *, keep: bool, counts: tuple[int, int] | None = None
) -> tuple[dict[str, int], dict[str, bytearray]]:
    """Return the sizes in bytes of the six members of an archive, and with ``keep`` their contents."""
    import tarfile  # here, as nearly every command imports this module, and few read CIFAR-10

    sizes: dict[str, int] = {}
    contents: dict[str, bytearray] = {}
    with open_data_file(path, folder) as file:
        for _ in range(_MOST_MEMBERS):
            block = _block(file)
            if not block.strip(b"\0"):  # the end
                break
            # One header, by itself: longer names and attributes, which tarfile would follow without end, are skipped.
            try:
                member = tarfile.TarInfo.frombuf(block, "ascii", "replace")
            except tarfile.HeaderError as error:
                raise file.wrong(f"it is no tar archive ({error})") from error
            name = PurePosixPath(member.name).name
            kept = None
            if name in (*TRAIN_FILES, TEST_FILE):
                if name in sizes or member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    raise file.wrong(f"{name} is there twice or is no regular file")
                _check_size(file, name, member.size)
                sizes[name] = member.size
                _check_counts(file, sizes, counts)
                kept = contents.setdefault(name, bytearray()) if keep else None
            _read_member(file, member.size, kept)
        while file.read_some(2**20):  # to the end, where gzip compares the checksum
            pass
        missing = [name for name in (*TRAIN_FILES, TEST_FILE) if name not in sizes]
        if missing:
            raise file.wrong(f"it lacks {', '.join(missing)}, which the binary version of CIFAR-10 has")
    return sizes, contents


def _block(file: DataFile) -> bytes:
    """Return the next 512 bytes, or what is left."""
    block = b""
    while len(block) < _BLOCK_BYTES and (part := file.read_some(_BLOCK_BYTES - len(block))):
        block += part
    return block


def _read_member(file: DataFile, size_bytes: int, kept: bytearray | None) -> None:
    """Read a member and what fills its last block; append its content to ``kept``."""
    left_bytes, rest = size_bytes, -size_bytes % _BLOCK_BYTES
    while left_bytes > 0:
        part = file.read(min(left_bytes, 2**20), "a member of the tar archive")
        left_bytes -= len(part)
        if kept is not None:
            kept += part
    file.read(rest, "a member of the tar archive")


def _counts(sizes: dict[str, int]) -> tuple[int, int]:
    """Return the numbers of training and test images in the members whose sizes are known."""
    counts = {name: size_bytes // _RECORD_BYTES for name, size_bytes in sizes.items()}
    return sum(counts.get(name, 0) for name in TRAIN_FILES), counts.get(TEST_FILE, 0)


def _check_counts(file: DataFile, sizes: dict[str, int], counts: tuple[int, int] | None) -> None:
    """Raise RequestError where these members have more images than ``counts``, or all of them others: before they are
    read, since they may take a hundred times the memory of the published ones."""
    found = _counts(sizes)
    is_whole = len(sizes) == len(TRAIN_FILES) + 1
    if counts is None or (found == counts if is_whole else found[0] <= counts[0] and found[1] <= counts[1]):
        return
    words = "" if is_whole else "at least "
    raise file.wrong(
        f"there are {words}{found[0]} images to train and {found[1]} to test, expected {counts[0]} and {counts[1]}:"
        f" {NOT_PUBLISHED}"
    )


def _check_size(file: DataFile, name: str, size_bytes: int) -> None:
    if not 0 < size_bytes <= MAX_BYTES or size_bytes % _RECORD_BYTES:
        raise file.wrong(
            f"{name} has {size_bytes} bytes, expected a multiple of {_RECORD_BYTES}, at most {MAX_BYTES}",
            at=size_bytes // _RECORD_BYTES * _RECORD_BYTES if name == file.path.name else None,
        )
