"""The hosts on which munge made the credentials of the nodes: another witness of where each node is.

Only root of a node can have its munged name another host. The credentials are read at the end: unmunge may wait for the
resolver, which it asks for the name of the host, and nobody needs the answer before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from seatrial.protocol.munge import MungeError, read_credential

_AT_ONCE = 8
"""Each is a process, of a few milliseconds where the resolver answers."""
_READ_S = 20.0
"""Time for all of them."""


def hosts_of_credentials(credentials: Mapping[int, tuple[str, str]]) -> dict[int, str | None]:
    """Return the address at which the credential of each node was made.

    Empty: nothing says that. None: it was made by another user, is damaged, or holds something else than the proof.

    ``credentials``: the proof of each node, and its credential.
    """
    until = time.monotonic() + _READ_S

    def host(proof_and_credential: tuple[str, str]) -> str | None:
        proof, credential = proof_and_credential
        if time.monotonic() > until:
            return ""
        try:
            read = read_credential("proof", credential)
        except MungeError:
            return ""
        return read.host if read is not None and read.text == proof else None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(credentials, pool.map(host, credentials.values()), strict=True))
