"""The store and the process groups of a rank."""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from seatrial.rank.meeting import MeetingError, among_others

if TYPE_CHECKING:
    import torch.distributed as dist

    from seatrial.rank.context import Context

CONNECT_S = 10.0
"""Time for a TCP connection to the store, which is open before any rank connects: Linux tries four times in it."""
_LAST_TENSORS_S = 0.05
"""Time for the threads of Gloo to let go of the tensors of the last operation. For that each needs Python's lock, which
torch 2.4.1 holds while it waits for the end of these threads: without this time 4 of 12 pairs of ranks stood still."""
UNREACHABLE = ("no answer", "refused", "no route")
"""How a connection fails by what lies between two hosts, or at the other one."""
_NO_TIMEOUT = timedelta(days=1)
"""The timeout of the world. It covers each operation of all later steps, so neither a slow network nor a rank that
computes for minutes while the others wait must trigger it: those that wait would complain of the fabric. The conductor
has deadlines, and sees when all wait (HangDetector)."""


def torch_backend(backend: str) -> str:
    """Return torch's name of a backend; for ``mpi``, register ours first."""
    if backend != "mpi":
        return backend
    from seatrial.mpi_backend import register

    return register.register()


def transport(context: Context) -> str:
    """Return the memory from which MPI takes this rank's tensors; empty with any other backend."""
    if context.backend != "mpi":
        return ""
    from seatrial.mpi_backend import register

    return register.transport(context.device.type)


@functools.cache
def has_libuv() -> bool:
    """Return whether the stores of this torch can use libuv, as they do by default; Debian's 2.6 cannot."""
    import torch.distributed as dist

    try:
        dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=True)
    except RuntimeError as error:
        return "libuv" not in str(error)
    return True


def open_store(context: Context, timeout: timedelta) -> None:
    """Open the TCP store on a free port, on rank 0 of the group, and share its address."""
    import torch.distributed as dist

    # world_size stays None: then opening waits for no other rank, so a missing rank cannot block this one.
    if context.store is None:
        context.store = dist.TCPStore(
            context.address, 0, None, True, timeout, wait_for_workers=False, use_libuv=has_libuv()
        )
    context.share("store", {"host": context.address, "port": context.store.port})


def form_world(context: Context) -> None:
    """Rendezvous at the store and form the world group of this generation."""
    import torch.distributed as dist

    store = dist.PrefixStore("world", join_store(context, _NO_TIMEOUT))
    form(context, store, context.ranks, _NO_TIMEOUT)
    context.group = dist.group.WORLD


def join_store(context: Context, timeout: timedelta, *, connect_timeout_s: float = CONNECT_S) -> dist.TCPStore:
    """Return the store that rank 0 of the group opened. ``timeout``: that of each later wait at the store.

    Raises MeetingError; after the fact ``store_unreachable``, if no connection is made in time: the store's own message
    comes as late as its timeout, and does not say how the connection failed.
    """
    if context.store is not None:
        return context.store
    with among_others(context):
        host, port = _store_address(context)
        try:
            # Not by create_connection: the innermost frame of a rank that waits here has to be in this file.
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as connection:
                connection.settimeout(connect_timeout_s)
                connection.connect((host, port))
        except OSError as error:
            how = "no route" if is_without_address(error, host) else how_unreachable(error)
            context.fact("store_unreachable", {"host": host, "port": port, "how": how})
            raise MeetingError(f"no connection to the store at {host}:{port} ({how})") from error
        import torch.distributed as dist

        context.store = dist.TCPStore(host, port, None, False, timeout, use_libuv=has_libuv())
    return context.store


def _store_address(context: Context) -> tuple[str, int]:
    """Return address and port that the first rank shared. Raises MeetingError for anything else, without its words.

    A name may have many addresses, or a resolver that is slow to say no: a rank would stand still there for longer
    than PATIENCE_S, and be named for it.
    """
    address = context.given.get("store")
    if isinstance(address, dict) and is_place(address.get("host"), address.get("port")):
        return address["host"], address["port"]
    raise MeetingError(f"rank {context.ranks[0]} shared no address of its store")


def is_of_store(values: Mapping[str, Any]) -> bool:
    """Return whether these are the values that ``open_store`` shares, whoever says so."""
    address = values.get("store")
    if values.keys() != {"store"} or not isinstance(address, dict) or address.keys() != {"host", "port"}:
        return False
    return is_place(address["host"], address["port"])


def is_place(host: Any, port: Any) -> bool:
    """Return whether these are an address and a port of TCP, whoever says so.

    An address has no scope here: that may be any text, and counts on its own host only.
    """
    try:
        ipaddress.ip_address(host if isinstance(host, str) else "")
    except ValueError:
        return False
    return "%" not in host and type(port) is int and 0 < port < 65_536


