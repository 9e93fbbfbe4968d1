"""The logs of pods: the first one's, in which the run tells of itself, and the others', which are kept.

What the first pod tells stands in numbered lines that prove that their writer knows the token of the run
(``record.Recorder.tell``). A log is anybody's: whatever else is in it, a line that a rank printed included, is text.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from seatrial.kubernetes.pods import PodSeen
from seatrial.launch.kubectl import Kubectl, end_at_once
from seatrial.verdict.handshake import proves
from seatrial.verdict.wire import PREFIX, Decoder

__all__ = ["Followed", "Kept"]

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d) ")
_AGAIN_S = 1.0
_MOST_LINE = 1 << 20
"""Longer lines are cut: nothing of ours is longer than 4,000 bytes, and memory has an end."""
_MOST_AT_ONCE = 32
"""Logs of other pods that are followed at the same time; those of the rest are fetched at the end."""
_FETCH_S = 10.0


class Followed:
    """The log of one container, from its beginning to its end, however often the stream breaks.

    After a break it is asked for from the second on in which the last line came; what was seen before is known by its
    number, or by its time.
    """

    def __init__(
        self, kubectl: Kubectl, pod: PodSeen, token: str, folder: Path, say: Callable[[list[str]], None]
    ) -> None:
        """``say``: gets lines that are none of ours."""
        self.pod = pod
        self.lost = 0
        """Messages that were told and are not to be had any more."""
        self.heard_at = time.monotonic()
        self.complete = False
        """The stream has ended after the container had."""
        self._kubectl, self._token, self._say = kubectl, token, say
        self._next = 0
        self._last = b""
        self._zone = b"Z"
        self._from_start = False
        self._is_new = False
        """This stream has told something that was not known."""
        self._skips = False
        """What this stream still says is passed over, as the next one says it again."""
        self._decoder = Decoder()
        self._buffer = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._begin_at = 0.0
        self._ended_before = False
        self._log = open(folder / f"{pod.name}.log", "ab")  # noqa: SIM115 - closed by close()

    @property
    def flows(self) -> bool:
        """A stream is open."""
        return self._process is not None

    def read(self, *, container_ended: bool) -> Iterator[dict[str, Any]]:
        """What it has told since; never waits. ``container_ended``: after what is there now nothing more comes."""
        if self.complete:
            return
        if self._process is None:
            if time.monotonic() >= self._begin_at:
                self._begin(container_ended)
            return
        assert self._process.stdout is not None
        ended = self._process.poll() is not None
        while True:
            try:
                data = os.read(self._process.stdout.fileno(), 1 << 18)
            except BlockingIOError:
                break
            if not data:
                ended = True
                break
            self.heard_at = time.monotonic()
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            self._buffer = self._buffer[:_MOST_LINE]
            for line in lines:
                if not self._skips:
                    yield from self._line(line)
        if ended:
            self._end()

    def close(self) -> None:
        """End the stream, and give back what it holds."""
        if self._process is not None:
            end_at_once(self._process)
            self._end()
        self._log.close()

    def _begin(self, container_ended: bool) -> None:
        words = ["logs", self.pod.name, "-c", self.pod.container, "--timestamps"]
        words += [] if container_ended else ["--follow"]
        if self._last and not self._from_start:
            words.append(f"--since-time={(self._last[:19] + self._zone).decode()}")
        self._ended_before = container_ended
        self._buffer, self._skips, self._is_new = b"", False, False
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                self._kubectl.argv(*words, follows=True),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)

    def _end(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._log.flush()
        try:
            code = self._process.wait(timeout=_AGAIN_S)
        except subprocess.TimeoutExpired:  # it has closed its output, and stays
            end_at_once(self._process)
            code = self._process.returncode
        self._process.stdout.close()
        self._process = None
        self._begin_at = time.monotonic() + (_AGAIN_S if code or not self._ended_before else 0.0)
        # A stream may be cut without a word; one that was begun when the container had ended, and has nothing new to
        # tell, has told all there is.
        self.complete = self._ended_before and code == 0 and not self._skips and not self._is_new

    def _line(self, line: bytes) -> Iterator[dict[str, Any]]:
        stamp = _STAMP.match(line)
        at = stamp[1] + (stamp[2] or b".").ljust(10, b"0") if stamp else self._last
        said = line[stamp.end() :] if stamp else line
        # Proved lines are known by their numbers, so several may have come in the same instant.
        if said.startswith(PREFIX) and (told := self._decoder.line(said)) is not None and self._is_ours(told):
            yield from self._numbered(told)
        elif (at > self._last or not stamp) and not said.startswith(PREFIX):
            self._is_new = True
            self._log.write(said + b"\n")
            self._say([said.rstrip(b"\r").decode(errors="replace")])
        if stamp and not self._skips:
            self._last, self._zone = max(self._last, at), stamp[3]

    def _is_ours(self, told: dict[str, Any]) -> bool:
        number, message = told.get("number"), told.get("message")
        if type(number) is not int or not isinstance(message, dict):
            return False
        return proves(told.get("proof"), self._token, "log", json.dumps(message), "", number)

    def _numbered(self, told: dict[str, Any]) -> Iterator[dict[str, Any]]:
        number = told["number"]
        if number > self._next and not self._from_start:
            # Something is missing: once more from the beginning of what is there.
            self._from_start = self._skips = True
            assert self._process is not None
            end_at_once(self._process)
            return
        if number >= self._next:
            self.lost += number - self._next
            self._next = number + 1
            self._from_start, self._is_new = False, True
            yield told["message"]


class Kept:
    """The logs of the other pods, in files of the run's folder."""

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        self._kubectl, self._folder = kubectl, folder
        self._following: dict[str, subprocess.Popen[bytes]] = {}
        self._failed: set[str] = set()
        self._whole: set[str] = set()

    def look(self, pods: list[PodSeen]) -> None:
        """Follow those that have begun; never waits."""
        for pod in pods:
            process = self._following.get(pod.name)
            if process is not None and process.poll() is not None:
                del self._following[pod.name]
                if pod.state == "ended" and (process.returncode == 0 or pod.name in self._failed):
                    self._whole.add(pod.name)
                elif process.returncode != 0:
                    self._failed.add(pod.name)
                process = None
            has_more = pod.state != "waiting" and pod.name not in self._whole
            if process is None and has_more and len(self._following) < _MOST_AT_ONCE:
                self._begin(pod)

    def end(self, pods: list[PodSeen]) -> None:
        """Fetch what is still missing, as long as there is time, and end all streams."""
        until = time.monotonic() + _FETCH_S
        while time.monotonic() < until:
            self.look(pods)
            if all(pod.name in self._whole for pod in pods if pod.state == "ended"):
                break
            time.sleep(0.1)
        for process in self._following.values():
            end_at_once(process)
        self._following.clear()

    def _begin(self, pod: PodSeen) -> None:
        # From the beginning each time: a second stream takes the place of what the first one had of it.
        with contextlib.suppress(OSError), open(self._folder / f"{pod.name}.log", "wb") as log:
            self._following[pod.name] = subprocess.Popen(
                self._kubectl.argv("logs", pod.name, "-c", pod.container, "--follow", follows=True),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
