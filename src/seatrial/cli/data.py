"""``seatrial data fetch``: have the files of a data set where a training looks for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from seatrial.errors import RequestError
from seatrial.report.streams import tell

if TYPE_CHECKING:
    from seatrial.training.data.manifest import DataSet, Download

__all__ = ["data"]


@click.group()
def data() -> None:
    """Have the data sets that trainings need."""


@data.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--data",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to keep it; default: SEATRIAL_DATA, else $XDG_CACHE_HOME/seatrial/data, else ~/.cache/seatrial/data.",
)
@click.option(
    "--mirror", "mirrors", multiple=True, metavar="URL", help="Fetch from here, and from nowhere else; may be repeated."
)
def fetch(name: str, folder: Path | None, mirrors: tuple[str, ...]) -> None:
    """Download the data set NAME: mnist, fashion-mnist or cifar10.

    What is there and right is left alone, a download that broke is continued, and no file is kept whose SHA-256 is not
    the published one. Exit code: 0 all files are there, 2 the request is wrong, 3 a file could not be had.
    """
    from seatrial.training.data import files
    from seatrial.training.data.fetch import fetch as fetch_files
    from seatrial.training.data.fetch import mirror_url

    dataset = _dataset(name)
    if dataset is None:
        click.echo(f"{name} needs no files.")
        return
    if mirrors:
        dataset = replace(dataset, mirrors=tuple(map(mirror_url, mirrors)))
    with _Shown() as shown:
        paths = fetch_files(
            dataset, folder or files.default_folder(os.environ), tell=shown.tell, on_bytes=shown.on_bytes
        )
    click.echo(f"{name}: {', '.join(path.name for path in paths)} in {paths[0].parent}")


def _dataset(name: str) -> DataSet | None:
    """The files to fetch; None for a workload without files. Raises RequestError for an unknown name."""
    from seatrial.training.data import find_workload
    from seatrial.training.data.manifest import DATASETS

    if name in DATASETS:
        return DATASETS[name]
    try:
        find_workload(name, num_samples=1)
    except RequestError:
        nearest = get_close_matches(name, DATASETS, n=1, cutoff=0.0)[0]
        raise RequestError(
            f"no data set {name!r} can be fetched; did you mean {nearest!r}? Known: {', '.join(DATASETS)}."
        ) from None
    return None


class _Shown:
    """Progress on standard error: a bar on a terminal, elsewhere a line at each tenth of a file."""

    def __init__(self) -> None:
        self._live: Any = None
        self._tasks: dict[str, Any] = {}
        self._tenths: dict[str, int] = {}
        self.tell: Callable[[str], None] = tell

    def __enter__(self) -> _Shown:
        if sys.stderr is not None and sys.stderr.isatty() and "NO_COLOR" not in os.environ:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.progress import TransferSpeedColumn as SpeedColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
            console = Console(file=sys.stderr)
            self._live = Progress(*columns, SpeedColumn(), TimeRemainingColumn(), console=console)
            self.tell = lambda text: console.print(text, markup=False, highlight=False)
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
            self.tell(f"{name}: {size_bytes} of {total_bytes} bytes")
