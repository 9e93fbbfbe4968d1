"""The survey of the hosts before the start: one ssh to each, all at once; a host that does not answer is named."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from seatrial.errors import RequestError, TargetUnreachableError
from seatrial.targets.hosts import Host, Node
from seatrial.targets.processes import REMOVED, signal_group
from seatrial.targets.ssh import survey
from seatrial.targets.ssh.connection import CONNECT_S, CUT, STARTED, feed_of, ssh_argv
from seatrial.targets.ssh.survey_answer import SurveyAnswer, read_answer
from seatrial.targets.target import TargetRequest
from seatrial.util import memory_file
from seatrial.util.file_limit import raise_file_limit
from seatrial.util.text import quoted

HostKey = tuple[str, str | None, int | None]
"""``Host.at``: name, user and port."""

_ANSWER_S = 60.0
"""The time in which a host answers: a Python on a slow shared disk needs most of it to import torch."""
_END_S = 3.0
"""The time in which Python ends on a host that has answered."""
_KILLED_S = 2.0
"""The wait for all that were killed."""
_POLL_S = 0.02
_FILES_OF_HOST = 2
_OTHER_FILES = 128
_MAX_NAMED = 4
_MAX_OUTPUT_BYTES = 1 << 16
_MOST_PIECES = 16
"""Read of one stream at a poll."""
_MAX_SAID_CHARS = 300
_MOST_OUTPUT_BYTES = 4 << 20
"""Above the output of any login script. A host that sends more is ended at the next poll."""

# A part of a message of ssh -> its meaning and the next step. The first that fits counts.
_MEANINGS = (
    ("Could not resolve hostname", "its name cannot be resolved; check the spelling, or name it in ~/.ssh/config"),
    ("HOST IDENTIFICATION HAS CHANGED", "its host key differs from the one in known_hosts; if the host was set up"
     " again, remove the old key with ssh-keygen -R, otherwise find out which machine answers there"),
    ("Host key verification failed", "its host key is unknown; connect once by hand and compare the key, or add it to"
     " known_hosts"),
    ("UNPROTECTED PRIVATE KEY FILE", "ssh ignores a private key that others can read; chmod 600 it"),
    ("bad permissions", "ssh ignores a private key that others can read; chmod 600 it"),
    ("Permission denied", "permission denied; `ssh HOST` must work without a password prompt (use a key or an agent)"),
    ("Connection refused", "no SSH server listens on that port; start sshd, or name the port with --ssh-port"),
    ("No route to host", "no route to the host; check that it runs, and check the network"),
    ("timed out", f"it did not answer within {CONNECT_S} s; check that it runs, and check the network"),
    ("not responding", "the ssh connection was lost: no data came back for 15 s"),
)  # fmt: skip
_SSH_BYTES = 2_000
"""More than ssh prints of itself before it ends, and less than is kept of what an agent prints."""
_LOGIN_SCRIPT = "look at ~/.bashrc there, or at the start-up file of its shell"
# The same for messages of a login shell that did not start Python (docs/launching.md).
_SHELL_MEANINGS = (
    # nologin(8) of util-linux and of shadow; /bin/false says nothing.
    ("account is currently not available", "its login shell takes no commands; give the user a shell (usermod -s) or"
     " name another user"),
    # bash -r, as rbash: "rbash: line 1: exec: restricted"
    (": restricted", "its login shell is restricted and may not start {python}; give the user another shell"),
)  # fmt: skip
# bash, dash, zsh ("command not found: python3"), fish ("Unknown command: python3"), tcsh ("Command not found.").
_NO_PROGRAM = re.compile("not found|No such file|[Uu]nknown command")
_LOADER = "error while loading shared libraries"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """The resources of a host, as one of its nodes gets them."""

    device: str
    """``cpu``, ``cuda`` or ``rocm``."""
    backend: str
    """The requested backend, which may be ``auto``."""
    nproc_per_node: int
    """The number of ranks of each node on this host."""
    because: str
    """The source of the device and of the number of accelerators, as a phrase."""
    address: str
    """The address by which ssh reached the host; its name where that is unknown."""
    env: Mapping[str, str]
    """The variables that the ranks need on this host."""
    torch: str = ""
    """The version of torch, empty where the host was not asked."""

    @staticmethod
    def as_requested(node: Node, target_request: TargetRequest, nproc_per_node: int) -> HostResources:
        """Return the resources that the options name, without asking the host."""
        return HostResources(
            device=target_request.device,
            backend=target_request.backend,
            nproc_per_node=nproc_per_node,
            because=f"--device {target_request.device}",
            address=node.host.name,
            env={},
        )


def survey_hosts(
    nodes: Sequence[Node],
    target_request: TargetRequest,
    *,
    python: str,
    nproc_per_node: int | None,
    on_one_host: bool,
    min_hosts: int | None,
) -> tuple[dict[HostKey, HostResources], tuple[str, ...]]:
    """Ask all hosts at once. Return their resources, and one sentence for each host that cannot take part.

    Raises RequestError without ssh, and SeatrialError where a host cannot take part, or fewer than ``min_hosts`` can.

    Args:
        nodes: the nodes, of which several may share a host.
        target_request: the device and backend that were requested.
        python: the interpreter on the hosts.
        nproc_per_node: the number of ranks of each node; None: the hosts decide it.
        on_one_host: all nodes are on one host.
        min_hosts: the number of hosts that is enough; None: all of them.
    """
    if shutil.which("ssh") is None:
        raise RequestError("--on ssh: ssh was not found; install OpenSSH's client, or add its folder to PATH.")
    first_node = {node.host.at: node for node in reversed(nodes)}
    raise_file_limit(_FILES_OF_HOST * len(first_node) + _OTHER_FILES)
    with contextlib.ExitStack() as files:
        processes = {
            at: _SurveyProcess(node, _arguments(target_request, node, nproc_per_node, on_one_host), python)
            for at, node in first_node.items()
        }
        feeds: dict[str, int] = {}
        with _signals_held_back() as held:
            try:
                for process in processes.values():
                    if not held:
                        process.start(files, feeds)
                until = time.monotonic() + CONNECT_S + _ANSWER_S
                awaited = [*processes.values()]
                while awaited and not held and time.monotonic() < until:
                    awaited = [process for process in awaited if process.is_awaited()]
                    for process in awaited:
                        process.end_flood()
                    time.sleep(_POLL_S)
            finally:
                for process in processes.values():
                    process.end()
                until = time.monotonic() + _KILLED_S
                for process in processes.values():
                    process.wait(until)
        results = {at: process.result() for at, process in processes.items()}
    answers = {
        at: _host_resources(answer, first_node[at], target_request, nproc_per_node, on_one_host)
        for at, answer in results.items()
        if not isinstance(answer, str)
    }
    # The sentences are in the order in which the user named the hosts.
    absent = tuple(dict.fromkeys(reason for node in nodes if isinstance(reason := results[node.host.at], str)))
    if absent and (min_hosts is None or len(answers) < min_hosts):
        few = "" if min_hosts is None else f"only {len(answers)} of at least {min_hosts} hosts are ready: "
        raise TargetUnreachableError(f"{few}{_by_reason(absent)}.")
    return answers, absent


def _by_reason(sentences: Sequence[str]) -> str:
    """Return sentences ("HOST: words") as one, in which the hosts of which the same is said stand together."""
    hosts: dict[str, list[str]] = {}
    words: dict[str, str] = {}
    for sentence in sentences:
        host, _, said = sentence.partition(": ")
        # What ssh itself says contains the name of the host.
        reason = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "HOST", said)
        hosts.setdefault(reason, []).append(host)
        words.setdefault(reason, said)
    shown = [f"{_named(names)}: {words[reason]}" for reason, names in [*hosts.items()][:_MAX_NAMED]]
    left = sum(map(len, [*hosts.values()][_MAX_NAMED:]))
    return "; ".join([*shown, f"and {left} more hosts"] if left else shown)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(names[:_MAX_NAMED])}{more}"


def _arguments(
    target_request: TargetRequest, node: Node, nproc_per_node: int | None, on_one_host: bool
) -> dict[str, Any]:
    requested = None if nproc_per_node is None else nproc_per_node * node.here
    return {
        "device": target_request.device,
        "backend": target_request.backend,
        "nproc_per_node": requested,
        "processes_by": target_request.processes_by,
        "on_one_node": on_one_host,
        "oversubscribe": bool(target_request.own.get("oversubscribe")),
        # Nobody knows how much memory a user's script needs.
        "of_torch": target_request.typed[:1] != ("launch",),
    }


def _host_resources(
    answer: SurveyAnswer, node: Node, target_request: TargetRequest, nproc_per_node: int | None, on_one_host: bool
) -> HostResources:
    uses_loopback = on_one_host and answer.device == "cpu" and answer.loopback
    is_default = answer.device == "cpu" and not target_request.processes_by
    share = answer.nproc_per_node if is_default else answer.nproc_per_node // node.here
    return HostResources(
        device=answer.device,
        backend=target_request.backend,
        nproc_per_node=nproc_per_node if nproc_per_node is not None else max(1, share),
        because=answer.because,
        address=answer.address or node.host.name,
        env={"GLOO_SOCKET_IFNAME": answer.loopback} if uses_loopback else {},
        torch=answer.torch,
    )


@contextlib.contextmanager
def _signals_held_back() -> Iterator[list[int]]:
    """Collect the signals that Python handles in a list, and raise the first one afterwards.

    An exception at any point would leave each ssh that nobody knows yet, and a second one those that are to be ended.
    """
    held: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in before.items() if callable(handler)}
    for number in before:
        signal.signal(number, lambda number, frame: held.append(number))
    try:
        yield held
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if held:
        signal.raise_signal(held[0])


class _Stream:
    """The end of the output that a host sends on one stream. When this process is killed, ssh can write no more."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._fd = pipe.fileno()
        os.set_blocking(self._fd, False)
        self._end = b""
        self.size_bytes = 0
        self.has_started = False
        """STARTED has arrived. The host may push that line out of what is kept."""

    def read(self) -> str:
        """Return the end of what has arrived. Never waits."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_PIECES):
                piece = os.read(self._fd, _MAX_OUTPUT_BYTES)
                self._end += piece
                self.has_started |= STARTED.encode() in self._end
                self._end = self._end[-_MAX_OUTPUT_BYTES:]
                self.size_bytes += len(piece)
        return self._end.decode(errors="replace")


class _SurveyProcess:
    """One ssh that runs the survey on one host."""

    def __init__(self, node: Node, arguments: Mapping[str, Any], python: str) -> None:
        self._node = node
        self._arguments = arguments
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[_Stream, ...] = ()
        """Its output and its error output."""
        self._answered_at: float | None = None
        self._late = False

    def start(self, files: contextlib.ExitStack, feeds: dict[str, int]) -> None:
        """Start ssh. Its input comes from a file, which is open until the stack ends, as the pipes of its output are.

        ``feeds``: the file with the input of each request so far; most hosts have the same one.
        """
        request = json.dumps(self._arguments)
        if request not in feeds:
            feed = feed_of({"module": ["seatrial.targets.ssh.survey", request], "env": {}})
            feeds[request] = memory_file.create(feed.to_bytes())
            files.callback(os.close, feeds[request])
        with open(f"/proc/self/fd/{feeds[request]}", "rb") as stdin:
            self._process = subprocess.Popen(
                ssh_argv(self._node.host, self._python),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        pipes = [files.enter_context(pipe) for pipe in (self._process.stdout, self._process.stderr) if pipe is not None]
        self._streams = tuple(map(_Stream, pipes))

    def is_awaited(self) -> bool:
        """Return whether ssh still runs, except some time after the answer.

        A job that a login script has left in the background keeps ssh from ending.
        """
        if self._process is None or self._process.poll() is not None:
            return False
        output, _ = self._received()
        if self._answered_at is None and self._answer(output) is not None:
            self._answered_at = time.monotonic()
        return self._answered_at is None or time.monotonic() < self._answered_at + _END_S

    def end(self) -> None:
        """Kill ssh if it still runs: the host has answered, or has not answered in time."""
        if self._process is not None and self._process.poll() is None:
            self._late = self._answered_at is None
            signal_group(self._process, signal.SIGKILL)

    def wait(self, until: float) -> None:
        """Wait for the end of ssh. In state D (uninterruptible) it outlives the time."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, until - time.monotonic()))

    def end_flood(self) -> None:
        """Kill ssh if the host has sent more than any answer has: it must not fill the disk of this machine."""
        if self._has_flooded():
            self.end()

    def _has_flooded(self) -> bool:
        return any(stream.size_bytes > _MOST_OUTPUT_BYTES for stream in self._streams)

    def _received(self) -> tuple[str, str]:
        """Return the end of the output and of the error output so far."""
        output, errors = (stream.read() for stream in self._streams)
        return output, errors

    def _answer(self, output: str) -> str | None:
        """Return the line of the host without its mark; None until it is whole."""
        lines = output.split("\n")[:-1]
        line = next((line for line in reversed(lines) if line.startswith(survey.MARK)), None)
        return None if line is None else line.removeprefix(survey.MARK)

    def result(self) -> SurveyAnswer | str:
        """Return the answer of the host, or a sentence that says why it cannot take part."""
        assert self._process is not None
        output, errors = self._received()
        host, line = self._node.host, self._answer(output)
        if self._has_flooded():
            return f"{host.name}: it sent more than {_MOST_OUTPUT_BYTES >> 20} MiB; check what its login script prints"
        if line is None:
            if not self._late:
                code, started = self._process.returncode, self._streams[1].has_started
                if started and code == 0:  # it has answered, but not to us
                    return f"{host.name}: a login script redirects standard output; {_LOGIN_SCRIPT}"
                return explain_ssh_exit(host, code, errors, self._python, output=output, started=started)
            limit = f"within {CONNECT_S + _ANSWER_S:.0f} s"
            if self._streams[1].has_started:
                return f"{host.name}: it did not report its devices and torch {limit}"
            said = _last_words(errors, output)
            return f"{host.name}: its login shell did not start {self._python} {limit} ({said}); {_LOGIN_SCRIPT}"
        requested = {name: self._arguments[name] for name in ("device", "nproc_per_node")}
        answer = read_answer(line, **requested)
        return f"{host.name}: {answer}" if isinstance(answer, str) else answer


