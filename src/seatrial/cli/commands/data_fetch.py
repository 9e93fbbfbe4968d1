"""``seatrial data fetch``: download a data set into the folder where trainings look for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, cast

from seatrial.cli.command import Command
from seatrial.errors import RequestError
from seatrial.start import open_named_folder
from seatrial.targets.option import Option
from seatrial.util.streams import Forgiving, print_status
from seatrial.util.text import printable

if TYPE_CHECKING:
    from seatrial.training.data.datasets import DataSet, Download


def options() -> Mapping[str, tuple[Option, ...]]:
    """Return the options by the heading under which help shows them."""
    from pathlib import Path

    return {
        "Options": (
            Option(
                flags=(), name="name", help="Data set: mnist, fashion-mnist or cifar10.", metavar="NAME", required=True
            ),
            Option(
                flags=("--data",),
                name="folder",
                help="Folder for the files. Default: SEATRIAL_DATA, else $XDG_CACHE_HOME/seatrial/data, else"
                " ~/.cache/seatrial/data.",
                type=Path,
                metavar="DIR",
            ),
            Option(
                flags=("--mirror",),
                name="mirrors",
                help="Download from this URL and from nowhere else; repeatable.",
                metavar="URL",
                multiple=True,
            ),
        )
    }


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Download the data set; return the exit code."""
    from seatrial.training.data import dataset_files
    from seatrial.training.data.fetch import fetch as fetch_files
    from seatrial.training.data.fetch import mirror_url

    name, folder = options["name"], options["folder"]
    if folder is not None:
        try:
            os.close(open_named_folder(folder))
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            raise RequestError(f"--data {folder}: exists and is not a folder; name a folder.") from None
        except OSError as error:
            raise RequestError(f"--data {folder}: cannot be used ({error.strerror}); name another folder.") from None
    dataset = _dataset(name)
    if dataset is None:
        print(f"{name} needs no files.", flush=True)
        return 0
    if options["mirrors"]:
        dataset = replace(dataset, mirrors=tuple(map(mirror_url, options["mirrors"])))
    with _ProgressDisplay() as display:
        paths = fetch_files(
            dataset,
            folder or dataset_files.make_default_folder(os.environ),
            print_status=display.print_line,
            on_bytes=display.on_bytes,
        )
    print(f"{name}: {', '.join(path.name for path in paths)} in {printable(str(paths[0].parent))}", flush=True)
    return 0


def _dataset(name: str) -> DataSet | None:
    """Return the data set, or None for a workload without files. Raises RequestError for an unknown name."""
    from difflib import get_close_matches

    from seatrial.training.data import find_workload
    from seatrial.training.data.datasets import DATASETS

    if name in DATASETS:
        return DATASETS[name]
    try:
        find_workload(name, num_samples=1)
    except RequestError:
        near = get_close_matches(name.lower(), DATASETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise RequestError(f"no data set {name!r} can be downloaded{hint} Known: {', '.join(DATASETS)}.") from None
    return None


class _ProgressDisplay:
    """Progress on standard error: a bar on a terminal, elsewhere a line at each tenth of a file."""

    def __init__(self) -> None:
        self._live: Any = None
        self._tasks: dict[str, Any] = {}
        self._tenths: dict[str, int] = {}
        self.print_line: Callable[[str], None] = print_status

    def __enter__(self) -> _ProgressDisplay:
        if sys.stderr is not None and sys.stderr.isatty() and "NO_COLOR" not in os.environ:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.progress import TransferSpeedColumn as SpeedColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
            console = Console(file=cast("IO[str]", Forgiving(sys.stderr)))
            self._live = Progress(*columns, SpeedColumn(), TimeRemainingColumn(), console=console)
            self.print_line = lambda text: console.print(printable(text), markup=False, highlight=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def on_bytes(self, download: Download, size_bytes: int) -> None:
        name, total_bytes = download.name, download.size_bytes
        if self._live is not None:
            if name not in self._tasks:
                self._tasks[name] = self._live.add_task(name, total=total_bytes)
            self._live.update(self._tasks[name], completed=size_bytes)
        elif (tenth := 10 * size_bytes // total_bytes) > self._tenths.get(name, 0):
            self._tenths[name] = tenth
            self.print_line(f"{name}: {size_bytes} of {total_bytes} bytes")


COMMAND = Command(
    name="data fetch",
    order=6,
    summary="download a data set",
    text="""Download the data set NAME: mnist, fashion-mnist or cifar10.

seatrial leaves complete files alone, continues a broken download, and keeps no file whose SHA-256 is not the published
one. Exit code: 0 all files are there, 2 invalid options, 3 a file could not be downloaded.
""",
    options=options,
    run=run,
)
