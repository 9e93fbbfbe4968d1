"""A rank whose group has formed reads only answers of a fixed size from the store, which another rank keeps."""

from __future__ import annotations

import ast
import math
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from checks.fake_context import FakeContext

from seatrial.checks.links.measure import _RoundOnFabric
from seatrial.checks.shared.rounds import timed_rounds
from seatrial.protocol.connecting import TRAINING_MEETS, connects
from seatrial.rank import groups

SOURCE = Path(__file__).parents[2] / "src/seatrial"
_LENGTH = struct.pack("<Q", 1 << 46)
"""More than any memory: torch makes room for it before a byte has come."""


class _Liar:
    """A store that answers as torch's does, with a false length where a value is asked for."""

    def __init__(self) -> None:
        self.asked_for_value = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.close()
        self._thread.join(timeout=10)

    def _answer(self) -> None:
        with self._server.accept()[0] as connection, connection.makefile("rb") as said:
            while question := said.read(1):
                match question[0]:
                    case 0:  # VALIDATE
                        said.read(4)
                    case 1:  # SET
                        _text(said), _text(said)
                    case 4:  # ADD, always of 1
                        _text(said), said.read(8)
                        connection.sendall(struct.pack("<q", 1))
                    case 5 | 6:  # CHECK and WAIT
                        for _ in range(struct.unpack("<Q", said.read(8))[0]):
                            _text(said)
                        connection.sendall(b"\0")
                    case 13:  # PING
                        connection.sendall(said.read(4))
                    case _:
                        self.asked_for_value = True
                        connection.sendall(_LENGTH)
                        return


def _text(said: Any) -> bytes:
    text: bytes = said.read(struct.unpack("<Q", said.read(8))[0])
    return text


@pytest.fixture
def liar() -> Iterator[_Liar]:
    server = _Liar()
    yield server
    server.close()


def _agree(context: FakeContext) -> None:
    for number in timed_rounds(context, 1.0, report=lambda: None, together=True):
        if number == 3:
            return


def _turns(context: FakeContext, last_start: float = math.inf) -> Any:
    turns: Any = _RoundOnFabric.__new__(_RoundOnFabric)
    turns._context, turns._request, turns._name, turns._last_start = context, {"fabric": "nodes"}, "links", last_start
    return turns


def _begin_turn(context: FakeContext) -> None:
    assert _turns(context)._begin_turn(0, [0, 1, 2])
    groups.add_to_key(context, "links/broken")
    assert groups.has_key(context, "links/broken")


@pytest.mark.parametrize("wait", [_agree, _begin_turn])
def test_no_false_length_is_read_after_a_group_has_formed(liar: _Liar, wait: Callable[[FakeContext], None]) -> None:
    context = FakeContext(check="collectives", rank=1, group_rank=1, world_size=3)
    context.store = dist.TCPStore("127.0.0.1", liar.port, None, False, timedelta(seconds=20))
    wait(context)
    assert not liar.asked_for_value
    context.store = None


@pytest.mark.parametrize("counted", [1, 5])
def test_a_stranger_that_counts_in_a_turn_holds_up_no_rank(counted: int) -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=2), wait_for_workers=False)
    store.add("links/0/turn 0", counted)

    def begin(rank: int) -> list[bool]:
        own = dist.TCPStore("127.0.0.1", store.port, None, False, timedelta(seconds=2))
        context = FakeContext(check="links", rank=rank, world_size=3, store=own)
        return [_turns(context)._begin_turn(0, [0, 1, 2]), _turns(context, -1.0)._begin_turn(1, [0, 1, 2])]

    with ThreadPoolExecutor(3) as ranks:
        assert list(ranks.map(begin, range(3))) == [[True, False]] * 3


def test_a_number_that_is_none_is_an_error_and_ends_no_store() -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=20), wait_for_workers=False)
    store.set("k", "x" * 1000)
    of_other = dist.TCPStore("127.0.0.1", store.port, None, False, timedelta(seconds=20))
    with pytest.raises(RuntimeError):
        groups.wait_for_number(FakeContext(check="training", rank=1, world_size=2, store=of_other), "k")
    context = FakeContext(check="training", world_size=2, store=store)
    assert groups.add_to_key(context, "n", 0) == groups.wait_for_number(context, "n") == 0


_READS_VALUE = re.compile(r"\.(get|multi_get|compare_set|queue_pop)$")
_OF_STORE = re.compile(r"store|_opened", re.IGNORECASE)
_WHERE_GROUPS_FORM = {
    "rank/gloo_store.py",  # for torch, as long as it makes a group
    "worker/rendezvous.py",  # in TRAINING_MEETS
}


def test_values_are_read_from_a_store_only_where_a_group_forms() -> None:
    """There an end of the rank names nobody (``protocol/connecting.py``)."""
    readers = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        if _READS_VALUE.search(called := ast.unparse(node.func)) and _OF_STORE.search(called.rpartition(".")[0])
    }
    assert readers == _WHERE_GROUPS_FORM
    assert connects(TRAINING_MEETS)