def how_unreachable(error: OSError) -> str:
    """Return how a connection failed: one of ``UNREACHABLE``, else the words of the system."""
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return "no answer"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return "no route"
    return error.strerror or str(error)


def is_without_address(error: OSError, address: str) -> bool:
    """Return whether no connection was made since this host has no address for one to that address, as without IPv6.

    The system says the same where no port is left. Sends no packet.
    """
    if error.errno != errno.EADDRNOTAVAIL:
        return False
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", 0))
        except OSError:
            return False
        try:
            probe.connect((address, 9))
        except OSError as again:
            return again.errno == errno.EADDRNOTAVAIL
    return False


# A rank that ends after its group has formed is named. Another rank keeps the store, and torch takes as much memory as
# its answer to ``get`` claims. So ranks read only answers of a fixed size here: to ``wait``, ``add`` and ``check``.
# A stack that ends in this file is that of a rank that waits, also where the store keeps back its answer.


def wait_for_number(context: Context, key: str) -> int:
    """Return the number under a key, as soon as another rank has added one."""
    with among_others(context):
        store = _opened(context)
        store.wait([key])
        return int(store.add(key, 0))


def add_to_key(context: Context, key: str, number: int = 1) -> int:
    """Add to the number under the key, and return the sum. A key that is not there has 0."""
    with among_others(context):
        return int(_opened(context).add(key, number))


def has_key(context: Context, key: str) -> bool:
    """Return whether a rank has added to the key."""
    with among_others(context):
        return bool(_opened(context).check([key]))


def _opened(context: Context) -> dist.TCPStore:
    assert context.store is not None  # join_store comes first
    return context.store


def form(context: Context, store: dist.Store, ranks: Sequence[int], timeout: timedelta) -> None:
    """Rendezvous with these trial ranks at the store, where nobody else meets, and make their group the default group.

    Raises MeetingError and what else torch raises, all of it RuntimeError.
    """
    import torch.distributed as dist

    options: dict[str, Any] = {}
    # Over NCCL a transfer that fails or times out raises nothing by itself. 2: the group raises at the next operation.
    error_handling = "2"
    if timeout == _NO_TIMEOUT and context.device.type == "cuda":
        # 3: the process ends, since a rank that continued would compute with data that never came.
        error_handling = "3"
    if context.device.type == "cuda" and context.backend != "mpi":
        # Without device_id a barrier guesses the device, and may choose that of another rank.
        options["device_id"] = context.device.torch
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = error_handling
    os.environ.update(nccl_without_dumps())
    # With more ranks than this, several of them would set an id: a page of words has those of its rank alone.
    os.environ["TORCH_NCCL_RANKS_PER_ROOT"] = str(len(ranks))
    # The checks have barriers of theirs, and pages of words (``page_store.py``) cannot count.
    os.environ["TORCH_DIST_INIT_BARRIER"] = "0"
    group_rank = ranks.index(context.rank)
    if context.backend == "gloo":
        from seatrial.rank.gloo_store import GlooStore

        store = GlooStore(store, ranks)
    context.kept["store of the group"] = store
    try:
        with among_others(context):
            dist.init_process_group(
                torch_backend(context.backend),
                store=store,
                rank=group_rank,
                world_size=len(ranks),
                timeout=timeout,
                **options,
            )
    except RuntimeError:
        # torch counts attempts, and the count is part of the store keys of a rendezvous: the next peer, with fewer
        # failed attempts, would wait for another key. Destroying a group resets the count.
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()
        raise


def nccl_without_dumps() -> dict[str, str]:
    """Return variables with which no thread of NCCL's groups dumps, or asks the store whether it should.

    Otherwise the watchdog first dumps for a minute, while all other ranks end. And a thread of torch reads a value of
    any length from the store each second, which whoever reaches the store can fill (ProcessGroupNCCL's monitor).
    """
    return {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_PROPAGATE_ERROR": "0",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    }


def barrier(context: Context) -> None:
    """Return when all ranks of the world have called this and their devices are idle."""
    import torch.distributed as dist

    with among_others(context):
        dist.barrier(group=context.group)
        context.device.synchronize()


def close_world() -> None:
    """Destroy the world group. Only on the clean path: after a failure this would wait for ranks that are gone."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        if dist.get_backend() == "gloo":
            time.sleep(_LAST_TENSORS_S)
        dist.destroy_process_group()
    if "seatrial.mpi_backend.register" in sys.modules:
        # A rank skips all exit handlers when it ends, and an MPI launcher reports a rank that did not finalize as dead.
        sys.modules["seatrial.mpi_backend.register"].end()