def explain_ssh_exit(
    host: Host, code: int, errors: str, python: str = "python3", *, output: str = "", started: bool = False
) -> str:
    """Return a sentence that says why an ssh ended.

    Args:
        host: the host, by the name that was typed.
        code: the exit code of ssh.
        errors: the error output of both sides, or the end of it.
        python: the interpreter that the host was to start.
        output: what came on standard output, or the end of it.
        started: the interpreter is known to have started.
    """
    said = _last_words(errors, output)
    if code == 255:
        # Once Python runs these may be words of the host; so they may be where its output has pushed that line out.
        has_more = REMOVED in errors or len(errors.encode()) > _SSH_BYTES
        of_host = STARTED in errors or (started and has_more)
        meanings = _MEANINGS[-1:] if of_host else _MEANINGS
        meaning = next((meaning for sign, meaning in meanings if sign in errors), None)
        if meaning is not None:
            return f"{host.name}: {meaning} ({said})"
    if CUT in errors:
        return f"{host.name}: a login script reads the standard input that is meant for {python}; {_LOGIN_SCRIPT}"
    if started or code == 255:
        return f"{host.name}: ssh ended with exit code {code} ({said})"
    meaning = next((meaning for sign, meaning in _SHELL_MEANINGS if sign in errors + output), None)
    if meaning is not None:
        return f"{host.name}: {meaning.format(python=python)} ({said})"
    if _LOADER in said:
        return f"{host.name}: {python} cannot start there ({said}); reinstall it, or name another Python with --python"
    if code == 127 or (code in (1, 126) and _NO_PROGRAM.search(said)):
        return f"{host.name}: {python} does not exist there ({said}); name its Python with --python"
    return (
        f"{host.name}: its login shell ended with exit code {code} and did not start {python} ({said}); {_LOGIN_SCRIPT}"
    )


def _last_words(errors: str, output: str) -> str:
    """Return the last line of the error output, else of the output: in quotes, at most 300 characters."""
    lines = [line.strip() for text in (errors, output) for line in reversed(text.splitlines())]
    line = next((line for line in lines if line and line != STARTED), "")
    return quoted(line, _MAX_SAID_CHARS) if line else "without output"
