"""Answers of a store, and addresses in it, that another rank has made up: any rank can write there."""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from checks.fake_context import FakeContext

from seatrial.rank import groups
from seatrial.rank.gloo_store import GlooStore
from seatrial.rank.meeting import MeetingError, among_others
from seatrial.worker.failures import cause_of

ADDRESS = struct.pack("=Q2sQ136s2q", 2, b"vm", 136, bytes(136), 1, 2)
"""Name of the host and address, each behind its length, and a number for each rank, as Gloo publishes them."""
FALSE = {
    "empty": b"",
    "short": ADDRESS[:7],
    "cut": ADDRESS[:-8],
    "ones": b"\xff" * len(ADDRESS),
    "long name": struct.pack("=Q", 1 << 62) + ADDRESS[8:],
    "long address": ADDRESS[:10] + struct.pack("=Q", 160) + ADDRESS[18:],
    "many": ADDRESS * 100,
}


class _LyingStore(dist.Store):
    """A store in which rank 1 has the same address at all times, whatever it publishes."""

    def __init__(self, address: bytes) -> None:
        super().__init__()
        self._address = address
        self._values = dict[str, Any]()

    def set(self, key: str, value: Any) -> None:
        self._values[key] = value

    def get(self, key: str) -> bytes:
        return self._address if key.endswith("/1") else bytes(self._values[key])

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        pass


@pytest.mark.parametrize("name", FALSE)
def test_a_false_address_is_an_error_before_gloo_reads_it(name: str) -> None:
    """Gloo would end this process."""
    store: Any = _LyingStore(FALSE[name])
    context = FakeContext(check="bootstrap", ranks=(4, 7), rank=4, world_size=2, store=store)
    with pytest.raises(MeetingError, match="rank 7 published at the store, or another one in its name") as raised:
        groups.form(context, store, (4, 7), timedelta(seconds=5))
    assert cause_of(raised.value) == "fabric"


def test_an_address_of_another_host_is_read() -> None:
    inner = dist.HashStore()
    store = GlooStore(inner, (4, 7))
    store.set("x/0", ADDRESS)
    longer = struct.pack("=Q", 60) + b"n" * 60 + ADDRESS[10:]
    put: Any = inner.set
    put("x/1", longer)
    put("y/1", "")
    assert (store.get("x/1"), store.get("y/1")) == (longer, b"")


def test_a_false_address_in_a_group_within_the_group_has_a_number() -> None:
    put: Any = (inner := dist.HashStore()).set
    store = GlooStore(inner, (4, 7, 8))
    store.set("world/0", ADDRESS)
    store.set("part/1", ADDRESS)
    put("part/0", "")
    with pytest.raises(MeetingError, match="number 0 of a group published"):
        store.get("part/0")


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a store that answers the first question for a value with a length alone: the name of the key."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(timeout=10)


def _answer(server: socket.socket) -> None:
    with server.accept()[0] as connection, connection.makefile("rb") as said:

        def text() -> bytes:
            return said.read(struct.unpack("<Q", said.read(8))[0])

        while question := said.read(1):
            if question == b"\0":
                said.read(4)
            elif question == b"\x0d":
                connection.sendall(said.read(4))
            elif question == b"\3":
                connection.sendall(struct.pack("<Q", int(text().rpartition(b"/")[2])))
                return
            else:
                for _ in range(struct.unpack("<Q", said.read(8))[0]):
                    text()
                connection.sendall(b"\0")


@pytest.mark.parametrize(("length", "alone"), [(1 << 63, "fabric"), (1 << 46, "memory")])
@pytest.mark.parametrize("is_alone", [False, True])
def test_a_false_length_is_of_the_fabric(port: int, length: int, alone: str, is_alone: bool) -> None:
    """It ends as ValueError, or as MemoryError: among ranks of one node that is a lack of memory of theirs."""
    context = FakeContext(check="links", rank=1, world_size=2, local_world_size=2 if is_alone else 1)
    context.store = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=20))
    with pytest.raises((MeetingError, MemoryError)) as raised, among_others(context):
        context.store.get(f"x/{length}")  # as torch does where it forms a group
    assert cause_of(raised.value) == (alone if is_alone else "fabric")


