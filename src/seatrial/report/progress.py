"""What a person sees while a trial runs: one live line on a terminal, plain lines elsewhere, on standard error."""

from __future__ import annotations

import os
import time
from typing import IO, Any, cast

from seatrial.report.parts import optional
from seatrial.report.text import printable

__all__ = ["Progress"]


class _Forgiving:
    """A stream that is silent for ever once it could not be written: its terminal or its reader is gone."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream: IO[str] | None = stream
        self.encoding = getattr(stream, "encoding", None)

    def isatty(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except (OSError, ValueError):
            return False

    def write(self, text: str) -> int:
        try:
            if self._stream is not None:
                self._stream.write(text)
        except (OSError, ValueError):
            self._stream = None
        return len(text)

    def flush(self) -> None:
        try:
            if self._stream is not None:
                self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


class Progress:
    """Callable with each event. Costs nothing that the trial would notice: a step is told when it begins and ends.

    Never raises for want of somebody who reads it.
    """

    def __init__(self, stream: IO[str] | None) -> None:
        """``stream`` None: standard error was closed before we began."""
        self._stream = None if stream is None else _Forgiving(stream)
        self._started_at = time.monotonic()
        self._steps: dict[int, str] = {}
        self._ready = 0
        self._world = 0
        self._live: Any = None
        if self._stream is not None and self._stream.isatty() and "NO_COLOR" not in os.environ:
            live = optional("live")
            self._live = live.Live(cast("IO[str]", self._stream)) if live else None

    def __call__(self, event: dict[str, Any]) -> None:
        try:
            text = self._text(event)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
            return  # an event that is not whole is told by the fold, and must not keep the next step waiting
        if text is None or self._stream is None:
            return
        shown = printable(text)
        if self._live is not None:
            self._live.show(shown)
        else:
            elapsed_s = time.monotonic() - self._started_at
            self._stream.write(f"[{elapsed_s:6.1f} s] {shown}\n")
            self._stream.flush()

    def close(self) -> None:
        """Clear the live line."""
        if self._live is not None:
            self._live.close()

    def _text(self, event: dict[str, Any]) -> str | None:
        kind = event.get("kind")
        if kind == "generation":
            self._ready, self._world = 0, len(event["ranks"])
            again = "" if event["gen"] == 0 else f" again, without the suspects (generation {event['gen']})"
            return f"starting {self._world} ranks{again}"
        if kind == "rank":
            self._ready += 1
            return f"all {self._world} ranks are ready: {event['device']}" if self._ready == self._world else None
        if kind == "step":
            name = event["check"] if event["stage"] == "measure" else f"{event['check']}: {event['stage']}"
            self._steps[event["step"]] = name
            alone = f" (rank {event['ranks'][0]} alone)" if event["stage"] == "repeat" else ""
            return f"{name}{alone}, at most {event['timeout_s']:.0f} s"
        if kind == "step_end" and event["outcome"] != "done":
            return f"{self._steps.get(event['step'], 'step')}: {event['outcome']} after {event['seconds']:.1f} s"
        if kind == "trouble":
            who = ", ".join(
                f"{'node' if 'node' in seen else 'rank'} {seen.get('node', seen.get('rank'))} {seen['how']}"
                for seen in event["seen"]
            )
            return f"trouble: {who}"
        if kind == "interrupted":
            return f"interrupted by {event['by']}: ending the ranks, keeping what was measured"
        return None
