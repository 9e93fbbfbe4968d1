"""What torch.save wrote, read as tensors and primitives: the bytes may come from another user or another rank.

torch's own reader is not used: with the oldest format and with an archive of TorchScript its ``weights_only`` means
nothing before torch 2.6 (CVE-2025-32434); ``plain_pickle.py`` says what else.
"""

from __future__ import annotations

import io
import struct
import sys
import zipfile
from typing import Any

from seatrial.training.plain_pickle import RefusedContentError, read_pickle

MOST_BYTES = 1 << 31
"""2 GiB; a resnet18 with Adam has 134 MB, and 77 KB more for each rank."""
_MOST_INDEX_BYTES = 1 << 24
"""The most of a table of contents, and of a pickle; 16 MiB take seconds. A model of 1,000 tensors has 300 KB."""
_MOST_SHOWN_CHARS = 100
_ZIP_MAGIC = b"PK\x03\x04"
_LOCAL_HEADER = "<4s22xHH"
_OF_TORCHSCRIPT = "constants.pkl"


class _Bounded(io.BytesIO):
    """The file, as ``zipfile`` reads it: its table of contents may be as large as the file."""

    def read(self, size: int | None = -1) -> bytes:
        """Read at most as much as the table of contents may have."""
        if size is None or size > _MOST_INDEX_BYTES:
            raise RefusedContentError(f"its table of contents has more than {_MOST_INDEX_BYTES >> 20} MiB")
        return super().read(size)


def load_plain(content: bytes | bytearray) -> Any:
    """Return what the bytes hold, all tensors on the CPU. Runs no code from them. Raises RefusedContentError."""
    if content[: len(_ZIP_MAGIC)] != _ZIP_MAGIC:
        raise RefusedContentError("it is not a zip file, as torch.save writes them")
    try:
        records = _records(content)

        def numbers_of(key: str) -> bytearray:
            record = records.get(f"data/{key}")
            if record is None:
                raise RefusedContentError("it claims other numbers than those in the file")
            return bytearray(record)

        if bytes(records.get("byteorder", sys.byteorder.encode())) != sys.byteorder.encode():
            raise RefusedContentError("its numbers are in another order of bytes")
        return read_pickle(bytes(records["data.pkl"]), numbers_of)
    except (MemoryError, RefusedContentError):
        raise
    except Exception as error:
        reason = ascii(str(error).partition("\n")[0])[1:-1][:200]
        raise RefusedContentError(f"it is damaged ({reason or type(error).__name__})") from error


def in_words(size_bytes: int) -> str:
    """Return a size in GiB, or in MiB where that is no whole number."""
    return f"{size_bytes / 2**30:g} GiB" if size_bytes % 2**30 == 0 else f"{size_bytes / 2**20:.4g} MiB"


def shown(value: object) -> str:
    """Return a value out of a file, which others may have written, for a sentence of ours: in quotes, and short."""
    plain = value is None or isinstance(value, (bool, int, float, str))
    return ascii(value)[:_MOST_SHOWN_CHARS] if plain else f"a value of type {type(value).__name__}"


def _records(content: bytes | bytearray) -> dict[str, memoryview]:
    """Return the parts of the file by name, without the folder that torch puts them in."""
    with zipfile.ZipFile(_Bounded(content)) as archive:
        entries = archive.infolist()
    if any(entry.filename.rpartition("/")[2] == _OF_TORCHSCRIPT for entry in entries):
        raise RefusedContentError("it asks for TorchScript, which no checkpoint needs")
    if sum(entry.file_size for entry in entries) > len(content):
        raise RefusedContentError(f"its parts have more than its {len(content)} bytes, and torch.save compresses none")
    records = {entry.filename.partition("/")[2]: _stored(entry, content) for entry in entries}
    if len(records) != len(entries):
        raise RefusedContentError("it has two parts of one name")
    if len(records["data.pkl"]) > _MOST_INDEX_BYTES:
        raise RefusedContentError(f"its pickle has more than {_MOST_INDEX_BYTES >> 20} MiB")
    return records


def _stored(entry: zipfile.ZipInfo, content: bytes | bytearray) -> memoryview:
    if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size or entry.flag_bits & 1:
        raise RefusedContentError("a part of it is compressed or encrypted, and torch.save does neither")
    begin = max(entry.header_offset, 0)
    magic, name_bytes, extra_bytes = struct.unpack_from(_LOCAL_HEADER, content, begin)
    begin += struct.calcsize(_LOCAL_HEADER) + name_bytes + extra_bytes
    part = memoryview(content)[begin : begin + entry.file_size]
    if magic != _ZIP_MAGIC or len(part) != entry.file_size:
        raise RefusedContentError("its table of contents is wrong")
    return part