_NCCL = "NCCL error in: /x/NCCLUtils.cpp:94, unhandled system error, NCCL version 2.27.3\nLast error:\n"


class _RaisingStore:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def check(self, keys: list[str]) -> bool:
        raise self._error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("cannot create std::vector larger than max_size()"), "fabric"),
        (ValueError("basic_string::_M_create"), "fabric"),
        (IndexError("vector::_M_range_check"), "fabric"),
        (RuntimeError("stoll"), "fabric"),
        (RuntimeError("cannot connect to host 'CUDA error: out of memory'"), "fabric"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "device"),
        (RuntimeError("CUDA error: out of memory"), "memory"),
        (RuntimeError("Distributed package doesn't have NCCL built in"), "request"),
        (dist.DistBackendError("NCCL error: unhandled cuda error"), "device"),
        (dist.DistBackendError("NCCL error: unhandled system error. Last error: to host 'cuda failure'"), "fabric"),
        (dist.DistNetworkError("CUDA error: the name of a host"), "fabric"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. can't allocate memory"), "fabric"),
        (RuntimeError("cannot connect to host 'was built without: CUDA error'"), "fabric"),
        (MeetingError("CUDA error: out of memory"), "fabric"),
        (RuntimeError("Resource temporarily unavailable"), "processes"),
        (RuntimeError("cannot connect to host 'can't start new thread'"), "fabric"),
        (TypeError("a mistake of ours"), "own"),
        (NotImplementedError("a mistake of ours"), "own"),
        (dist.DistBackendError(_NCCL + "Call to ibv_reg_mr failed: Cannot allocate memory"), "memory"),
        (dist.DistBackendError(_NCCL + "Cuda failure 2 'out of memory'"), "memory"),
    ],
    ids=repr,
)
def test_errors_out_of_meeting_are_of_the_fabric(error: Exception, cause: str) -> None:
    store: Any = _RaisingStore(error)
    with pytest.raises(type(error) if isinstance(error, dist.DistError) else Exception) as raised:
        groups.has_key(FakeContext(check="links", world_size=2, store=store), "x")
    assert cause_of(raised.value) == cause


@pytest.mark.parametrize(
    ("last", "alone"),
    [
        ("Call to socket failed: Too many open files", "setup"),
        ("Call to malloc failed: Cannot allocate memory", "memory"),
    ],
)
@pytest.mark.parametrize("is_alone", [False, True])
def test_whoever_connects_may_have_taken_what_a_host_lacks(last: str, alone: str, is_alone: bool) -> None:
    store: Any = _RaisingStore(dist.DistBackendError(_NCCL + last))
    context = FakeContext(check="links", world_size=2, local_world_size=2 if is_alone else 1, store=store)
    with pytest.raises(RuntimeError, match=last) as raised:
        groups.has_key(context, "x")
    assert cause_of(raised.value) == (alone if is_alone else "fabric")


def test_gloos_threads_get_pythons_lock_before_the_group_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.4.1 holds that lock while it waits for their end, and they need it to let go of the last tensors."""
    starts, ends = threading.Event(), threading.Event()

    def let_go() -> None:
        starts.wait()
        ends.set()

    thread = threading.Thread(target=let_go)
    thread.start()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    destroy, ended = dist.destroy_process_group, list[bool]()
    monkeypatch.setattr(dist, "destroy_process_group", lambda: ended.append(ends.is_set()))
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    try:
        starts.set()
        groups.close_world()
    finally:
        sys.setswitchinterval(interval_s)
        destroy()
        thread.join()
    assert ended == [True]
