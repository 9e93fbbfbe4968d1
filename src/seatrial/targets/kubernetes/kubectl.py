"""kubectl (or oc) as a child process: the user's login, contexts and plug-ins apply, and every call has a deadline."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

from seatrial.environment.working_folder import open_folder
from seatrial.errors import RequestError, SeatrialError, TargetUnreachableError
from seatrial.targets.kubernetes.api_json import get, items_of, text
from seatrial.util import memory_file
from seatrial.util.tool import find_tool, kill_group

_CALL_TIMEOUT_S = 20.0
"""For one call. A healthy API server answers within a second, the login plug-in of a cloud within a few."""
_REQUEST_TIMEOUT_S = 15
"""Passed to kubectl, which gives up after it and prints what it waited for."""
_PROGRAMS = ("kubectl", "oc")
_CLUSTER_WIDE = frozenset(("cordon", "namespace", "nodes"))
"""Words that are followed by, or mean, what belongs to no namespace."""
_DEFAULT_NAMESPACE = "default"
"""The namespace that kubectl takes for a context that names none."""
_ACCOUNT_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
_ACCOUNT_VARIABLES = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
"""Where a pod finds the API server, and its account: client-go looks there, too."""
_NO_PROGRAM = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.ELOOP)
"""Why a path cannot be started, whatever the state of this machine."""
_TIMED_OUT = 124
_MAX_ANSWER_BYTES = 256 << 20
"""A list of 10,000 pods has half of that. Anybody in the namespace may make objects that are listed with ours."""
TOO_LARGE = "an answer of more than"
"""The first words of the error for one that has more."""
_WORDS_CHARS = 120
_POLL_S = 0.2
"""How often the size of an answer is read while a call is waited for."""
_REASON = re.compile(r'(?:from server )?for: "[^"]*": (.+)')
"""The last line of an error with several lines: ``from server for: "STDIN": jobs.batch "a" is forbidden: ...``."""
_BEGINS, _HIGH, _LOW = r"\\u[dD]", "[89abAB][0-9a-fA-F]{2}", "[c-fC-F][0-9a-fA-F]{2}"
_PAIR = re.compile(_BEGINS + _HIGH + _BEGINS + _LOW)
_HALF = re.compile(rf"{_BEGINS}(?:{_HIGH}(?!{_BEGINS}{_LOW})|(?<!{_BEGINS}{_HIGH}{_BEGINS}){_LOW})")
"""An escape of half of a pair of UTF-16, which has no bytes, in JSON where each backslash begins an escape."""
_PIECE_CHARS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The end of one call."""

    code: int
    """Exit code of kubectl; 124 if the call timed out."""
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output parsed as JSON; None if it is not JSON."""
        try:
            return json.loads(_with_bytes(self.out))
        except (ValueError, RecursionError):
            return None

    @property
    def items(self) -> list[Any] | None:
        """The items of the list in the output; None if it is no list: kubectl prints any answer to ``--raw``."""
        items = get(self.json, "items")
        return items if isinstance(items, list) else None

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The objects in the output: kubectl prints a list, or one JSON document for each object. Those with a
        kind and a name are returned."""
        decoder, found, text = json.JSONDecoder(), list[Any](), _with_bytes(self.out).lstrip()
        while text:
            try:
                document, end = decoder.raw_decode(text)
            except (ValueError, RecursionError):
                break
            text = text[end:].lstrip()
            items = document.get("items") if isinstance(document, dict) else None
            found += items if isinstance(items, list) else [document]
        return [thing for thing in found if _is_object(thing)]

    @property
    def warnings(self) -> list[str]:
        """The warnings of the API server in the error output."""
        return [line.strip()[9:] for line in self.err.splitlines() if line.strip().startswith("Warning: ")]

    @property
    def complaint(self) -> str:
        """The line of the error output that says what is wrong; the lines before it are mostly warnings.

        Some errors of kubectl have several lines: a first one that ends in ``of:``, the object, and ``from server
        for: ...`` with the reason.
        """
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith(("error", "unable to", "the server"))]
        reasons = [match[1] for line in lines if (match := _REASON.fullmatch(line))]
        if errors and reasons and errors[-1].endswith((":", ":;", ";")):
            errors = reasons
        return (errors or lines or [f"exit code {self.code}"])[-1][:600]


