"""What torch.save wrote, read as tensors and primitives: the bytes may come from another user or another rank."""

from __future__ import annotations

import io
import re
import zipfile
from pickle import UnpicklingError
from typing import Any

import torch

MOST_BYTES = 1 << 34
"""16 GiB, of which nothing here comes near."""
_ZIP_MAGIC = b"PK\x03\x04"
_OF_TORCHSCRIPT = "constants.pkl"


class RefusedContentError(Exception):
    """Bytes that are refused; the text says why, as a clause."""


def load_plain(content: bytes | bytearray) -> Any:
    """Return what the bytes hold, all tensors on the CPU. Runs no code from them. Raises RefusedContentError."""
    # Only torch's current format, and no program in it: with the oldest format, and with an archive of TorchScript,
    # weights_only means nothing before torch 2.6 (CVE-2025-32434).
    if content[: len(_ZIP_MAGIC)] != _ZIP_MAGIC:
        raise RefusedContentError("it is not a zip file, as torch.save writes them")
    try:
        reader: Any = torch._C.PyTorchFileReader(io.BytesIO(content))
        names = reader.get_all_records()
        if _OF_TORCHSCRIPT in names:
            raise RefusedContentError("it asks for TorchScript, which no checkpoint needs")
        # torch inflates compressed records, and torch.save compresses none.
        if sum(_sizes_bytes(reader, names, content)) > len(content):
            raise RefusedContentError(
                f"its parts have more than its {len(content)} bytes, and torch.save compresses none"
            )
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        wanted = re.search(r"(?:GLOBAL |global )([\w.]+)", str(error))
        what = wanted[1] if wanted else "more than tensors and primitives"
        raise RefusedContentError(f"it asks for {what}, which no checkpoint needs") from error
    except (MemoryError, RefusedContentError):
        raise
    except Exception as error:
        raise RefusedContentError(f"torch cannot read it ({str(error).partition(chr(10))[0]})") from error


def _sizes_bytes(reader: Any, names: list[str], content: bytes | bytearray) -> list[int]:
    if hasattr(reader, "get_record_size"):
        return [reader.get_record_size(name) for name in names]
    with zipfile.ZipFile(io.BytesIO(content)) as archive:  # older torch
        return [entry.file_size for entry in archive.infolist()]
