"""No look-up of a name waits for longer than its limit, whatever the name server does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import unanswered_names
from unanswered_names import ASKING, said_by, shorten

from seatrial import resolver


@pytest.fixture
def resolver_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A double of the system's resolver that answers nothing before the test ends."""
    ended = threading.Event()

    def wait(*_: object, **__: object) -> list[object]:
        ended.wait(50)
        raise OSError("the test has ended")

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    yield
    ended.set()


@pytest.mark.parametrize("what", ASKING)
@pytest.mark.usefixtures("resolver_double")
def test_a_resolver_double_that_never_answers_is_left(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    shorten(monkeypatch.setattr)
    ask, said = ASKING[what]
    assert said_by(ask).startswith(said)


@pytest.mark.root
def test_a_name_server_that_keeps_a_connection_open_is_left() -> None:
    """It answers by UDP that the answer is too large, and glibc waits for one over TCP without a limit."""
    command = ["unshare", "--net", "--mount", sys.executable, unanswered_names.__file__]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=environ)
    lines = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert (done.returncode, done.stderr) == (0, "")
    for what, (_, said) in ASKING.items():
        assert lines.pop(what).startswith(said), what
    assert lines == {"a signal": "InterruptedError: "}


def test_where_no_thread_starts_the_look_up_fails_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(OSError, match="nothing can ask for 'node1': can't start new thread"):
        resolver.query("node1", None, timeout_s=1.0)


@pytest.mark.parametrize("name", ["a" * 64, "node1..cluster"])
def test_text_that_is_no_name_is_an_error_of_the_name(name: str) -> None:
    with pytest.raises(OSError, match=f"'{name}' is no host name"):
        resolver.query(name, None, timeout_s=20.0)


def test_an_address_is_its_own_answer() -> None:
    ((family, kind, _, _, address),) = resolver.query("192.0.2.1", 9, timeout_s=20.0, kind=socket.SOCK_DGRAM)
    assert (family, kind, address) == (socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 9))
