"""The page of words of a rank, and a store of such pages: each rank answers for itself, and nobody holds up another."""

from __future__ import annotations

import base64
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seatrial.rank import word_page
from seatrial.rank.meeting import UnmetError
from seatrial.rank.page_store import PageStore
from seatrial.rank.word_page import MOST_BYTES, PeerPage, WordPage


@pytest.fixture
def page() -> Iterator[WordPage]:
    made = WordPage("127.0.0.1")
    made.begin()
    made.open()
    yield made
    made.close()


def _peer(page: WordPage) -> PeerPage:
    return PeerPage(7, ("127.0.0.1", page.port))


def _soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def test_a_word_is_read_as_soon_as_it_is_said(page: WordPage) -> None:
    later = threading.Timer(0.2, page.say, ("a", b"\0\xff"))
    later.start()
    assert _peer(page).word("a", _soon()) == b"\0\xff"
    later.join()
    page.say("a", b"2")
    with pytest.raises(UnmetError, match="rank 7 did not come in time"):
        _peer(page).word("a", _soon(0.1), value=b"1")
    page.begin()
    assert _peer(page).read(_soon()) == {}


def test_readers_that_say_nothing_and_never_end_hold_up_nobody(page: WordPage) -> None:
    page.say("a", b"x" * 4_000)
    idle = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(400)]
    for each in idle[:100]:
        each.sendall(b"GET / HTTP/1.0\r\n")
    began = time.monotonic()
    assert _peer(page).word("a", _soon()) == b"x" * 4_000
    assert time.monotonic() - began < 2
    assert page.is_crowded
    for each in idle:
        each.close()
    page.begin()
    assert not page.is_crowded


def test_a_page_is_crowded_whose_calls_the_kernel_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_page, "_MOST_WAITING", 1)
    page = WordPage("127.0.0.1")
    callers = [socket.socket() for _ in range(64)]
    try:
        page.begin()
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", page.port))
        assert page.is_crowded
        page.begin()
        assert not page.is_crowded
    finally:
        for caller in callers:
            caller.close()
        page.close()


def test_a_page_has_a_largest_size(page: WordPage) -> None:
    with pytest.raises(ValueError, match="too large"):
        page.say("a", bytes(MOST_BYTES))
    assert page.said("a") is None


def test_a_page_that_is_shut_answers_after_it_is_opened(page: WordPage) -> None:
    page.shut()
    _peer(page).read(_soon(0.2))
    page.say("a", b"1")
    opens = threading.Timer(0.3, page.open)
    opens.start()
    assert _peer(page).word("a", _soon(8)) == b"1"
    opens.join()


def test_no_connection_is_another_matter_than_no_word(page: WordPage) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        peer = PeerPage(3, taken.getsockname())
        with pytest.raises(UnmetError, match=r"no connection to the page of rank 3 \(refused\)") as raised:
            peer.word("a", _soon(9), reached_until=_soon(0.1))
        assert raised.value.unreachable
        assert (peer.late_s > 0.05, peer.held_s) == (True, 0.0)
        with pytest.raises(UnmetError) as raised:
            _peer(page).word("a", _soon(0.2), reached_until=_soon(0.1))
        assert not raised.value.unreachable


@pytest.mark.parametrize("number", [errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENOBUFS, errno.ENOMEM, errno.EPERM])
def test_an_error_of_this_host_says_nothing_of_the_other(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A neighbor may hold all ports of this host."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "connect", fail)
    peer = PeerPage(3, ("127.0.0.1", 2_000))
    with pytest.raises(UnmetError, match=os.strerror(number)) as raised:
        peer.word("a", _soon(0.2), reached_until=_soon(0.1))
    assert not raised.value.unreachable
    assert peer.held_s > 0.05


_FALSE: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "no JSON": lambda: b"SSH-2.0-OpenSSH_9.2\r\n",
    "no object": lambda: b'["a"]',
    "no text": lambda: b'{"a": 1}',
    "no base64": lambda: b'{"a": "!!!!"}',
    "nested": lambda: b"[" * 8_000,
    "cut": lambda: json.dumps({"a": base64.b64encode(b"1").decode()}).encode()[:-2],
    "endless": lambda: b" " * (4 * MOST_BYTES),
    "a large number": lambda: b'{"a": ' + b"9" * 8_000 + b"}",
}


