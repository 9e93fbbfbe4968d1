"""The logs of pods: the events in the log of the first pod, and copies of all the others.

The first pod prints each event as a numbered line with a proof that its writer knows the token of the run
(``record.Recorder``). Anybody may write to a log: every line without such a proof, including what a rank prints, is
plain text.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import IO, Any

from seatrial.conductor.event_allowance import EventAllowance
from seatrial.errors import SeatrialError
from seatrial.protocol.handshake import proves
from seatrial.protocol.wire import PREFIX, Decoder
from seatrial.targets.kubernetes.kubectl import Kubectl, file_in_memory, start_kubectl
from seatrial.targets.kubernetes.log_copies import LogCopies
from seatrial.targets.kubernetes.pods import PodStatus
from seatrial.util.disk_writer import WrittenFile
from seatrial.util.tool import kill_group

_TIMESTAMP = re.compile(rb"(\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d)(\.\d{1,9})?(Z|[+-](?:[01]\d|2[0-3]):[0-5]\d) ")
_RETRY_S = 1.0
_MAX_LINE_BYTES = 1 << 20
"""Longer lines are cut to bound the memory; none of ours is longer than 4,000 bytes."""
_CUT = b" (seatrial: this line is cut here, after %d bytes)"
_COMPARED_BYTES = 4_000
"""The part of a line by which it is found again."""
_MAX_READ_BYTES = 2 << 20
"""Bytes that are read at once, of the first pod's log or of all the others together. A pod that writes faster than we
read must not keep us from the rest of the loop. So many take at most half a second to parse."""
_LINE_BYTES = 32
"""Bytes that a line counts beside its own, since an empty line takes time to parse, too."""
_LEAST_READ_BYTES = 2 << 10
"""The smallest number of bytes to read at once. Each byte may be a line."""
_MAX_COPY_BYTES = 1 << 30
"""Bytes of the copy of one log, as of the files of a rank: no pod may fill the disk of this machine."""
_MAX_STREAMS = 32
"""Logs of other pods that are followed at the same time; the logs of the rest are fetched at the end."""
_FETCH_S = 10.0
_SILENT_S = 4.0
"""For which a stream that follows a log may bring nothing once its container has ended. A connection can die without a
word, and the log can still be fetched."""
_QUIET_S = 1.0
"""After so long without data a stream is taken to have brought what the log had when it began."""
_MOST_COMPLAINT_BYTES = 4_000


class PodLog:
    """The log of one container, from its beginning to its end, however often the stream breaks.

    After a break the log is requested again from the second in which the last line was written. Events that were read
    before are recognized by their number, other lines by their place: they come before the last known line. The clock
    of a node may step back, so a timestamp alone says nothing.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        pod: PodStatus,
        token: str | None,
        copies: LogCopies,
        on_text: Callable[[list[str]], None],
        allowance: EventAllowance | None = None,
    ) -> None:
        """Prepare to read; no stream is open yet.

        Args:
            kubectl: Reads the log.
            pod: The pod that writes the log.
            token: The token of the run; None for a pod that sends no events, whose lines are not decoded.
            copies: Take a copy of the log.
            on_text: Receives the lines that are not events of the run.
            allowance: How many events this log and those of other pods may have together; None: those of one agent.
        """
        self.pod = pod
        self.lost = 0
        """Number of events that were written but can no longer be read."""
        self.last_read_at = time.monotonic()
        """Time of the last data (``time.monotonic``)."""
        self.complete = False
        """Whether everything that the container wrote has been read."""
        self.gone = False
        """Whether the pod no longer exists, so that its log cannot be fetched."""
        self.failures = 0
        """Streams that failed one after the other."""
        self._kubectl, self._token, self._on_text = kubectl, token, on_text
        self._next_number = 0
        self._last = (b"", b"")
        """Timestamp and beginning of the last known line."""
        self._last_count = 0
        """How many known lines in a row were like the last one."""
        self._latest = b""
        """The latest timestamp of all known lines."""
        self._zone = b"Z"
        self._known_to_come = 0
        """How many lines like the last known one this stream brings again before its first new line."""
        self._from_start = False
        """Whether entries are missing, and the log has not been read from its beginning for them."""
        self._is_search = False
        """Whether this stream was opened for that, and has not brought all that the log had then. Entries that it lacks
        are lost."""
        self._has_news = False
        """Whether this stream has brought a line that was not known."""
        self._discarding = False
        """Whether the rest of this stream is dropped because the next stream brings it again."""
        self._decoder = Decoder()
        self._buffer = bytearray()
        """The beginning of the line that has not ended."""
        self._is_cut = False
        """Whether this line has been read, as far as it is read at all."""
        self._process: subprocess.Popen[bytes] | None = None
        self._complaint: IO[bytes] | None = None
        """What the kubectl of the stream says of an error."""
        self._next_start_at = 0.0
        self._ended_before = False
        """Whether the container had ended when this stream began."""
        self._end_seen_at = math.inf
        """When ``read`` was first called for a container that had ended (``time.monotonic``)."""
        self._copied_bytes = 0
        self._allowance = allowance or EventAllowance(time.monotonic())
        self._copies = copies
        self._copy: WrittenFile | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the log has been read, or is gone."""
        return self.complete or self.gone

    @property
    def is_open(self) -> bool:
        """Whether a stream is open."""
        return self._process is not None

    def read(self, *, container_ended: bool, share: int = 1) -> Iterator[dict[str, Any]]:
        """Yield events since the last call, without waiting; not all of them when there are very many.

        Raises SeatrialError where the pod has sent more events than all agents of a run together may.

        Args:
            container_ended: Whether the container has ended, so that the log no longer grows.
            share: How many logs share what is read at once.
        """
        if self.is_settled:
            return
        if container_ended:
            self._end_seen_at = min(self._end_seen_at, time.monotonic())
        if self._process is None:
            if time.monotonic() >= self._next_start_at:
                self._start(container_ended)
            return
        assert self._process.stdout is not None
        ended = self._process.poll() is not None
        remaining = _MAX_READ_BYTES // share
        while True:
            if remaining <= 0:  # the next call goes on
                return
            try:
                most_bytes = max(_LEAST_READ_BYTES, remaining // (1 + _LINE_BYTES))
                data = os.read(self._process.stdout.fileno(), most_bytes)
            except BlockingIOError:
                if not self._from_start and time.monotonic() - self.last_read_at > _QUIET_S:
                    self._is_search = False  # A later gap is another one, which another reading may fill.
                break
            if not data:
                ended = True
                break
            self.last_read_at = time.monotonic()
            lines = list(self._lines_in(data))
            remaining -= len(data) + _LINE_BYTES * len(lines)
            for line in lines:
                if not self._discarding:
                    yield from self._read_line(line)
        silent_since = max(self._end_seen_at, self.last_read_at)
        if not ended and not self._ended_before and time.monotonic() - silent_since > _SILENT_S:
            kill_group(self._process)
            ended = True
        if ended:
            self._end()

    def close(self) -> None:
        """End the stream, and have the copy closed."""
        if self._process is not None:
            kill_group(self._process)
            self._end()
        self._close_copy()

    def _lines_in(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that end in these bytes of the stream, and one that is too long as soon as it is."""
        for number, part in enumerate(data.split(b"\n")):
            if number:
                if not self._is_cut:
                    yield bytes(self._buffer)
                self._buffer, self._is_cut = bytearray(), False
            if not self._is_cut:
                self._buffer += part
                if len(self._buffer) > _MAX_LINE_BYTES:
                    self._is_cut = True
                    yield bytes(self._buffer[:_MAX_LINE_BYTES]) + _CUT % _MAX_LINE_BYTES
                    self._buffer = bytearray()

    def _start(self, container_ended: bool) -> None:
        options = {"container": self.pod.container, "timestamps": "true"}
        if not container_ended:
            options["follow"] = "true"
        self._is_search = self._from_start
        if self._last_count and not self._is_search:
            options["sinceTime"] = (self._last[0][:19] + self._zone).decode()
        words = self._kubectl.raw(self.pod.namespace, "pods", self.pod.name, "log", **options)
        self._ended_before, self._known_to_come = container_ended, self._last_count
        self._buffer, self._is_cut, self._discarding, self._has_news = bytearray(), False, False, False
        # RuntimeError: this user has no process left.
        with contextlib.suppress(OSError, RuntimeError), contextlib.ExitStack() as stack:
            self._copy = self._copy or self._copies.open(self.pod)
            complaint = stack.enter_context(file_in_memory())
            self._process = start_kubectl(
                self._kubectl.argv(*words, streams=True),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaint,
            )
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)
            self._complaint = complaint
            stack.pop_all()  # closed by _end

    def _end(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            code = self._process.wait(timeout=_RETRY_S)
        except subprocess.TimeoutExpired:  # it closed its output but did not exit
            kill_group(self._process)
            code = -signal.SIGKILL
        self._process.stdout.close()
        self._process = None
        self._next_start_at = time.monotonic() + (_RETRY_S if code or not self._ended_before else 0.0)
        # A stream may be cut without an error. One that was opened after the end of the container and brought nothing
        # new proves that the log is complete.
        # A kubelet that cannot read the log says so in place of it, and kubectl ends with 0.
        has_failed = code != 0 or (bool(self._buffer) and not _timestamp_of(self._buffer))
        self.failures = self.failures + 1 if has_failed else 0
        if has_failed and not self._last_count:
            self._copies.begin_late(self.pod)
        self.complete = self._ended_before and not (has_failed or self._discarding or self._has_news)
        if self.complete and self._buffer:
            self._take_unended(bytes(self._buffer))
        assert self._complaint is not None
        self._complaint.seek(0)
        said = self._complaint.read(_MOST_COMPLAINT_BYTES).decode(errors="replace")
        self.gone = code != 0 and f'pods "{self.pod.name}" not found' in said
        self._complaint.close()
        self._complaint = None
        if self.is_settled:
            self._close_copy()

    def _close_copy(self) -> None:
        if self._copy is not None:
            self._copies.close(self._copy)

    def _take_unended(self, line: bytes) -> None:
        """Take the last line of a complete log, which its writer has not ended: a rank that was killed, for one."""
        timestamp = _timestamp_of(line)
        assert timestamp is not None
        text = line[timestamp.end() :]
        if not text.startswith(PREFIX):
            self._append(text + b"\n")
            self._on_text([text.decode(errors="replace")])

    def _read_line(self, line: bytes) -> Iterator[dict[str, Any]]:
        timestamp = _timestamp_of(line)
        text = line[timestamp.end() :] if timestamp else line
        at = timestamp[1] + (timestamp[2] or b".").ljust(10, b"0") if timestamp else b""
        is_new = not timestamp or self._is_new(at, text)
        if text.startswith(PREFIX):
            # Anybody may write such lines, and a message of many of them takes seconds to decode.
            if self._token is not None and (entry := self._decoder.line(text)) is not None:
                yield from self._take_entry(entry) if self._is_proved(entry, self._token) else ()
        elif is_new:
            self._has_news = True
            self._append(text + b"\n")
            self._on_text([text.rstrip(b"\r").decode(errors="replace")])
        if timestamp and is_new and not self._discarding:
            like_this = (at, text[:_COMPARED_BYTES])
            self._last_count = self._last_count + 1 if like_this == self._last else 1
            self._last, self._latest, self._zone = like_this, max(self._latest, at), timestamp[3]

    def _is_new(self, at: bytes, text: bytes) -> bool:
        """Return whether a line is none of those that were known when this stream began."""
        if at > self._latest:
            # Also where the last known line is no longer in the log.
            self._known_to_come = 0
        if self._known_to_come == 0:
            return True
        self._known_to_come -= (at, text[:_COMPARED_BYTES]) == self._last
        return False

    def _append(self, line: bytes) -> None:
        """Append a line to the copy, and say once where the copy ends before its log."""
        assert self._copy is not None
        if self._copied_bytes <= _MAX_COPY_BYTES:
            self._copied_bytes += len(line)
            if self._copied_bytes > _MAX_COPY_BYTES:
                words = b"seatrial: the copy of this log ends here, after %d bytes\n" % _MAX_COPY_BYTES
                self._copies.end_early(self._copy, words)
            else:
                self._copies.write(self._copy, line)

    @staticmethod
    def _is_proved(entry: dict[str, Any], token: str) -> bool:
        number, message = entry.get("number"), entry.get("message")
        if type(number) is not int or not isinstance(message, dict):
            return False
        return proves(entry.get("proof"), token, "log", json.dumps(message), "", number)

    def _take_entry(self, entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
        number = entry["number"]
        if number > self._next_number and not self._is_search:
            # Entries are missing: read the log once more from its beginning.
            self._from_start = self._discarding = True
            assert self._process is not None
            kill_group(self._process)
            return
        if number >= self._next_number:
            self.lost += number - self._next_number
            self._next_number = number + 1
            self._from_start, self._has_news, self._known_to_come = False, True, 0
            # They stay in memory and on the disk of this machine.
            is_kept = "seq" in entry["message"]
            if is_kept and not self._allowance.take(self._decoder.kept_bytes, time.monotonic()):
                raise SeatrialError(
                    f"{self.pod.label} has sent more events than all nodes of this run together may (event {number:,});"
                    f" see what runs on {self.pod.node or 'its host'}"
                )
            yield entry["message"]


def _timestamp_of(line: bytes | bytearray) -> re.Match[bytes] | None:
    """Return the time at the beginning of a line, as kubectl takes it back; None where there is no such one."""
    timestamp = _TIMESTAMP.match(line)
    if timestamp is not None:
        try:
            datetime.fromisoformat(timestamp[1].decode())
        except ValueError:
            return None
    return timestamp


class PodLogs:
    """Copies of the logs of the other pods, in the folder of the run.

    A log is read in the way of the first pod's: the kubelet keeps only the newest part of a long log for those who ask
    again, so what was read before must stay.
    """

    def __init__(self, kubectl: Kubectl, copies: LogCopies) -> None:
        self._kubectl, self._copies = kubectl, copies
        self._logs: dict[str, PodLog] = {}
        self._pods: dict[str, PodStatus] = {}
        """The pods that are read, by their names."""

    def take_pods(self, pods: list[PodStatus]) -> None:
        """Take note of the pods that exist, and of their states. The streams of all others end."""
        self._take(pods)
        self._leave([log for name, log in self._logs.items() if name not in self._pods])

    def _take(self, pods: list[PodStatus]) -> None:
        # For a name kubectl reads the log of the newest pod that has it.
        self._pods = {pod.name: pod for pod in pods}
        replaced = [name for name, pod in self._pods.items() if name in self._logs and self._log_of(pod) is None]
        self._leave([self._logs.pop(name) for name in replaced])

    @staticmethod
    def _leave(logs: Sequence[PodLog]) -> None:
        """End streams, once that is read which they have brought: nobody can fetch the log of a pod that is gone."""
        open_logs = [log for log in logs if log.is_open]
        for log in open_logs:
            for _ in log.read(container_ended=True, share=len(open_logs)):
                pass
        for log in logs:
            log.close()

    def poll(self) -> None:
        """Read the logs of the pods that have started, without waiting; none while too much waits for the disk."""
        is_full = self._copies.is_full()
        open_streams = sum(pod.name in self._logs and self._logs[pod.name].is_open for pod in self._pods.values())
        share = max(1, open_streams)
        # A stream that fails again and again keeps no other log from being read.
        for pod in sorted(self._pods.values(), key=self._failures):
            log = self._logs.get(pod.name)
            if pod.state == "waiting" or (log is not None and log.is_settled):
                continue
            is_open = log is not None and log.is_open
            if is_full or (not is_open and open_streams >= _MAX_STREAMS):
                if log is None:
                    self._copies.begin_late(pod)
                continue
            open_streams += not is_open
            if log is None:
                log = self._logs[pod.name] = PodLog(self._kubectl, pod, None, self._copies, lambda lines: None)
            for _ in log.read(container_ended=pod.state == "ended", share=share):
                pass

    def _failures(self, pod: PodStatus) -> int:
        log = self._logs.get(pod.name)
        return 0 if log is None else log.failures

    def read_to_end(
        self, pods: Sequence[PodStatus], limit_s: float, keep_waiting: Callable[[], bool] = lambda: True
    ) -> set[str]:
        """Read the logs of pods that have ended. Returns the names of those whose log was not read to its end."""
        # The streams of the others go on meanwhile.
        self._take(list(pods))
        ended = [pod for pod in pods if pod.state == "ended"]
        deadline = time.monotonic() + limit_s
        while True:
            self.poll()
            if all(map(self._is_settled, ended)) or time.monotonic() >= deadline or not keep_waiting():
                return {pod.name for pod in ended if not ((log := self._log_of(pod)) and log.complete)}
            time.sleep(0.1)

    def close(self, pods: Sequence[PodStatus]) -> None:
        """Fetch the logs that are still missing, for at most ten seconds, and end all streams."""
        self.read_to_end(pods, _FETCH_S)
        for log in self._logs.values():
            log.close()

    def _log_of(self, pod: PodStatus) -> PodLog | None:
        log = self._logs.get(pod.name)
        return log if log is not None and log.pod.uid == pod.uid else None

    def _is_settled(self, pod: PodStatus) -> bool:
        """Return whether the log of a pod has been read, or can no longer be fetched."""
        if (read := self._pods.get(pod.name)) is None or read.uid != pod.uid:
            return True
        log = self._log_of(pod)
        return log is not None and log.is_settled
