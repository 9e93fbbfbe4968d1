"""The handshake: agent and conductor prove to one another that they know the token, without ever sending it.

The agent's hello has a random nonce. The conductor answers with a random challenge and its proof over both and over the
port at which it listens, and only to a valid proof does the agent answer with its own. So a recorded connection opens
no other one, and who listens at another port of that host cannot pass a handshake on, to cut the connection later. The
lines after it are protected by ``line_tags.py``. Nothing is secret.

The proof of an agent covers a random text of its process, too, which is the same when it tries again: so the conductor
tells an agent whose connection was cut from another process that claims its node.
"""

from __future__ import annotations

import hashlib
import hmac
import json


def node_token(token: str, node_rank: int) -> str:
    """Return the token of one node, for targets where no node sees what another one gets."""
    return hmac.digest(token.encode(), f"node {node_rank}".encode(), "sha256").hex()


def proof(
    token: str, role: str, nonce: str, challenge: str, node_rank: int, port: int = 0, *, process: str = ""
) -> str:
    """Return the HMAC-SHA256 of all the others with the token as its key, in hexadecimal digits.

    ``role``: ``agent``, ``conductor`` or ``log``; ``nonce``: the agent's; ``challenge``: the conductor's; ``port``: of
    a conductor that listens; 0 for the others; ``process``: the random text of an agent that can try again.
    """
    subject = json.dumps([role, nonce, challenge, node_rank, port, *filter(None, [process])]).encode()
    return hmac.new(token.encode(), subject, hashlib.sha256).hexdigest()


def proves(
    claim: object,
    token: str,
    role: str,
    nonce: str,
    challenge: str,
    node_rank: int,
    port: int = 0,
    *,
    process: str = "",
) -> bool:
    """Return whether ``claim`` is the right proof, compared in constant time."""
    expected = proof(token, role, nonce, challenge, node_rank, port, process=process)
    return isinstance(claim, str) and hmac.compare_digest(claim.encode(errors="replace"), expected.encode())
