"""The address at which a rank of a training meets the others: torch gets no name that it would have to ask for.

It would ask without a limit of ours, and in a pod along the search path (``probe/address_search.py``): while the name
of the first pod is unknown each rank would join a stranger who has a Service in the namespace of that name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from dataclasses import dataclass
from urllib.parse import urlparse

from seatrial.probe.address_search import AddressSearch, in_pod, is_address, resolve_in_thread
from seatrial.rank.groups import is_without_address
from seatrial.rank.meeting import MeetingError

_SELF = "127.0.0.1"
"""Where a rank that keeps the store connects to it: torch listens on all addresses of its host."""
_CONNECT_S = 5.0
_LEAST_S = 0.1
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the store of the ranks is."""

    host: str
    port: int


def in_numbers(init: str, *, rank: int, until: float) -> str:
    """Return ``init`` with an address in place of a name; one without a name, or that torch refuses, as it is.

    A rank that keeps the store itself asks nobody. Any other one asks until somebody listens there. Raises MeetingError
    where nobody does.

    Args:
        init: ``env://``, ``tcp://HOST:PORT`` or any other.
        rank: This rank.
        until: The moment of ``time.monotonic()`` at which it gives up.
    """
    place = _place(init)
    if place is None or is_address(place.host):
        return init
    keeps_store = rank == 0 and not uses_agent_store()
    address = _SELF if keeps_store else _address_of(place, rank, until)
    number = f"[{address}]" if ":" in address else address
    return urlparse(init)._replace(scheme="tcp", netloc=f"{number}:{place.port}").geturl()


def uses_agent_store() -> bool:
    """Return whether torchrun keeps the store of the ranks, as torch decides it."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _place(init: str) -> _Place | None:
    """Return the place that torch would connect to; None: to none, or it raises an error."""
    with contextlib.suppress(ValueError):
        if init.startswith("env:"):
            host, port = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT", ""))
        elif init.startswith("tcp:"):
            host, port = urlparse(init).hostname or "", urlparse(init).port or 0
        else:
            return None
        return _Place(host, port) if host and 0 < port < 65_536 else None
    return None


def _address_of(place: _Place, rank: int, until: float) -> str:
    """Return the first address of the host where somebody listens."""

    def resolve(name: str) -> list[str]:
        return [*resolve_in_thread(name, timeout_s=max(_LEAST_S, until - time.monotonic()))]

    search = AddressSearch(place.host, rank, environ=os.environ, resolve=resolve)
    pause_s, why = _FIRST_PAUSE_S, "it was not asked for"
    while True:
        addresses = search.addresses()
        if search.error is not None and not addresses:
            why = str(search.error.strerror or search.error)
        for address in addresses:
            if (left_s := until - time.monotonic()) <= 0:
                break
            try:
                with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as connection:
                    connection.settimeout(min(_CONNECT_S, left_s))
                    connection.connect((address, place.port))
                return address
            except OSError as error:
                # With a port none may answer there; without one that is not known.
                no_port = error.errno == errno.EADDRNOTAVAIL and not is_without_address(error, address)
                tried = "no connection to" if no_port else "nobody answers at"
                why = f"{tried} {address}: {error.strerror or error}"
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise MeetingError(_unmet(search, why))
        time.sleep(min(pause_s, left_s))
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)


def _unmet(search: AddressSearch, why: str) -> str:
    """Return which names were asked for, why no rank was met there, and what to do."""
    advice = "see whether rank 0 runs, and whether that is a name of its host"
    if in_pod(os.environ):
        advice = "read the log of the first pod; end a name of a host outside of this cluster with a dot"
    return f"asked for {' or '.join(search.names)}: {why}; {advice}"
