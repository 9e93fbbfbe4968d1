"""The bar on a terminal that moves while a training runs. It needs rich, so the file that travels leaves it out."""

from __future__ import annotations

from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from seatrial.report.text import printable

__all__ = ["Bar"]


class Bar:
    """Runs from its start to ``stop``, which clears the line."""

    def __init__(self, stream: IO[str]) -> None:
        columns = (TimeElapsedColumn(), BarColumn(), TextColumn("{task.description}", markup=False))
        self._console = Console(file=stream)
        self._live = Progress(
            *columns, console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._task = self._live.add_task("starting", total=1.0)
        self._live.start()

    def update(self, words: str, share: float) -> None:
        """Put the words in place of those before; ``share`` from 0 to 1."""
        self._live.update(self._task, description=printable(words), completed=share)

    def print(self, text: str) -> None:
        """Write above the bar."""
        self._console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Clear the bar."""
        self._live.stop()
