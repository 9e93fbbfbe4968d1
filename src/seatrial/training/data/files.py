"""Where data sets lie: the folder, the layouts that are known in it, and what is told when they are not there."""

from __future__ import annotations

import os
import shlex
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from seatrial.errors import RequestError
from seatrial.training.data import cifar
from seatrial.training.data.manifest import DATASETS

__all__ = ["default_folder", "find", "require"]

_TORCHVISION = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}
_SYNTHETIC = {"mnist": "synthetic-1x28x28", "fashion-mnist": "synthetic-1x28x28", "cifar10": "synthetic-3x32x32"}
_BATCHES = "cifar-10-batches-bin"


def default_folder(environ: Mapping[str, str]) -> Path:
    """Where data sets are looked for and fetched to when nobody names a folder.

    ``SEATRIAL_DATA``, else ``$XDG_CACHE_HOME/seatrial/data``, else ``~/.cache/seatrial/data``; for a user without a
    home, as containers have them, a folder of that user among the temporary files.
    """
    if environ.get("SEATRIAL_DATA"):
        return Path(os.path.expanduser(environ["SEATRIAL_DATA"]))
    # A relative path is to be ignored, by the XDG Base Directory Specification.
    if os.path.isabs(environ.get("XDG_CACHE_HOME", "")):
        return Path(environ["XDG_CACHE_HOME"], "seatrial", "data")
    home = environ.get("HOME") or os.path.expanduser("~")
    if os.path.isabs(home):
        return Path(home, ".cache", "seatrial", "data")
    return Path(tempfile.gettempdir(), f"seatrial-{os.getuid()}", "data")


def find(name: str, folder: Path) -> tuple[Path, ...] | None:
    """The files of a data set in the first layout that is complete; None where there is none.

    For MNIST and sets like it: images and labels to train, images and labels to test. For CIFAR-10: the archive, or the
    folder of its files. Raises RequestError for a name that is not among ``DATASETS``.
    """
    if name not in DATASETS:
        raise RequestError(f"{name!r} is no data set of files; those are {', '.join(DATASETS)}.")
    if name == "cifar10":
        return _find_cifar10(folder)
    for place in (folder / name, folder / _TORCHVISION[name]):
        files = [_packed_or_plain(place / download.name) for download in DATASETS[name].downloads]
        if all(files):
            return tuple(filter(None, files))
    return None


def require(name: str, folder: Path) -> tuple[Path, ...]:
    """As ``find``; where a data set is not there, a RequestError that says what to do. Nothing is downloaded."""
    files = find(name, folder)
    if files is None:
        folder = folder.absolute()
        raise RequestError(
            f"{name} is not in {folder} on {socket.gethostname()}{_there_instead(name, folder)}: fetch it with "
            f"`seatrial data fetch {name} --data {shlex.quote(str(folder))}`, or name the directory that has it with "
            f"SEATRIAL_DATA (or --data of train), or train on digits or {_SYNTHETIC[name]}, which need no files."
        )
    return files


def _packed_or_plain(path: Path) -> Path | None:
    """Packed first: gzip has a checksum."""
    return next((file for file in (path, path.with_suffix("")) if os.path.isfile(file)), None)


def _find_cifar10(folder: Path) -> tuple[Path, ...] | None:
    (archive,) = DATASETS["cifar10"].downloads
    for place in (folder / "cifar10", folder):
        if os.path.isfile(place / archive.name):
            return (place / archive.name,)
        if all(os.path.isfile(place / _BATCHES / name) for name in (*cifar.TRAIN_FILES, cifar.TEST_FILE)):
            return (place / _BATCHES,)
    return None


def _there_instead(name: str, folder: Path) -> str:
    """What a person may have taken for the data set."""
    if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
        return " (which may not be read by this user)"
    if name == "cifar10":
        places = (place / "cifar-10-batches-py" for place in (folder / "cifar10", folder))
        python = next(filter(os.path.isdir, places), None)
        return f" ({python} is the version for Python, a pickle, which is not read)" if python else ""
    for place in (folder / name, folder / _TORCHVISION[name]):
        files = {download.name: _packed_or_plain(place / download.name) for download in DATASETS[name].downloads}
        if any(files.values()):
            return f" ({place} lacks {', '.join(missing for missing, path in files.items() if path is None)})"
    return ""
