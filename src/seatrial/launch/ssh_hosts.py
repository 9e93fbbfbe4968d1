"""The hosts before the start: all are asked at once what they have, and whoever does not answer is named."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.errors import RequestError, SeatrialError
from seatrial.launch import ssh_survey
from seatrial.launch.hosts import Host, Node
from seatrial.launch.ssh import CONNECT_S, feed_of, ssh_argv
from seatrial.launch.target import Where
from seatrial.report.text import printable

__all__ = ["Answer", "ask", "explained"]

At = tuple[str, str | None, int | None]

_ANSWER_S = 60.0
"""As long as an agent may take to join: a Python from a slow shared disk is asked for its torch in that time."""
_POLL_S = 0.02
_MOST_NAMED = 4
_MOST_SAID_BYTES = 1 << 16

# What ssh says -> what it means and what to do. The first that fits counts.
_WORDS = (
    ("Could not resolve hostname", "its name cannot be resolved; check the spelling, or name it in ~/.ssh/config"),
    ("HOST IDENTIFICATION HAS CHANGED", "its host key is another one than known_hosts has; if it was set up anew,"
     " remove the old key with ssh-keygen -R, or else find out who answers there"),
    ("Host key verification failed", "its host key is not known; connect once by hand and compare it, or put it into"
     " known_hosts"),
    ("UNPROTECTED PRIVATE KEY FILE", "ssh does not use a private key that others can read; chmod 600 it"),
    ("bad permissions", "ssh does not use a private key that others can read; chmod 600 it"),
    ("Permission denied", "it does not let us in; ssh to it by hand must work without a question (a key, an agent)"),
    ("Connection refused", "nobody listens for ssh at that port; start sshd, or name the port with --ssh-port"),
    ("No route to host", "there is no way to it; check that it runs, and the network"),
    ("timed out", f"it did not answer within {CONNECT_S} s; check that it runs, and the network"),
    ("not responding", "the ssh connection was lost: nothing came back for 15 s"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a host has, for each of its nodes."""

    device: str
    backend: str
    nproc_per_node: int
    because: str
    address: str
    env: Mapping[str, str]
    torch: str = ""

    @staticmethod
    def of(node: Node, where: Where, nproc_per_node: int) -> Answer:
        """Where everything was said and nobody is asked."""
        return Answer(
            device=where.device,
            backend=where.backend,
            nproc_per_node=nproc_per_node,
            because=f"--device {where.device}",
            address=node.host.name,
            env={},
        )


def ask(
    nodes: Sequence[Node], where: Where, *, python: str, each: int | None, alone: bool, least: int | None
) -> tuple[dict[At, Answer], tuple[str, ...]]:
    """All hosts at once. Returns what they have, and of those that do not take part a sentence each.

    Raises SeatrialError where a host is missing, or fewer than ``least`` are left.
    """
    if shutil.which("ssh") is None:
        raise RequestError("--on ssh: ssh is not to be found; install OpenSSH's client, or put it into PATH.")
    first_on = {node.host.at: node for node in reversed(nodes)}
    with tempfile.TemporaryDirectory(prefix="seatrial-ssh-") as folder:
        asked = {
            at: _Question(node, _asked(where, node, each, alone), python, Path(folder) / str(number))
            for number, (at, node) in enumerate(first_on.items())
        }
        try:
            for question in asked.values():
                question.start()
            until = time.monotonic() + CONNECT_S + _ANSWER_S
            while any(question.runs() for question in asked.values()) and time.monotonic() < until:
                time.sleep(_POLL_S)
        finally:
            for question in asked.values():
                question.end()
        heard = {at: question.answer() for at, question in asked.items()}
    answers = {at: _answer(told, first_on[at], each) for at, told in heard.items() if isinstance(told, dict)}
    # In the order in which they were named.
    absent = tuple(dict.fromkeys(told for node in nodes if isinstance(told := heard[node.host.at], str)))
    if absent and (least is None or len(answers) < least):
        more = f"; and {len(absent) - _MOST_NAMED} more hosts" if len(absent) > _MOST_NAMED else ""
        few = "" if least is None else f"only {len(answers)} of at least {least} hosts came: "
        raise SeatrialError(f"{few}{'; '.join(absent[:_MOST_NAMED])}{more}.")
    return answers, absent


def _asked(where: Where, node: Node, each: int | None, alone: bool) -> dict[str, Any]:
    wanted = None if each is None else each * node.here
    return {"device": where.device, "backend": where.backend, "nproc_per_node": wanted, "alone": alone}


def _answer(told: Mapping[str, Any], node: Node, each: int | None) -> Answer:
    here = told["place"]
    counted = here["nproc_per_node"] if here["device"] == "cpu" else here["nproc_per_node"] // node.here
    return Answer(
        device=here["device"],
        backend=here["backend"],
        nproc_per_node=each if each is not None else max(1, counted),
        because=here["because"],
        address=(told["address"] or [node.host.name])[0],
        env=here["env"],
        torch=told["torch"],
    )


class _Question:
    """One ssh that asks one host."""

    def __init__(self, node: Node, asked: Mapping[str, Any], python: str, path: Path) -> None:
        self._node = node
        self._asked = asked
        self._python = python
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        self._late = False

    def start(self) -> None:
        code = f"{inspect.getsource(ssh_survey)}\nlook({dict(self._asked)!r})"
        given, said, wrong = (self._path.with_suffix(suffix) for suffix in (".in", ".out", ".err"))
        given.write_bytes(feed_of({"env": {}, "ask": code}).all())
        with open(given, "rb") as stdin, open(said, "wb") as stdout, open(wrong, "wb") as stderr:
            self._process = subprocess.Popen(
                ssh_argv(self._node.host, self._python),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        if self._process is not None and self.runs():
            self._late = True
            self._process.kill()
            self._process.wait()

    def answer(self) -> dict[str, Any] | str:
        """What it has, or a sentence about why it cannot take part."""
        assert self._process is not None
        host = self._node.host
        said = self._path.with_suffix(".out").read_bytes()[-_MOST_SAID_BYTES:].decode(errors="replace")
        line = next((line for line in reversed(said.splitlines()) if line.startswith(ssh_survey.MARK)), None)
        if self._late:
            return f"{host.name}: it did not say what it has within {CONNECT_S + _ANSWER_S:.0f} s"
        if line is None:
            wrong = self._path.with_suffix(".err").read_bytes()[-_MOST_SAID_BYTES:].decode(errors="replace")
            return explained(host, self._process.returncode, wrong, self._python)
        try:
            told = json.loads(line.removeprefix(ssh_survey.MARK))
            if "refused" not in told:
                return dict(told)
            return f"{host.name}: {printable(str(told['refused'])).rstrip('.')}"
        except (ValueError, TypeError):
            return f"{host.name}: its answer was cut or changed on the way"


def explained(host: Host, code: int, said: str, python: str = "python3") -> str:
    """A sentence about how an ssh ended, from what it and the other side have said."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = printable(lines[-1][:300]) if lines else "nothing was said"
    meaning = next((words for sign, words in _WORDS if sign in said), None)
    if code == 255 and meaning is not None:
        return f"{host.name}: {meaning} ({last})"
    if code == 127 or ("No such file or directory" in last and code == 126):
        return f"{host.name}: {python} is not there ({last}); name its Python with --python"
    return f"{host.name}: ssh ended with exit code {code} ({last})"
