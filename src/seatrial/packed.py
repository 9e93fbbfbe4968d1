"""Imports our modules out of one stream in the file that travels. Nothing but that file loads this module.

A zip compresses each of its files by itself, and ours are many and small: in one stream they take half of that.
``packed.bin`` is a bz2 stream, and behind it, as they are, files that cannot be made smaller. The stream is a line of
words, a line of JSON, a list of [path, size_bytes] of all files, and then their content, one after another. From the
second line on each of those words is one character, of ``CODES``. A second such stream may lie beside the file that
travels; it is taken if it is the one that was written with it.
"""

from __future__ import annotations

import bz2
import hashlib
import json
import os
import pkgutil
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from typing import Any

__all__ = ["CODES", "MORE", "STREAM", "Folder", "install", "install_here"]

STREAM = "packed.bin"
"""Beside this module."""
MORE = ".more"
"""What the name of the second stream has more than that of the file beside which it lies."""
_MOST_BYTES = 1 << 20
CODES = (*range(1, 9), *range(14, 32), *range(256, 2048))
"""What our source does not hold, of one byte or two."""


def install(root: str, *streams: bytes) -> None:
    """From here on the modules and data of the package whose folder is ``root`` come from the streams."""
    files = {path: content for stream in streams for path, content in _files(root, stream).items()}

    def hook(path: str) -> Folder:
        if path != root and not path.startswith(f"{root}{os.sep}"):
            raise ImportError(path)
        return Folder(path, files)

    sys.path_hooks.insert(0, hook)
    # Python asked its own zip reader when it looked for this module, and remembers that.
    sys.path_importer_cache.pop(root, None)


def _files(root: str, stream: bytes) -> dict[str, bytes]:
    reader = bz2.BZ2Decompressor()
    words, _, text = reader.decompress(stream).decode().partition("\n")
    index, _, content = text.translate(dict(zip(CODES, words.split(), strict=False))).encode().partition(b"\n")
    content += reader.unused_data
    files, at = {}, 0
    for path, size_bytes in json.loads(index):
        files[os.path.join(root, *path.split("/"))] = content[at : at + size_bytes]
        at += size_bytes
    return files


class _Loader(SourceFileLoader):
    """As for a module in a file, but for where the bytes come from."""

    def __init__(self, name: str, path: str, files: dict[str, bytes]) -> None:
        super().__init__(name, path)
        self._files = files

    def get_data(self, path: str) -> bytes:
        """Of this module, or of another file of the package. Raises OSError where there is none."""
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def path_stats(self, path: str) -> Any:
        """There is no time of change, so no bytecode is looked for or kept."""
        raise OSError(path)


class Folder:
    """A folder of the package, as the import system asks it."""

    def __init__(self, path: str, files: dict[str, bytes]) -> None:
        self._path = path
        self._files = files

    def find_spec(self, name: str, target: object = None) -> ModuleSpec | None:
        """The module of that full name, when it is here."""
        base = os.path.join(self._path, name.rpartition(".")[2])
        inside = os.path.join(base, "__init__.py")
        for path, below in ((inside, [base]), (f"{base}.py", None)):
            if path in self._files:
                loader = _Loader(name, path, self._files)
                return spec_from_file_location(name, path, loader=loader, submodule_search_locations=below)
        return None

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """What ``pkgutil.iter_modules`` asks: names, and whether each is a package."""
        for path in self._files:
            folder, file = os.path.split(path)
            if folder == self._path and file.endswith(".py") and file != "__init__.py":
                yield prefix + file[:-3], False
            elif os.path.dirname(folder) == self._path and file == "__init__.py":
                yield prefix + os.path.basename(folder), True


def install_here(sha256: str) -> None:
    """The same for the package that this module is in. ``sha256``: of the second stream."""
    root = os.path.dirname(__file__)
    stream = pkgutil.get_data(__package__, STREAM)
    assert stream is not None
    install(root, stream, *_second(f"{os.path.realpath(os.path.dirname(root))}{MORE}", sha256))


def _second(path: str, sha256: str) -> Iterator[bytes]:
    """Whatever else is in that place is not ours, and is none of the code that runs."""
    try:
        with open(path, "rb") as file:
            stream = file.read(_MOST_BYTES)
    except OSError:
        return
    if hashlib.sha256(stream).hexdigest() == sha256:
        yield stream
