"""How the ranks of a training meet and form the world group."""

from __future__ import annotations

import os
import secrets
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["form_world", "fresh_prefix"]

_POLL_S = 0.02


def form_world(init: str, *, rank: int, world_size: int, backend: str, device: Any, timeout_s: float) -> None:
    """Meet at ``init`` (``env://``, ``tcp://HOST:PORT`` or ``file:///PATH``) and form the group of all ranks.

    Raises what torch raises: RuntimeError, ValueError or OSError.
    """
    import torch.distributed as dist

    from seatrial.worker.groups import torch_backend

    timeout = timedelta(seconds=timeout_s)
    options: dict[str, Any] = {}
    if backend == "nccl":
        # Without it a barrier guesses the device, and may guess another rank's.
        options["device_id"] = device.torch
    if init == "env://" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # The store of torchrun lives through its restarts, with the addresses of ranks that are gone: Gloo may connect
        # to those for ever (torch 2.13). So each life of the ranks meets under a name of its own.
        store, _, _ = next(dist.rendezvous(init, timeout=timeout))
        prefix = fresh_prefix(store, rank, world_size, timeout_s)
        options["store"] = dist.PrefixStore(prefix, store)
    else:
        options["init_method"] = init
    if init != "env://" or "store" in options:
        options |= {"rank": rank, "world_size": world_size}
    dist.init_process_group(torch_backend(backend), timeout=timeout, **options)


def fresh_prefix(store: dist.Store, rank: int, world_size: int, timeout_s: float) -> str:
    """A name that all ranks of this life agree upon and that no former life has used.

    Whatever a former life has left in the store is harmless, as each key that is believed holds a number that was drawn
    now: rank r asks with its own number, rank 0 answers under that number with the name, and r acknowledges under the
    name. Raises RuntimeError when somebody is missing after ``timeout_s``.
    """
    until = time.monotonic() + timeout_s
    own = secrets.token_hex(8)
    if rank > 0:
        store.set(f"seatrial/ask/{rank}", own)
        answer = f"seatrial/answer/{rank}/{own}"
        _wait_for(store, answer, until)
        name = store.get(answer).decode()
        store.set(f"seatrial/heard/{rank}/{name}", "")
        return name
    missing = set(range(1, world_size))
    answered: dict[int, bytes] = {}
    while missing:
        for other in sorted(missing):
            ask = f"seatrial/ask/{other}"
            if store.check([f"seatrial/heard/{other}/{own}"]):
                missing.discard(other)
            elif store.check([ask]) and (asked := store.get(ask)) != answered.get(other):
                answered[other] = asked
                store.set(f"seatrial/answer/{other}/{asked.decode()}", own)
        if missing and time.monotonic() > until:
            told = ", ".join(str(other) for other in sorted(missing)[:8])
            raise RuntimeError(f"rank {told} did not come within {timeout_s:.0f} s")
        time.sleep(_POLL_S)
    return own


def _wait_for(store: dist.Store, key: str, until: float) -> None:
    while not store.check([key]):
        if time.monotonic() > until:
            raise RuntimeError("rank 0 did not answer in time")
        time.sleep(_POLL_S)
