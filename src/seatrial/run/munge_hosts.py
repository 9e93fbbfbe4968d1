"""The hosts on which munge made the credentials of the nodes: another witness of where each node is.

Only root of a node can have its munged name another host. The credentials are read at the end: unmunge may wait for the
resolver, which it asks for the name of the host, and nobody needs the answer before.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from seatrial.protocol.munge import PROOF, MungeError, read_credential

_AT_ONCE = 8
"""Each is a process, of a few milliseconds where the resolver answers."""
_READ_S = 20.0
"""Time for all of them."""


def hosts_of_credentials(
    credentials: Mapping[int, tuple[str, str]],
) -> tuple[dict[int, str | None], dict[int, str]]:
    """Return the address at which the credential of each node was made, and why those of nodes could not be read.

    An address is empty where nothing says it, as for a credential that could not be read, and None where the credential
    was made by another user, is damaged, or holds something else than the proof.

    ``credentials``: the proof of each node, and its credential.
    """
    until = time.monotonic() + _READ_S
    hosts: dict[int, str | None] = dict.fromkeys(credentials, "")
    unread = dict.fromkeys(credentials, "this user has no process left for that")

    def read(node: int) -> None:
        proof, credential = credentials[node]
        if time.monotonic() > until:
            unread[node] = f"unmunge did not answer for all of them within {_READ_S:.0f} s"
            return
        try:
            found = read_credential(PROOF, credential)
        except MungeError as error:
            unread[node] = str(error)
            return
        del unread[node]
        hosts[node] = found.host if found is not None and found.text == proof else None

    # Without a process left the pool has no thread, or fewer, and keeps what was not handed to it.
    with contextlib.suppress(RuntimeError), ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(read, credentials))
    return hosts, unread
