"""How an agent and its conductor show one another that they know the token, without ever sending it.

The agent says hello with a number of its own, the conductor answers with one of its own and its proof over both, and
only to who has proved that does the agent give its proof. So what was overheard on one connection opens no other one.
Neither secrecy nor integrity of what is said afterwards comes from this.
"""

from __future__ import annotations

import hashlib
import hmac
import json

__all__ = ["proof", "proves"]


def proof(token: str, role: str, nonce: str, challenge: str, node_rank: int) -> str:
    """What only who knows the token can say.

    ``role``: ``agent`` or ``conductor``; ``nonce``: of the agent's choice; ``challenge``: of the conductor's.
    """
    said = json.dumps([role, nonce, challenge, node_rank]).encode()
    return hmac.new(token.encode(), said, hashlib.sha256).hexdigest()


def proves(told: object, token: str, role: str, nonce: str, challenge: str, node_rank: int) -> bool:
    """Whether that is the right proof; compared in constant time."""
    right = proof(token, role, nonce, challenge, node_rank)
    return isinstance(told, str) and hmac.compare_digest(told.encode(errors="replace"), right.encode())