class PendingCall:
    """A call in progress. Its output goes to files in memory: a list of pods does not fit into a pipe, and the disk may
    be full."""

    def __init__(
        self, argv: Sequence[str], stdin_bytes: bytes | None, timeout_s: float, most_bytes: int | None = None
    ) -> None:
        """Start the call. ``most_bytes``: of its output; None: as many as any call may have. Raises OSError."""
        self._deadline = time.monotonic() + timeout_s
        self._argv, self._timeout_s = argv, timeout_s
        self._most_bytes = _MAX_ANSWER_BYTES if most_bytes is None else most_bytes
        with contextlib.ExitStack() as stack:
            self._out, self._err = (stack.enter_context(file_in_memory()) for _ in range(2))
            with file_in_memory(stdin_bytes or b"") as stdin:
                self._process = start_kubectl(argv, stdin=stdin, stdout=self._out, stderr=self._err)
            stack.pop_all()  # closed by _close

    def poll(self) -> CallResult | None:
        """Return the result, or None while the call runs. A call that exceeds its timeout or its size is killed."""
        code = self._process.poll()
        if max(os.fstat(file.fileno()).st_size for file in (self._out, self._err)) > self._most_bytes:
            self.cancel()
            words = " ".join([os.path.basename(self._argv[0]), *self._argv[1:]])[:_WORDS_CHARS]
            return CallResult(code=1, out="", err=f"{TOO_LARGE} {self._most_bytes >> 20} MiB to {words}")
        if code is not None:
            result = CallResult(code=code, out=_read(self._out), err=_read(self._err))
            self._close()
            return result
        if time.monotonic() < self._deadline:
            return None
        self.cancel()
        return CallResult(code=_TIMED_OUT, out="", err=f"no answer within {self._timeout_s:g} s")

    def wait(self) -> CallResult:
        """Wait for the result, at most until the timeout of the call."""
        while True:
            if (result := self.poll()) is not None:
                return result
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, min(_POLL_S, self._deadline - time.monotonic())))

    def cancel(self) -> None:
        """Kill the call and the plug-ins that it started."""
        kill_group(self._process)
        self._close()

    def _close(self) -> None:
        self._out.close()
        self._err.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """One program with one namespace."""

    program: str
    """Its path, which may begin in the working folder."""
    namespace: str | None
    """None: the namespace of the user's current context."""
    timeout_s: float = _CALL_TIMEOUT_S
    context: tuple[str, ...] = ()
    """The option that names the context; empty: the one that is current at a call."""
    server_path: str = ""
    """The path in the URL of the server, as Rancher has one for each cluster. ``--raw`` leaves it out."""

    def in_present_context(self) -> Kubectl:
        """Return the same for the context and namespace that are current now: the user may change both before the run
        has ended.

        A pod with an account needs none, and nothing changes there. Raises RequestError where there is neither: kubectl
        would ask ``http://localhost:8080``, where any user of this machine may listen, and get the token of the run.
        """
        # Where the program is a script that adds --context, this says that one.
        view = self.call("config", "view", "--minify", "-o", "json").json
        name = text(view, "current-context")
        server = next((text(entry, "cluster", "server") for entry in items_of(view, "clusters")), "")
        if not (name and server):
            if _is_in_pod_with_account():
                return self
            raise RequestError(
                f"{self.program} has no current context with a server, and would ask http://localhost:8080, where any"
                " user of this machine may listen; choose one: kubectl config use-context NAME."
            )
        namespace = self.namespace
        if namespace is None:
            # Where it is a script that adds --namespace, an object that is only printed has that one.
            printed = self.call("create", "configmap", "x", "--dry-run=client", "-o", "json").json
            in_context = next((text(entry, "context", "namespace") for entry in items_of(view, "contexts")), "")
            namespace = text(printed, "metadata", "namespace") or in_context or _DEFAULT_NAMESPACE
        server_path = ""
        with contextlib.suppress(ValueError):
            server_path = urlsplit(server).path.rstrip("/")
        return replace(self, context=(f"--context={name}",), namespace=namespace, server_path=server_path)

    def argv(self, *words: str, streams: bool = False) -> list[str]:
        """Return the command. ``streams``: it runs for as long as there is output, without a request timeout.

        With that option kubectl ignores the account of a pod, and asks ``http://localhost:8080`` instead:
        kubernetes/kubectl#1824.
        """
        has_timeout = self.context and not streams
        namespace = [] if self.namespace is None else ["--namespace", self.namespace]
        return [
            self.program,
            *self.context,
            *namespace,
            *words,
            *([f"--request-timeout={_REQUEST_TIMEOUT_S}s"] if has_timeout else []),
        ]

    def start(self, *words: str, stdin_bytes: bytes | None = None, most_bytes: int | None = None) -> PendingCall:
        """Start a call without waiting for it. ``most_bytes``: as for ``PendingCall``.

        Raises RequestError for what is no program, SeatrialError where this machine cannot start one now.
        """
        try:
            return PendingCall(self.argv(*words), stdin_bytes, self.timeout_s, most_bytes)
        except OSError as error:
            why = f"{self.program}: it cannot be started ({error.strerror or error})"
            if error.errno in _NO_PROGRAM:
                raise RequestError(f"--kubectl {why}; name another program.") from error
            raise SeatrialError(f"{why}; see which limit of this machine is reached") from error

    def call(self, *words: str, stdin_bytes: bytes | None = None) -> CallResult:
        """Run a call to its end, at most ``timeout_s`` seconds."""
        return self.start(*words, stdin_bytes=stdin_bytes).wait()

    def start_deletion(self, thing: dict[str, Any], *, grace_s: int | None = None) -> PendingCall:
        """Start the deletion of this object, and of no later one of its name: by its uid, which only ``--raw`` takes.

        Args:
            thing: the object as the API server prints it.
            grace_s: seconds between SIGTERM and SIGKILL for a pod; None: those of its specification.
        """
        metadata, version, kind = thing["metadata"], thing["apiVersion"], thing["kind"].lower()
        plural = kind if kind.endswith("s") else f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
        path = self._path(version, text(metadata, "namespace"), plural, text(metadata, "name"))
        options: dict[str, Any] = {"preconditions": {"uid": text(metadata, "uid")}, "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        document = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        return self.start("delete", "--raw", path, "-f", "-", stdin_bytes=json.dumps(document).encode())

    def raw(self, namespace: str, *parts: str, **options: str) -> tuple[str, ...]:
        """Return the words with which kubectl prints an answer of the API server as it comes, and holds nothing of it.

        ``kubectl logs`` holds a line until its end, and ``get -o json`` a list, whatever size others give them.

        Args:
            namespace: where this is, as the API server names it.
            parts: of the path behind it, such as ``pods``, NAME, ``log``.
            options: of the request.
        """
        return "get", "--raw", f"{self._path('v1', namespace, *parts)}?{urlencode(options)}"

    def _path(self, version: str, namespace: str, *parts: str) -> str:
        place = ("namespaces", namespace) if namespace else ()
        group = "apis" if "/" in version else "api"
        return "/".join((self.server_path, group, version, *(quote(part, safe="") for part in (*place, *parts))))

    def json(self, *words: str) -> Any:
        """Return the JSON that a call prints. Raises SeatrialError when the call fails."""
        result = self.call(*words, "-o", "json")
        if result.code != 0 or result.json is None:
            raise TargetUnreachableError(
                f"{self.command_line(*words)}: {result.complaint}; make sure this command works, then try again."
            )
        return result.json

    def command_line(self, *words: str) -> str:
        """Return the command as a person would type it, in the context of the run, which another one may have replaced,
        and with the namespace where it is about something in one."""
        has_none = self.namespace is None or not _CLUSTER_WIDE.isdisjoint(words)
        namespace = [] if has_none else ["-n", str(self.namespace)]
        name = os.path.basename(self.program)
        is_in_path = find_tool(name) == self.program
        program = name if is_in_path else str(Path(os.readlink("/proc/self/cwd"), self.program))
        return shlex.join([program, *self.context, *namespace, *words])


def _is_in_pod_with_account() -> bool:
    """Return whether kubectl finds the API server by the account of this pod, as client-go looks for it."""
    return all(map(os.environ.get, _ACCOUNT_VARIABLES)) and os.path.isfile(_ACCOUNT_TOKEN)


def find_kubectl(program: str | None) -> str:
    """Return the path of ``--kubectl``, as it was typed, else of kubectl, else of oc. Raises RequestError when there is
    none."""
    names = [program] if program else _PROGRAMS
    path = next(filter(None, map(find_tool, names)), None)
    if path is None:
        what = f"--kubectl {program}: there is no such program" if program else "neither kubectl nor oc is on PATH"
        raise RequestError(
            f"{what}; name it with --kubectl PATH, or print the manifests with --dry-run and apply them elsewhere."
        )
    return path


def start_kubectl(
    argv: Sequence[str], *, stdin: IO[bytes] | int, stdout: IO[bytes] | int, stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start kubectl: in the root, where others could put files in the working folder. Raises OSError.

    The relative paths of KUBECONFIG, and that of the program, begin in the working folder all the same: in the one that
    this process has open, since others could exchange what has its name.
    """
    folder, executable, environ = None, None, {**os.environ}
    if _open_folder(os.readlink("/proc/self/cwd")):
        typed = f"/proc/{os.getpid()}/cwd"
        folder, executable = "/", os.path.join(typed, argv[0])
        if paths := environ.get("KUBECONFIG"):
            environ["KUBECONFIG"] = ":".join(path and os.path.join(typed, path) for path in paths.split(":"))
    # Ctrl-C in the terminal must reach only seatrial, which still has to delete what it created.
    return subprocess.Popen(
        argv,
        executable=executable,
        cwd=folder,
        env=environ,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


@cache
def _open_folder(here: str) -> str:
    """Return what ``open_folder`` does in the working folder ``here``. It is looked at once: its disk may answer
    nothing later, and the run must go on."""
    return open_folder()


def file_in_memory(content: bytes = b"") -> IO[bytes]:
    """Return a file without a name that has this content."""
    fd = memory_file.create(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return os.fdopen(fd, "rb")


def _with_bytes(text: str) -> str:
    """Return JSON in which U+FFFD stands for what its strings cannot pass on: neither to a path nor to a program."""
    if not any(begins in text for begins in (r"\ud", r"\uD", r"\u0000")):
        return text
    # The character 0 stands for an escaped backslash, so that each other one begins an escape. JSON has no 0 and no 1.
    text = text.replace("\0", "\1").replace(r"\\", "\0").replace(r"\u0000", r"\ufffd")
    pieces, at = list[str](), 0
    # Piece by piece: ``sub`` keeps each part of a text of many escapes.
    while at < len(text):
        end = _end_of_piece(text, at + _PIECE_CHARS)
        pieces.append(_HALF.sub(r"\\ufffd", text[at:end]).replace("\0", r"\\"))
        at = end
    return "".join(pieces)


def _end_of_piece(text: str, end: int) -> int:
    """Return a place before ``end``, or there, that is neither in an escape nor between the halves of a pair."""
    if end >= len(text):
        return len(text)
    begins = text.rfind("\\", end - 5, end)
    end = end if begins < 0 else begins
    return end - 6 if _PAIR.match(text, end - 6) else end


def _is_object(thing: Any) -> bool:
    metadata = thing.get("metadata") if isinstance(thing, dict) else None
    named = isinstance(metadata, dict) and isinstance(metadata.get("name"), str)
    return named and isinstance(thing.get("kind"), str) and isinstance(thing.get("apiVersion"), str)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
