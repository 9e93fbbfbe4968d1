"""What moves on a terminal meanwhile. It needs rich, so the file that travels leaves it out."""

from __future__ import annotations

from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["Bar", "Live"]


class Live:
    """Runs from its start to ``close``, which clears the line."""

    def __init__(self, stream: IO[str]) -> None:
        columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
        # A standard output that is closed would not be given back.
        self._line = Progress(
            *columns, console=Console(file=stream), transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._task = self._line.add_task("starting", total=None)
        self._line.start()

    def show(self, text: str) -> None:
        """Put the text in place of the one before."""
        self._line.update(self._task, description=text)

    def close(self) -> None:
        """Clear the line."""
        self._line.stop()


class Bar:
    """A bar with a text, and lines above it; until ``close``, which clears it."""

    def __init__(self, stream: IO[str]) -> None:
        columns = (TimeElapsedColumn(), BarColumn(), TextColumn("{task.description}", markup=False))
        self._console = Console(file=stream)
        self._line = Progress(
            *columns, console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._task = self._line.add_task("starting", total=1.0)
        self._line.start()

    def show(self, text: str, share: float) -> None:
        """Put the text in place of the one before; ``share`` of the whole is done, from 0 to 1."""
        self._line.update(self._task, description=text, completed=share)

    def print(self, text: str) -> None:
        """Lines above the bar, as they are."""
        self._console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Clear the bar."""
        self._line.stop()
