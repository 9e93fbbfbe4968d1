"""What a person sees while a training runs, and while a script does: a bar or plain lines, and the ranks' output."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from seatrial.report.parts import optional
from seatrial.report.text import printable
from seatrial.worker.train_words import progress_words

__all__ = ["ProgramDisplay"]

_PLAIN_S = 5.0
_MOST_WAITING = 2_000
_CLOSE_S = 2.0


class ProgramDisplay:
    """Callable with each event (``keep``) and with output and progress (``hear``). Never waits for who reads it.

    A pager or a stopped terminal takes nothing for hours, and the loop that calls us keeps the ranks alive: what is to
    be written waits in a queue that a thread empties, and what does not fit into it is counted.
    """

    def __init__(self, output: IO[str] | None, errors: IO[str] | None, *, prefix: bool) -> None:
        """``output``: where lines of ranks go; ``errors``: progress and notes; ``prefix``: say whose line it is."""
        self._output, self._errors = output, errors
        self._prefix = prefix
        self._started_at = time.monotonic()
        self._told_at = 0.0
        self._left_out = 0
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(_MOST_WAITING)
        self._bar: Any = None
        if errors is not None and errors.isatty() and "NO_COLOR" not in os.environ:
            live = optional("live")
            self._bar = live.Bar(errors) if live else None
        self._thread = threading.Thread(target=self._write_all, name="display", daemon=True)
        self._thread.start()

    def keep(self, event: dict[str, Any]) -> None:
        """An event: what a person is to know of it now."""
        kind = event.get("kind")
        if kind == "note":
            self._say(str(event.get("text", "")))
        elif kind == "interrupted":
            self._say(f"interrupted by {event.get('by')}: the ranks get SIGTERM, and time to save and end")

    def hear(self, message: dict[str, Any]) -> None:
        """A rank's lines, or its progress. Raises what a message that makes no sense raises."""
        kind = message.get("kind")
        if kind == "output":
            self._show(int(message["rank"]), [str(line) for line in message["lines"]], int(message["left_out"]))
        elif kind == "progress":
            words, share = progress_words(message), message["step"] / max(message["num_steps"], 1)
            if self._bar is not None:
                bar = self._bar
                self._put(lambda: bar.show(printable(words), share))
            elif time.monotonic() - self._told_at >= _PLAIN_S:
                self._told_at = time.monotonic()
                self._say(words)

    def close(self) -> None:
        """Write what is left, as long as somebody takes it."""
        self._put_anyway(None)
        self._thread.join(_CLOSE_S)
        if self._bar is not None:
            self._bar.close()

    def _show(self, rank: int, lines: list[str], left_out: int) -> None:
        head = f"[rank {rank}] " if self._prefix else ""
        texts = [head + printable(line) for line in lines]
        if left_out:
            texts.append(f"{head}({left_out} lines are not shown; the file of the rank has them all)")
        if texts:
            self._put(lambda: self._write(self._output, "\n".join(texts) + "\n"))

    def _say(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._started_at
        self._put(lambda: self._write(self._errors, f"[{elapsed_s:6.1f} s] {printable(text)}\n"))

    def _put(self, write: Callable[[], None]) -> None:
        try:
            self._queue.put_nowait(write)
        except queue.Full:
            self._left_out += 1

    def _put_anyway(self, write: Callable[[], None] | None) -> None:
        with contextlib.suppress(queue.Full):
            self._queue.put(write, timeout=_CLOSE_S)

    def _write_all(self) -> None:
        while (write := self._queue.get()) is not None:
            write()
            if self._left_out:
                count, self._left_out = self._left_out, 0
                self._write(self._errors, f"({count} lines were not shown: nobody read them in time)\n")

    def _write(self, stream: IO[str] | None, text: str) -> None:
        """Above the bar, where that stands on the same terminal; nothing once the reader is gone."""
        if stream is None:
            return
        try:
            if self._bar is not None and stream.isatty():
                self._bar.print(text)
            else:
                stream.write(text)
                stream.flush()
        except (OSError, ValueError):
            if stream is self._output:
                self._output = None
            else:
                self._errors = None
