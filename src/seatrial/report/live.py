"""The line on a terminal that moves while a trial runs. It needs rich, so the file that travels leaves it out."""

from __future__ import annotations

from typing import IO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["Live"]


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
