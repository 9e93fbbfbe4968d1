"""The live line on a terminal, drawn by rich; ``report/packages.py`` says what happens without rich."""

from __future__ import annotations

import os
from typing import IO, cast

from seatrial.report.packages import is_importable
from seatrial.util.streams import Forgiving, begin_live_line, end_live_line


def live(stream: IO[str] | None, *, bar: bool) -> Live | None:
    """Start a live line if the stream is a terminal; else, or where rich cannot be imported, return None."""
    if stream is None or not Forgiving(stream).isatty() or not is_importable("rich.progress"):
        return None
    if "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return None
    return Live(stream, bar=bar)


class Live:
    """A line with a spinner or a bar on standard error, and text above it. ``close`` clears it.

    Nothing here raises where the terminal is gone: an error of ours would replace the outcome of the run.
    """

    def __init__(self, stream: IO[str], *, bar: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (TimeElapsedColumn(), BarColumn()) if bar else (SpinnerColumn(), TimeElapsedColumn())
        self._console = Console(file=cast("IO[str]", Forgiving(stream)))
        # rich would not restore a standard output that is closed.
        self._line = Progress(
            *columns,
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._line.add_task("starting", total=1.0 if bar else None)
        try:
            self._line.start()
        except RuntimeError:  # no further thread; the cursor is hidden already
            self._line.stop()
            raise
        begin_live_line(self.print)

    def show(self, text: str, share: float = 0.0) -> None:
        """Replace the text of the line; ``share`` of the bar, from 0 to 1, is filled."""
        self._line.update(self._task, description=text, completed=share)

    def print(self, text: str) -> None:
        """Write lines above the live line, without interpreting them."""
        self._console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Clear the line."""
        end_live_line(self.print)
        self._line.stop()
