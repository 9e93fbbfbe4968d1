"""How an agent and its conductor show one another that they know the token, without ever sending it."""

from __future__ import annotations

import hashlib
import hmac

__all__ = ["proof", "proves"]


def proof(token: str, role: str, nonce: str, node_rank: int) -> str:
    """What only who knows the token can say. ``role``: ``agent`` or ``conductor``; ``nonce``: of the agent's choice."""
    said = f"{role} {nonce} {node_rank}".encode(errors="surrogatepass")
    return hmac.new(token.encode(), said, hashlib.sha256).hexdigest()


def proves(told: object, token: str, role: str, nonce: str, node_rank: int) -> bool:
    """Whether that is the right proof; compared in constant time."""
    right = proof(token, role, nonce, node_rank)
    return isinstance(told, str) and hmac.compare_digest(told.encode(errors="replace"), right.encode())
