"""The rendezvous of a training: how its ranks form the world group."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from seatrial.environment.flight_recorder import is_wanted, recorder_settings
from seatrial.errors import RequestError
from seatrial.files import remove, require_ours
from seatrial.folders import open_with_links
from seatrial.worker.meeting_address import in_numbers, uses_agent_store

if TYPE_CHECKING:
    import torch.distributed as dist

    from seatrial.rank.device import Device


_POLL_S = 0.02
_LEAST_S = 1.0
"""Time that torch has for the rendezvous where the search for the first rank took all but that."""


@contextlib.contextmanager
def meeting_place(init: str, *, removes: bool) -> Iterator[str]:
    """Yield ``init`` as ``form_world`` takes it: that of a file leads through a descriptor of its folder.

    torch opens the file anew for each key and removes it by its path, and who can rename the folder could put another
    one of this user in its place. Raises RequestError where the folder cannot be opened, or a link of another user has
    led there: torch reads, changes and removes what file has that name.

    Args:
        init: As a person gave it.
        removes: Remove the file afterwards: the ranks of the next run would meet those of this one. Where the folder
            or the file is not ours it may have to stay, which changes no result.
    """
    if not init.startswith("file:"):
        yield init
        return
    place = urlparse(init)
    folder, name = os.path.split(place.path)
    try:
        opened, link = open_with_links(folder)
    except OSError as error:
        raise RequestError(
            f"--init {init}: {folder} cannot be opened on {socket.gethostname()} ({error.strerror}); name a new file "
            "in a folder that all ranks have."
        ) from error
    path = f"/proc/self/fd/{opened}/{name}"
    try:
        if link:
            raise RequestError(f"--init {init}: {link}; name a new file in a folder by its own path.")
        yield place._replace(path=path).geturl()
    finally:
        if removes and not link:
            with contextlib.suppress(OSError):
                remove(path, only_ours=True)
        os.close(opened)


def form_world(init: str, *, rank: int, world_size: int, backend: str, device: Device, timeout_s: float) -> dist.Store:
    """Rendezvous at ``init`` and form the group of all ranks.

    Returns the store of the group, which the caller keeps for as long as there are groups. Raises MeetingError and what
    torch raises: RuntimeError, ValueError or OSError.

    Args:
        init: ``env://``, ``tcp://HOST:PORT`` or ``file:///PATH``, of ``meeting_place``.
        rank: This rank.
        world_size: Number of ranks.
        backend: ``gloo``, ``nccl`` or ``mpi``.
        device: The device of this rank.
        timeout_s: Seconds to wait for the other ranks, here and in each operation of the group.
    """
    import torch.distributed as dist

    from seatrial.rank.groups import has_libuv, nccl_without_dumps, torch_backend

    if init.startswith("file:"):
        # torch would follow a link of another user, and write to what it finds.
        require_ours(urlparse(init).path)
    until = time.monotonic() + timeout_s
    place = in_numbers(init, rank=rank, until=until)
    timeout, left = timedelta(seconds=timeout_s), timedelta(seconds=max(_LEAST_S, until - time.monotonic()))
    options: dict[str, Any] = {}
    if backend == "nccl":
        # Without device_id a barrier guesses the device, and may choose that of another rank.
        options["device_id"] = device.torch
        os.environ.update(recorder_settings(os.environ))
        if not is_wanted(os.environ):
            os.environ.update({**nccl_without_dumps(), **os.environ})
    if not has_libuv():
        os.environ["USE_LIBUV"] = "0"
    store: dist.Store
    store, _, _ = next(dist.rendezvous(place, rank, world_size, timeout=left))
    store.set_timeout(timeout)
    prefix = "default_pg"
    if init == "env://" and uses_agent_store():
        # The store of torchrun survives its restarts, with the addresses of ranks that are gone: Gloo may try to
        # connect to those forever (torch 2.13). So each restart attempt uses a separate key prefix.
        prefix = fresh_prefix(store, rank, world_size, timeout_s)
    store = dist.PrefixStore(prefix, store)
    if backend == "gloo":
        from seatrial.rank.gloo_store import GlooStore

        store = GlooStore(store, range(world_size))
    dist.init_process_group(
        torch_backend(backend), store=store, rank=rank, world_size=world_size, timeout=timeout, **options
    )
    return store


def fresh_prefix(store: dist.Store, rank: int, world_size: int, timeout_s: float) -> str:
    """Return a key prefix that all ranks of this restart attempt agree upon and that no earlier attempt has used.

    Values that an earlier attempt left in the store are harmless, since each key that is trusted contains a random
    number drawn now: rank r asks with its number, rank 0 answers under that number with the prefix, and r acknowledges
    under the prefix. Raises RuntimeError when a rank is missing after ``timeout_s``.
    """
    until = time.monotonic() + timeout_s
    nonce = secrets.token_hex(8)
    if rank > 0:
        store.set(f"seatrial/ask/{rank}", nonce)
        answer = f"seatrial/answer/{rank}/{nonce}"
        _wait_for(store, answer, until)
        name = store.get(answer).decode()
        store.set(f"seatrial/heard/{rank}/{name}", "")
        return name
    missing = set(range(1, world_size))
    answered: dict[int, bytes] = {}
    while missing:
        for other in sorted(missing):
            ask = f"seatrial/ask/{other}"
            if store.check([f"seatrial/heard/{other}/{nonce}"]):
                missing.discard(other)
            elif store.check([ask]) and (asked := store.get(ask)) != answered.get(other):
                answered[other] = asked
                store.set(f"seatrial/answer/{other}/{asked.decode()}", nonce)
        if missing and time.monotonic() > until:
            names = ", ".join(str(other) for other in sorted(missing)[:8])
            raise RuntimeError(f"rank {names} did not come within {timeout_s:.0f} s")
        time.sleep(_POLL_S)
    return nonce


def _wait_for(store: dist.Store, key: str, until: float) -> None:
    while not store.check([key]):
        if time.monotonic() > until:
            raise RuntimeError("rank 0 did not answer in time")
        time.sleep(_POLL_S)
