"""The terminal while a training or a script runs: a bar or plain lines, and the output of the ranks."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import IO, Any, cast

from seatrial.agent.last_output import shown as cut_line
from seatrial.conductor.script_stacks import kernel_function, main_thread_frames
from seatrial.protocol.commands import Output, TrainingProgress
from seatrial.report.live import live
from seatrial.report.program_ending import speaker
from seatrial.training.progress_lines import progress_words
from seatrial.util.streams import begin_live_line, end_live_line, print_text
from seatrial.util.terminal import columns_of, wrapped
from seatrial.util.text import as_name, printable, printable_in_color, quoted

_PLAIN_S = 5.0
_KEPT = "the file of the rank has them"
_GOES_WITH_POD = "they are lost with this pod, so let the ranks print less, or write into a file on a --pvc"
_QUEUE_SIZE = 2_000
_MAX_QUEUED_CHARS = 16 << 20
"""Characters that wait for a slow reader; what comes beyond them is counted."""
_MAX_MESSAGE_CHARS = 256 << 10
"""Characters of one message that are shown: an agent sends 64 KiB of a rank at once, and 16 KiB a second."""
_CLOSE_S = 2.0
_MAX_WHERE = 33
"""Ranks of one question that are shown, and a line for the others."""
_PLACES_S = 2.0
"""Time for which places are held, so that those of all nodes are shown in the order of the ranks."""
_STATES = {"R": "runs", "S": "sleeps", "D": "waits for a disk", "T": "is stopped", "t": "is traced", "Z": "has ended"}
_MAX_FRAMES = 6
_TRACEBACK = re.compile(r"(\[rank\d+\]: ?)?Traceback \(most recent call last\):")
_MAX_HOST_CHARS = 253
"""The longest name that a host can have in DNS."""
_NODE = re.compile(r"node([0-9]+)")
"""The source of an agent's events."""
_HELD_S = 3.0
"""A traceback may be that of a rank which only lost another one, and news of that one's end may take so long."""
_MAX_HELD = 200
"""Lines of one rank that are held."""
_MAX_HELD_CHARS = 8 << 20
"""Characters of all ranks that are held; the queue has room for them."""
_POLL_S = 0.25
"""How often the thread that writes looks whether something was held for its time."""