@pytest.mark.parametrize("form", _FALSE)
def test_a_page_that_is_none_has_no_words(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.sendall(_FALSE[form]())

        thread = threading.Thread(target=answer)
        thread.start()
        assert PeerPage(3, server.getsockname()).read(_soon()) == {}
        thread.join()


def test_a_page_that_sends_slowly_takes_no_more_time_than_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        assert PeerPage(3, server.getsockname()).read(_soon(0.4)) == {}
        assert time.monotonic() - began < 1.5


def test_a_page_that_drips_takes_no_more_time_than_others(page: WordPage, monkeypatch: pytest.MonkeyPatch) -> None:
    def drip(connection: socket.socket, size: int) -> bytes:
        time.sleep(1e-3)
        return b" "

    monkeypatch.setattr(socket.socket, "recv", drip)
    with pytest.raises(UnmetError, match="no answer"):
        _peer(page).word("a", _soon(0.3))


def test_each_key_of_a_store_is_of_the_rank_that_sets_it(page: WordPage) -> None:
    pages = [page, *(WordPage("127.0.0.1") for _ in range(2))]
    stores = []
    for rank, own in enumerate(pages):
        own.begin()
        own.open()
        peers = [None if other is own else _peer(other) for other in pages]
        stores.append(PageStore(own, peers, "x/", 0.2))
        stores[rank].set(f"0//cpu//0/{rank}", f"of {rank}")
    # Whatever another one says in its place.
    pages[2].say("x/0//cpu//0/1", b"false")
    stores[1].set("1:2", b"id")
    stores[0].set("0", "first")
    stores[0].set("0//cuda//1", "second communicator")
    assert stores[0].get("0//cpu//0/1") == b"of 1"
    assert stores[0].get("0//cpu//0/0") == b"of 0"
    assert stores[2].get("1:2") == b"id"
    assert stores[2].get("0") == b"first"
    assert stores[1].get("0//cuda//1") == b"second communicator"
    stores[1].wait(["0", "0//cpu//0/2"])
    assert stores[1].check(["0", "0//cpu//0/0"])
    assert not stores[1].check(["dump"])
    assert not stores[0].check(["dump"])
    for missing in ("0//cpu//1/1", "dump"):
        with pytest.raises(UnmetError):
            stores[0].get(missing)
    assert stores[0].unmet
    for each in pages[1:]:
        each.close()


def test_each_time_that_a_process_stood_still_counts(tmp_path: Path) -> None:
    """A machine that swaps stands still again and again, each time for less than its peer waits."""
    script = tmp_path / "still.py"
    script.write_text(
        "import sys\nfrom seatrial.rank.word_page import WordPage\npage = WordPage('127.0.0.1')\npage.open()\n"
        "print('open', flush=True)\nsys.stdin.readline()\nprint(page.stood_still_s, flush=True)\n"
        "page.watch()\nprint(page.stood_still_s, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "open\n"
        for _ in range(4):
            os.kill(running.pid, signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(running.pid, signal.SIGCONT)
            time.sleep(0.2)
        still_s, anew_s = map(float, running.communicate("\n")[0].split())
    assert still_s > 1.5
    assert anew_s == 0


def test_many_peers_that_are_on_time_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group has hundreds of members, and each page takes some milliseconds."""
    peers = [PeerPage(rank, ("127.0.0.1", 9)) for rank in range(500)]
    store = PageStore.__new__(PageStore)
    monkeypatch.setattr(store, "_peers", peers, raising=False)
    for peer in peers:
        peer.late_s = 0.02
    assert store.late_s == 0
    peers[3].late_s = peers[4].late_s = 1.5
    assert store.late_s == 3
