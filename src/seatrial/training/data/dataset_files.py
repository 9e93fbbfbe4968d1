"""The files of data sets on disk: the default folder, the known layouts in it, and the error when they are missing."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from seatrial.errors import RequestError
from seatrial.files import has_entry, status_behind_links
from seatrial.folders import cache_folder, make_private, own_folder_name, require_private, temporary_place
from seatrial.training.data import cifar
from seatrial.training.data.data_file import is_folder
from seatrial.training.data.datasets import DATASETS

DATA_VARIABLE = "SEATRIAL_DATA"
"""The user's variable with the folder of the data sets."""
_TORCHVISION = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}
_SYNTHETIC = {"mnist": "synthetic-1x28x28", "fashion-mnist": "synthetic-1x28x28", "cifar10": "synthetic-3x32x32"}
_BATCHES = "cifar-10-batches-bin"
_Exists = Callable[[Path, Path], bool]
"""Whether a path below the folder of data, which others may share, leads to something."""


def default_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder where data sets are searched for and fetched to when the user names none.

    ``SEATRIAL_DATA``, else ``$XDG_CACHE_HOME/seatrial/data``, else ``~/.cache/seatrial/data``; for a user without a
    home, as in containers, a folder of that user among the temporary files.
    """
    if environ.get(DATA_VARIABLE):
        return Path(os.path.expanduser(environ[DATA_VARIABLE]))
    cache = cache_folder(environ)
    return Path(cache, "seatrial", "data") if cache else _temporary_folder() / "data"


def make_default_folder(environ: Mapping[str, str]) -> Path:
    """Return the default folder. Of a temporary one the part that keeps others out is made, or checked.

    Raises RequestError when others can write there.
    """
    folder = default_folder(environ)
    if folder.parent == _temporary_folder():
        with _in_words(folder.parent):
            make_private(folder.parent)
    return folder


def _temporary_folder() -> Path:
    return Path(temporary_place(), own_folder_name())


@contextlib.contextmanager
def _in_words(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RequestError(
            f"the data in {folder} are not used ({error.strerror or error}); name a directory with --data."
        ) from error


def find(name: str, folder: Path) -> tuple[Path, ...] | None:
    """Return the files of a data set in the first layout that is complete; None where there is none.

    For MNIST and Fashion-MNIST: training images and labels, test images and labels. For CIFAR-10: the archive, or the
    folder with its files. Raises RequestError for a name that is not in ``DATASETS``, and for a temporary folder to
    which others can write.
    """
    if name not in DATASETS:
        raise RequestError(f"{name!r} is not a data set with files; those are {', '.join(DATASETS)}.")
    if folder.parent.name == own_folder_name():
        with _in_words(folder.parent):
            try:
                require_private(folder.parent)
            except FileNotFoundError:  # Nobody has looked at one that appears now.
                return None
    # Files that cannot be used, such as a FIFO or a broken link, are reported where they are read.
    return _find(name, folder, _is_file) or _find(name, folder, has_entry)


def candidates(name: str, folder: Path) -> list[Path]:
    """Return each path at which ``find`` may look for a file of a data set."""
    files = [download.name for download in DATASETS[name].downloads]
    if name == "cifar10":
        files += [f"{_BATCHES}/{file}" for file in (*cifar.TRAIN_FILES, cifar.TEST_FILE)]
        return [layout / file for layout in (folder / name, folder) for file in files]
    files += [Path(file).stem for file in files]
    return [layout / file for layout in (folder / name, folder / _TORCHVISION[name]) for file in files]


def require(name: str, folder: Path) -> tuple[Path, ...]:
    """Return the files as ``find`` does. Raises RequestError, with the ways to get them, where the data set is missing.

    Nothing is downloaded.
    """
    files = find(name, folder)
    if files is None:
        folder = folder.absolute()
        raise RequestError(
            f"{name} is not in {folder} on {socket.gethostname()}{_near_miss(name, folder)}: fetch it with "
            f"`seatrial data fetch {name} --data {shlex.quote(str(folder))}`, or name the directory that has it with "
            f"SEATRIAL_DATA (or --data), or train on digits or {_SYNTHETIC[name]}, which need no files."
        )
    return files


def _is_file(path: Path, folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(status_behind_links(path, folder).st_mode)
    return False


def _find(name: str, folder: Path, exists: _Exists) -> tuple[Path, ...] | None:
    if name == "cifar10":
        return _find_cifar10(folder, exists)
    for layout in (folder / name, folder / _TORCHVISION[name]):
        files = [_packed_or_plain(layout / download.name, folder, exists) for download in DATASETS[name].downloads]
        if all(files):
            return tuple(filter(None, files))
    return None


def _packed_or_plain(path: Path, folder: Path, exists: _Exists) -> Path | None:
    """Return the compressed file if it exists, else the plain one: gzip has a checksum."""
    return next((file for file in (path, path.with_suffix("")) if exists(file, folder)), None)


def _find_cifar10(folder: Path, exists: _Exists) -> tuple[Path, ...] | None:
    (archive,) = DATASETS["cifar10"].downloads
    for layout in (folder / "cifar10", folder):
        if exists(layout / archive.name, folder):
            return (layout / archive.name,)
        if all(exists(layout / _BATCHES / name, folder) for name in (*cifar.TRAIN_FILES, cifar.TEST_FILE)):
            return (layout / _BATCHES,)
    return None


def _near_miss(name: str, folder: Path) -> str:
    """Return words about files in the folder that look like the data set but cannot be used; empty if there are
    none."""
    if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
        return " (which this user may not read)"
    if name == "cifar10":
        layouts = (layout / "cifar-10-batches-py" for layout in (folder / "cifar10", folder))
        python = next((layout for layout in layouts if is_folder(layout, folder)), None)
        return f" ({python} is the Python version, a pickle, which seatrial does not read)" if python else ""
    for layout in (folder / name, folder / _TORCHVISION[name]):
        names = [download.name for download in DATASETS[name].downloads]
        files = {each: _packed_or_plain(layout / each, folder, _is_file) for each in names}
        if any(files.values()):
            return f" ({layout} lacks {', '.join(missing for missing, path in files.items() if path is None)})"
    return ""
