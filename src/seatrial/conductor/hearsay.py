"""What a node may say: of itself and of its own ranks. Whoever joined may lie, but about nobody else. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["HearsayError", "brief", "refuse_hearsay"]

_RANK = re.compile(r"rank(0|[1-9][0-9]{0,8})\.(?:0|[1-9][0-9]{0,8})")
_MOST_WORDS = 300


class HearsayError(ValueError):
    """A node spoke of what is not its own."""


def refuse_hearsay(node: int, message: Mapping[str, Any], nodes: Mapping[int, int], run: str) -> None:
    """Raises HearsayError for a message of another run, in another's name, or about a rank of another node.

    ``nodes``: rank -> the node that it runs on.
    """
    if "seq" in message or "src" in message:
        src, speaks = message.get("src"), None
        if isinstance(src, str) and (match := _RANK.fullmatch(src)):
            speaks = int(match[1])
        if message.get("run") != run or (src != f"node{node}" and (speaks is None or nodes.get(speaks) != node)):
            raise HearsayError(f"node {node} speaks as {brief(src)} in run {brief(message.get('run'))}")
        if speaks is not None and message.get("rank", speaks) != speaks:
            raise HearsayError(f"rank {speaks} speaks of rank {brief(message['rank'])}")
    told = message.get("ranks")
    about = [*told] if message.get("kind") == "status" and isinstance(told, dict) else []
    for rank in [message["rank"], *about] if "rank" in message else about:
        if isinstance(rank, bool) or nodes.get(int(rank)) != node:
            raise HearsayError(f"node {node} speaks of rank {brief(rank)}")


def brief(words: object, most: int = _MOST_WORDS) -> str:
    """Words of a node as they are passed on to others: somebody's megabytes must not fill everybody's messages."""
    return str(words)[:most]