class ProgramDisplay:
    """Shows events (``on_event``), and output and progress of ranks (``on_message``). Never waits for a reader.

    A pager or a stopped terminal may read nothing for hours, and the loop that calls this display keeps the ranks
    alive. So a thread writes from a queue, and lines that do not fit into the queue are counted.
    """

    def __init__(
        self,
        output: IO[str] | None,
        errors: IO[str] | None,
        *,
        prefix: bool,
        kept: bool = True,
        grace_s: float = 30.0,
    ) -> None:
        """``output`` gets the lines of ranks, ``errors`` progress and notes; ``prefix``: name the rank of each line.

        ``kept``: whether the files of the ranks outlive the run; those in a pod do not. ``grace_s``: seconds from
        SIGTERM to SIGKILL when somebody stops the run.
        """
        self._output, self._errors = output, errors
        self._prefix = prefix
        self._grace_s = grace_s
        self._where = _KEPT if kept else _GOES_WITH_POD
        self._text = printable_in_color if _takes_colors(output) else printable
        self._started_at = time.monotonic()
        self._progress_at = 0.0
        self._left_out = 0
        self._hosts: dict[str, str] = {}
        """Source of events -> hostname."""
        self._held: dict[int, list[str]] = {}
        """Rank -> its lines from a traceback on, which are not written yet."""
        self._held_chars = 0
        """Characters of all of them."""
        self._held_at = 0.0
        """When the first of them were held (``time.monotonic``)."""
        self._places: list[tuple[int, str, str]] = []
        """Where ranks are, as far as that is not shown yet: rank, source of the event, words."""
        self._places_at = 0.0
        """When the first of them came (``time.monotonic``)."""
        self._held_lock = threading.Lock()
        self.last_lines: dict[int, str] = {}
        """Rank -> its last line that was shown or held, as its agent keeps it: cut, and without colors."""
        self._has_failed = False
        """Whether a rank of this generation has failed: then what is held waits for the outcome."""
        self._started = False
        self._where_left = _MAX_WHERE
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(_QUEUE_SIZE)
        self._queued_chars = 0
        self._queued_lock = threading.Lock()
        self._thread = threading.Thread(target=self._write_all, name="display", daemon=True)
        self._thread.start()
        # Last: nobody would clear it where the thread could not be started.
        self._bar = live(errors, bar=True)
        if errors is not None:
            begin_live_line(self._put_status)

    def on_event(self, event: dict[str, Any]) -> None:
        """Show a note, an interruption, or where a rank of a script is."""
        kind = event.get("kind")
        if kind == "stack" and "quiet_s" in event:
            self._keep_place(event)
            return
        self._show_places()
        if kind == "note":
            self._where_left = _MAX_WHERE
            text, source = str(event.get("text", "")), speaker(event)
            self._say(f"{source} says: {quoted(text)}" if source else text)
        elif kind == "node" and _NODE.fullmatch(str(event.get("src"))):
            host = str(event.get("hostname", ""))[:_MAX_HOST_CHARS]
            self._hosts.setdefault(str(event["src"]), host and as_name(host))
        elif kind == "generation":
            self._started, self._has_failed = True, False
            self._release()
            count = len(event.get("ranks") or ())
            self._show_bar(f"{count} rank{' runs' if count == 1 else 's run'}", 0.0)
        elif kind == "exit" and event.get("code") and not event.get("ours"):
            self._has_failed = True
        elif kind == "interrupted" and not self._started:
            # Ranks that no conductor started tell that they run by what they print.
            when = "" if self.last_lines else " before the ranks were started"
            self._say(f"interrupted by {event.get('by')}{when}")
        elif kind == "interrupted":
            self._say(f"interrupted by {event.get('by')}: {self._grace_words(str(event.get('by')))}")

    def _grace_words(self, by: str) -> str:
        # News of an agent or a launcher is no signal to the controller, which counts two of those.
        own = {"SIGINT": "a second Ctrl-C", "SIGTERM": "a second SIGTERM", "SIGHUP": "Ctrl-C"}
        again = own.get(by, "Ctrl-C twice")
        return (
            f"the ranks get SIGTERM, and {self._grace_s:g} s (--grace) to save and to exit; {again} ends them at once"
        )

    def on_message(self, message: dict[str, Any]) -> None:
        """Show lines or progress of a rank. Raises LookupError, TypeError or ValueError for a malformed message."""
        received = cast("Output | TrainingProgress", message)
        match received["kind"]:
            case "output":
                if not isinstance(received["lines"], list):
                    raise TypeError("the output of a rank is no list of lines")
                lines = _within([str(line) for line in received["lines"]], _MAX_MESSAGE_CHARS)
                left_out = int(received["left_out"]) + len(received["lines"]) - len(lines)
                self._show(int(received["rank"]), lines, left_out)
            # The others have none to report: one of them would show a training that there is not.
            case "progress" if received["rank"] == 0:
                self._show_progress(received)
            case _:
                pass

    def _keep_place(self, event: dict[str, Any]) -> None:
        """Have places shown in the order of the ranks: nodes answer in any. Raises TypeError or ValueError."""
        # Read at once, where an error is that of its sender.
        place = int(event.get("rank", 0)), str(event.get("src")), where_words(event)
        with self._held_lock:
            if not self._places:
                self._places_at = time.monotonic()
            self._places.append(place)

    def _show_places(self) -> None:
        with self._held_lock:
            places, self._places = self._places, []
        for rank, source, words in sorted(places):
            self._show_where(rank, source, words)

    def _show_where(self, rank: int, source: str, words: str) -> None:
        self._where_left -= 1
        if self._where_left > 0:
            host = self._hosts.get(source, "")
            # One machine may be several nodes.
            several = list(self._hosts.values()).count(host) > 1
            where = f" on {source.replace('node', 'node ')} ({host})" if several else f" on node {host}"
            self._say(f"rank {rank}{host and where}: {words}")
        elif self._where_left == 0:
            self._say("the other ranks: in the events of the run, kind stack")

    def _show_progress(self, progress: TrainingProgress) -> None:
        words, share = progress_words(progress), progress["step"] / max(progress["num_steps"], 1)
        if self._bar is not None:
            self._show_bar(words, share)
        elif time.monotonic() - self._progress_at >= _PLAIN_S:
            self._progress_at = time.monotonic()
            self._say(words)

    def _show_bar(self, words: str, share: float) -> None:
        if self._bar is not None:
            bar = self._bar
            self._put(lambda: bar.show(printable(words), share))

    def close(self) -> dict[int, str]:
        """Write the rest of the queue, for two seconds at most; return by rank the output that is still held."""
        end_live_line(self._put_status)
        self._show_places()
        with self._held_lock:
            held, self._held = self._held, {}
        self._put_anyway(None)
        self._thread.join(_CLOSE_S)
        if self._bar is not None:
            self._bar.close()
        return {} if self._output is None else {rank: "\n".join(texts) for rank, texts in held.items()}

    def _show(self, rank: int, lines: list[str], left_out: int) -> None:
        head = f"[rank {rank}] " if self._prefix else ""
        texts = [head + self._text(line) for line in lines]
        if said := [line for line in lines if line.strip()]:
            self.last_lines[rank] = cut_line(said[-1].encode(errors="replace"))
        if left_out:
            texts.append(f"{head}({left_out} lines are not shown; {self._where})")
        with self._held_lock:
            is_held = rank in self._held
            first = 0 if is_held else next((i for i, line in enumerate(lines) if _TRACEBACK.match(line)), len(texts))
            if held := texts[first:]:
                if not self._held:
                    self._held_at = time.monotonic()
                self._held.setdefault(rank, []).extend(held)
                self._held_chars += sum(map(len, held))
            is_full = len(self._held.get(rank, ())) > _MAX_HELD or self._held_chars > _MAX_HELD_CHARS
        if shown := texts[:first]:
            self._put_text("\n".join(shown) + "\n")
        if is_full:
            self._release()

    def _show_in_time(self) -> None:
        """Show what was held for its time. The thread that writes calls it: one for each message would be too many."""
        now = time.monotonic()
        with self._held_lock:
            has_places = bool(self._places) and now - self._places_at >= _PLACES_S
            has_lines = bool(self._held) and now - self._held_at >= _HELD_S and not self._has_failed
        if has_places:
            self._show_places()
        if has_lines:
            self._release()

    def _release(self) -> None:
        """Write what is held."""
        with self._held_lock:
            held, self._held, self._held_chars = self._held, {}, 0
            for texts in held.values():
                self._put_text("\n".join(texts) + "\n")

    def _say(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._started_at
        line = f"[{elapsed_s:6.1f} s] {printable(text)}"
        shown = "".join(f"{part}\n" for part in wrapped(line, columns_of(self._errors)))
        self._put(lambda: self._write(self._errors, shown))

    def _put(self, write: Callable[[], None]) -> bool:
        """Have something written; return whether there is room for it in the queue."""
        try:
            self._queue.put_nowait(write)
        except queue.Full:
            self._left_out += 1
            return False
        return True

    def _put_status(self, text: str) -> None:
        """Have lines written that others print on standard error (``print_status``): they wait for no terminal."""
        self._put(partial(self._write, self._errors, text))

    def _put_text(self, text: str) -> None:
        """Have lines of ranks written."""
        with self._queued_lock:
            if self._queued_chars + len(text) > _MAX_QUEUED_CHARS:
                self._left_out += text.count("\n")
            elif self._put(partial(self._write_text, text)):
                self._queued_chars += len(text)

    def _write_text(self, text: str) -> None:
        with self._queued_lock:
            self._queued_chars -= len(text)
        self._write(self._output, text)

    def _put_anyway(self, write: Callable[[], None] | None) -> None:
        with contextlib.suppress(queue.Full):
            self._queue.put(write, timeout=_CLOSE_S)

    def _write_all(self) -> None:
        while True:
            try:
                write = self._queue.get(timeout=_POLL_S)
            except queue.Empty:
                self._show_in_time()
                continue
            if write is None:
                return
            write()
            self._show_in_time()
            if self._left_out:
                count, self._left_out = self._left_out, 0
                self._write(self._errors, f"({count} lines were not shown: they were not read in time)\n")

    def _write(self, stream: IO[str] | None, text: str) -> None:
        """Write above the bar if it is on the same terminal; nothing once the reader is gone."""
        if stream is None:
            return
        try:
            if self._bar is not None and stream.isatty():
                self._bar.print(text)
            else:
                print_text(stream, text)
                stream.flush()
        except (OSError, ValueError):  # a closed file is a ValueError
            if stream is self._output:
                self._output = None
            else:
                self._errors = None


def _within(lines: list[str], most_chars: int) -> list[str]:
    """Return the first lines that have at most ``most_chars`` characters together."""
    total = 0
    for number, line in enumerate(lines):
        total += len(line) + 1
        if total > most_chars:
            return lines[:number]
    return lines


def _takes_colors(stream: IO[str] | None) -> bool:
    """Return whether a stream is a terminal with colors, or a pipe whose reader asks for them.

    NO_COLOR and FORCE_COLOR are the conventions of no-color.org and force-color.org.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0") or os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return stream is not None and stream.isatty() and os.environ.get("TERM") not in (None, "dumb")


def where_words(event: dict[str, Any]) -> str:
    """Return in words where a rank of a script is, from its ``stack`` event."""
    quiet_s = float(event.get("quiet_s", 0.0))
    line, function = str(event.get("last_line", "")), kernel_function(event)
    state = _STATES.get(str(event.get("state")), "is gone")
    output = f"last output {quiet_s:.0f} s ago ({quoted(line.strip(), 200)})" if line else "no output"
    words = f"{output}; {state}{function and f' in {function}'}"
    text = str(event.get("text", ""))
    frames = main_thread_frames(text)
    if frames:
        return f"{words}; {', called by '.join(frames[:_MAX_FRAMES])}"
    said = text.strip().partition("\n")[0]
    return f"{words}; {f'py-spy: {quoted(said)}' if said else 'no Python stack'}"
