"""The bundle: ``seatrial.pyz``, the whole package as one executable zip.

    seatrial.pyz
    ├── __main__.py     checks the version of Python, then starts the command line; stored, not compressed
    └── seatrial/       every file of the package, comments and docstrings included, deflated

The same source and the same zlib give the same bytes; the comment of the zip contains the version of zlib.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import seatrial
from seatrial.environment import self_location
from seatrial.errors import RequestError
from seatrial.files import write_atomically
from seatrial.folders import open_above
from seatrial.util.text import printable

_SHEBANG = b"#!/usr/bin/env python3\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can store."""

# Every Python that a user may start it with must be able to parse this, Python 2 included.
_MAIN = b"""import sys
if sys.version_info < (3, 10):
    sys.stderr.write(
        "Error: %s is Python %d.%d, and seatrial needs Python 3.10 or newer; start the file with a newer one.\\n"
        % ((sys.executable,) + tuple(sys.version_info[:2]))
    )
    sys.exit(2)
try:
    import zlib
except ImportError:
    sys.stderr.write(
        "Error: %s was built without zlib, which this file needs; start it with the Python of a distribution.\\n"
        % sys.executable
    )
    sys.exit(2)
if __name__ == "__main__":
    if sys.argv[1:2] == ["-m"] and sys.argv[2:]:
        from seatrial.environment.self_location import run_module as main
    else:
        from seatrial.cli.argparse_app import main
    main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle that was written to a file."""

    file: Path
    size_bytes: int
    sha256: str


def write_bundle(file: Path) -> Bundle:
    """Write the bundle to ``file``, completely or not at all. Raises RequestError when that fails."""
    try:
        try:
            # In a folder such as /tmp others may have put a link there, or a file that they can still change.
            folder = open_above(file)
        except (FileNotFoundError, NotADirectoryError):
            raise RequestError(f"{file}: there is no folder {file.parent}; create it or give another path.") from None
        try:
            content = bundle()
            name = file.name or os.curdir
            write_atomically(f"/proc/self/fd/{folder}/{name}", content, mode=0o777, only_ours=True)
        finally:
            os.close(folder)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"{printable(str(file))}: cannot be written ({reason}); give another path.") from error
    return Bundle(file=file, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


@cache
def bundle() -> bytes:
    """Return the bundle of the package that is running; when a bundle is running, return its bytes."""
    if self_location.BUNDLE_PATH is not None:
        return Path(self_location.BUNDLE_PATH).read_bytes()
    return zipped(package_files())


def package_files() -> dict[str, bytes]:
    """Return the content of each file of the package by its path in the package, without caches and hidden files."""
    root = Path(seatrial.__file__).parent
    paths = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if not _is_excluded(name)}


def _is_excluded(name: str) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in name.split("/"))


def zipped(files: dict[str, bytes]) -> bytes:
    """Return an executable zip of the files, without the times, owners and modes that they have here.

    ``files``: content by path in the package.
    """
    buffer = io.BytesIO()
    buffer.write(_SHEBANG)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.comment = f"zlib {zlib.ZLIB_RUNTIME_VERSION}".encode()
        # Stored, so that a Python without zlib can run it and print what is missing.
        archive.writestr(_entry("__main__.py"), _MAIN, zipfile.ZIP_STORED)
        for name, content in sorted(files.items()):
            archive.writestr(_entry(f"seatrial/{name}"), content)
    return buffer.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3  # Unix, on whatever system the zip is written.
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry
