"""A rank that begins late finds its peer gone: that accuses nobody, and a link that breaks is still found."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
from by_day import by_day
from checks.links_ranks import measured

_LATE_S = 1.6
"""Beyond ``pair_timeout_s`` of these ranks, which is 1 s."""
_FAR_TOO_LATE_S = 7.0
"""Beyond the time that Gloo waits for a connection: which of the two has to wait for the other one is chance."""
Words = Mapping[str, bytes]


def _page(port: int) -> bytes:
    text = b""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        while data := connection.recv(8192):
            text += data
    return text


def _words(text: bytes) -> Words:
    # A page that is shut has none.
    return {key: base64.b64decode(word) for key, word in json.loads(text or b"{}").items()}


def _late_from(has_begun: Callable[[Words], bool], late_s: float = _LATE_S, *, is_flood: bool = False) -> Any:
    """Return a relay in front of a page that keeps its reader waiting from some words on, as a bad cable does.

    ``is_flood``: because others read the page meanwhile, as often as it answers.
    """

    @contextlib.contextmanager
    def relay(port: int) -> Iterator[int]:
        held, began_at, read = list[socket.socket](), list[float](), set[str]()

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    held.append(server.accept()[0])
                    with contextlib.suppress(OSError):
                        text = _page(port)
                        # A reader that has not read "go" has not met its peer.
                        has_met = read.issuperset(key for key in _words(text) if key.endswith("/go"))
                        if not began_at and has_met and has_begun(_words(text)):
                            began_at.append(time.monotonic())
                        while is_flood and began_at and time.monotonic() - began_at[0] < late_s:
                            _page(port)
                        if not began_at or time.monotonic() - began_at[0] >= late_s:
                            read.update(_words(text))
                            held[-1].sendall(text)
                            held.pop().close()

        with socket.create_server(("127.0.0.1", 0), backlog=100) as server, contextlib.ExitStack() as stack:
            thread = threading.Thread(target=answer)
            thread.start()
            yield server.getsockname()[1]
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for reader in held:
                stack.enter_context(reader)

    return relay


def _is_at_a_step(words: Words) -> bool:
    return any(key.endswith("/at") for key in words)


def _has_an_address(words: Words) -> bool:
    return any("//cpu//" in key for key in words)


def _stops(rank: int, has_begun: Callable[[Words], bool]) -> Any:
    """Return what stops the process of a rank for a while, once its page has these words."""

    @contextlib.contextmanager
    def pause(running: Sequence[subprocess.Popen[str]], ports: Mapping[int, int]) -> Iterator[None]:
        def stop() -> None:
            while running[rank].poll() is None:
                with contextlib.suppress(OSError, ValueError):
                    if has_begun(_words(_page(ports[rank]))):
                        break
                time.sleep(0.01)
            os.kill(running[rank].pid, signal.SIGSTOP)
            time.sleep(_LATE_S)
            os.kill(running[rank].pid, signal.SIGCONT)

        thread = threading.Thread(target=stop)
        thread.start()
        yield
        thread.join()

    return pause


_PAIR = {"pairs": [[1, 2]]}
_GROUP = {"groups": [[0, 1, 2, 3]], "list_below_gbps": 1e9}


def _said(answers: Sequence[tuple[Any, list[dict[str, Any]]]]) -> dict[tuple[int, int | None], str]:
    """Return the fact of each rank about each peer."""
    return {
        (rank, fact["value"].get("peer")): fact["name"]
        for rank, (_, facts) in enumerate(answers)
        for fact in facts
        if fact["name"] not in ("asked", "late")
    }


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "owner"), by_day([(1, 2), (2, 1)]))
def test_a_page_that_many_read_has_no_two_of_a_pair_accuse_each_other(reader: int, owner: int) -> None:
    relay = _late_from(_has_an_address, _FAR_TOO_LATE_S, is_flood=True)
    said = _said(measured(3, _PAIR, relays={(reader, owner): relay}))
    assert said == {(owner, reader): "unmet", (reader, owner): "failed"}


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "owner"), by_day([(1, 2), (2, 1)]))
def test_a_page_that_is_read_late_by_a_bad_cable_is_a_matter_of_its_ends(reader: int, owner: int) -> None:
    """As where packets are lost: nobody else reads the page."""
    said = _said(measured(3, _PAIR, relays={(reader, owner): _late_from(_has_an_address, _FAR_TOO_LATE_S)}))
    assert said == {(reader, owner): "failed", (owner, reader): "failed"}


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "owner"), by_day([(1, 2), (2, 1)]))
def test_a_page_that_is_read_late_has_no_two_members_accuse_each_other(reader: int, owner: int) -> None:
    """The first step of a group is one of other members for each reader; the page is late from then on."""
    said = _said(measured(4, _GROUP, relays={(reader, owner): _late_from(_is_at_a_step)}))
    assert said.get((reader, owner), "unmet") == "unmet", said
    assert list(said.values()).count("failed") < 2, said


@pytest.mark.slow
@pytest.mark.parametrize("rank", by_day([1, 2]))
@pytest.mark.parametrize("part", [_PAIR, _GROUP], ids=["pair", "group"])
def test_a_rank_that_stood_still_accuses_nobody(rank: int, part: dict[str, Any]) -> None:
    has_begun = _has_an_address if part is _PAIR else _is_at_a_step
    pause: Callable[..., AbstractContextManager[None]] = _stops(rank, has_begun)
    said = _said(measured(4 if part is _GROUP else 3, part, pauses=pause))
    assert "failed" not in {name for (sayer, _), name in said.items() if sayer == rank}, said
