"""Progress of a trial on standard error: one line for each finished check, and on a terminal the one at work."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import IO, Any

from seatrial.report.live import live
from seatrial.util.streams import Forgiving, begin_live_line, end_live_line
from seatrial.util.terminal import columns_of, wrapped
from seatrial.util.text import format_seconds, in_label, printable

_QUEUE_SIZE = 1_000
"""Lines that wait for a terminal or a reader."""
_CLOSE_S = 2.0
_ENDS = {"done": "", "interrupted": ", interrupted", "deadline": ", ended by its deadline"}
"""Outcome of a step -> the end of the line of its check; any other one is named."""


def _how(event: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Return what was seen of a rank or node; ranks that still start are neither stuck nor late."""
    return "not ready" if event.get("step") == -1 and entry["how"] in ("stuck", "late") else str(entry["how"])


class Progress:
    """Shows each check when it has finished, ``[6/8] training 25 s``, called with each event of a trial.

    A terminal also shows the step at work. Never raises where the stream has no reader, and never waits for one: a
    thread writes, since agents that hear nothing for 30 s end their ranks, and a terminal may be stopped (Ctrl-S) for
    longer. What others print on standard error meanwhile (``print_status``) takes the same way.
    """

    def __init__(self, stream: IO[str] | None) -> None:
        """``stream`` is None where standard error was closed before the start, or nobody wants to read it."""
        self._stream = None if stream is None else Forgiving(stream)
        self._columns = columns_of(stream)
        self._checks: list[str] = []
        self._check = ""
        """The check whose steps run."""
        self._outcome = ""
        self._seconds = 0.0
        """Time of its steps so far."""
        self._ready = 0
        self._world = 0
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(_QUEUE_SIZE)
        self._left_out = 0
        self._thread = threading.Thread(target=self._write_all, name="progress", daemon=True)
        if stream is not None:
            self._thread.start()
        # Last: nobody would clear it where the thread could not be started.
        self._live = live(stream, bar=False)
        if stream is not None:
            begin_live_line(self._put_text)

    def __call__(self, event: dict[str, Any]) -> None:
        try:
            lines = list(self._lines(event))
            now = self._at_work(event)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
            return  # the fold reports a malformed event; it must not delay the next step
        if self._stream is None:
            return
        for line in lines:
            self._print(line)
        if self._live is not None and now is not None:
            self._put(partial(self._live.show, printable(now)))

    def close(self) -> None:
        """Show the last check, and clear the live line, for two seconds at most."""
        if self._stream is None:
            return
        for line in self._finished():
            self._print(line)
        end_live_line(self._put_text)
        if self._live is not None:
            self._put(self._live.close)
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_CLOSE_S)
        self._thread.join(_CLOSE_S)

    def _print(self, text: str) -> None:
        self._put_text("".join(f"{part}\n" for part in wrapped(printable(text), self._columns)))

    def _put_text(self, text: str) -> None:
        self._put(partial(self._write, text))

    def _put(self, write: Callable[[], None]) -> None:
        try:
            self._queue.put_nowait(write)
        except queue.Full:
            self._left_out += 1

    def _write_all(self) -> None:
        while (write := self._queue.get()) is not None:
            write()
            if self._left_out:
                count, self._left_out = self._left_out, 0
                self._write(f"({count} lines were not shown: they were not read in time)\n")

    def _write(self, text: str) -> None:
        if self._live is not None:
            self._live.print(text)
        elif self._stream is not None:
            self._stream.write(text)
            self._stream.flush()

    def _lines(self, event: dict[str, Any]) -> Iterator[str]:
        """Yield the lines that stay."""
        kind = event.get("kind")
        if kind == "run":
            self._checks = [str(check) for check in event.get("plan", {}).get("checks", ())]
        elif kind == "generation":
            yield from self._finished()
            self._ready, self._world = 0, len(event["ranks"])
            if event["gen"]:
                yield f"starting {self._world} ranks again, without the suspects (generation {event['gen']})"
        elif kind == "rank":
            self._ready += 1
            if self._ready == self._world:
                ranks = "1 rank is" if self._world == 1 else f"{self._world} ranks are"
                yield f"{ranks} ready: {in_label(str(event['device']))}"
        elif kind == "step":
            if event["check"] != self._check:
                yield from self._finished()
                self._check = str(event["check"])
        elif kind == "step_end":
            self._seconds += float(event["seconds"])
            self._outcome = _ENDS.get(event["outcome"], f", ended by {event['outcome']}")
            if event["outcome"] != "done":
                yield from self._finished()
        elif kind == "trouble":
            suspects = ", ".join(
                f"{'node' if 'node' in entry else 'rank'} {entry.get('node', entry.get('rank'))} {_how(event, entry)}"
                for entry in event["seen"]
            )
            yield f"trouble: {suspects}"
        elif kind == "interrupted":
            yield f"interrupted by {event['by']}: ending the ranks, keeping the measurements so far"

    def _finished(self) -> Iterator[str]:
        """Yield the line of the check whose steps are over."""
        if self._check:
            is_known = self._check in self._checks
            position = f"[{self._checks.index(self._check) + 1}/{len(self._checks)}] " if is_known else ""
            yield f"{position}{self._check} {format_seconds(self._seconds)}{self._outcome}"
        self._check, self._outcome, self._seconds = "", "", 0.0

    def _at_work(self, event: dict[str, Any]) -> str | None:
        """Return what the live line shows from now on; None: as before."""
        if event.get("kind") == "step":
            name = event["check"] if event["stage"] == "measure" else f"{event['check']}: {event['stage']}"
            alone = f" (rank {event['ranks'][0]} alone)" if event["stage"] == "repeat" else ""
            return f"{name}{alone}, limit {event['timeout_s']:.0f} s"
        return None
